// SPDX-License-Identifier: Apache-2.0
// The libcuda this worker drives: NVIDIA's or the software GPU, loaded by dlopen.
#pragma once

#include <string>

#include "generated/driver.gen.h"

namespace kvgpu::worker {

// Loads `path`. On failure returns false and says why in `error`.
bool load_driver(const char* path, DriverTable* table, std::string* error);

// "CUDA_ERROR_X (n)" by the loaded driver.
std::string error_name(const DriverTable& driver, CUresult error);

// Errors after which a context answers nothing else (CUDA 13.0 cuda.h: "the process must be
// terminated and relaunched").
bool is_sticky(CUresult error);

}  // namespace kvgpu::worker
