# SPDX-License-Identifier: Apache-2.0
"""What people run on GPUs, natively and through kvgpu; compare.py runs them in pairs."""
