// SPDX-License-Identifier: Apache-2.0
// NVIDIA's nvml.h: its functions are what this library exports, each of their versions by its name.
#pragma once

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop
