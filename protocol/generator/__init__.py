# SPDX-License-Identifier: Apache-2.0
"""Generates both sides of the wire from cuda.h and api.toml.

Developer time only: nothing imports it at run time.
"""
