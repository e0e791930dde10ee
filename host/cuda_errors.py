# SPDX-License-Identifier: Apache-2.0
"""The few CUresult values that the host side itself answers with (CUDA 13.0 cuda.h)."""

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NO_DEVICE = 100
INVALID_DEVICE = 101
OPERATING_SYSTEM = 304
NOT_PERMITTED = 800
SYSTEM_NOT_READY = 802
SYSTEM_DRIVER_MISMATCH = 803
UNKNOWN = 999
