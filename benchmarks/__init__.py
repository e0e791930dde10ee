# SPDX-License-Identifier: Apache-2.0
"""kvgpu measured: natively beside remoted, and in instructions."""
