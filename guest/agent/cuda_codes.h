// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvgpu::agent {

// CUDA 13.0 cuda.h; the agent needs a few of its codes, not its header.
inline constexpr int32_t CUDA_ERROR_OUT_OF_MEMORY = 2;
inline constexpr int32_t CUDA_ERROR_NO_DEVICE = 100;
inline constexpr int32_t CUDA_ERROR_NOT_SUPPORTED = 801;
inline constexpr int32_t CUDA_ERROR_SYSTEM_NOT_READY = 802;
inline constexpr int32_t CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803;
inline constexpr int32_t CUDA_ERROR_UNKNOWN = 999;

}  // namespace kvgpu::agent
