// SPDX-License-Identifier: Apache-2.0
// Reader of fat binaries: from an image as cuModuleLoadData gets it to PTX text.
// Everything in an image is checked before use. cuModuleLoadData gets an image without its length:
// there the reader trusts the size in its header exactly as far as NVIDIA's driver has to.
#pragma once

#include <cuda.h>

#include <string>

namespace software_gpu::fatbin {

/// Of an image whose length the caller does not know.
inline constexpr uint64_t UNKNOWN_BYTES = UINT64_MAX;

/// Highest PTX target this device runs, as in compute_80.
inline constexpr uint32_t TARGET_ARCH = 80;

/// Extract the PTX that suits the device best (highest target not above TARGET_ARCH).
/// `image` is a bare fat binary, an ELF file, PTX text or, where `or_wrapper`, the fatbinc wrapper
/// that nvcc leaves in a program: libraries are loaded from it, modules are not.
/// Nothing beyond `image_bytes` is read. Returns CUDA_ERROR_NO_BINARY_FOR_GPU when there is only
/// machine code or only newer PTX.
[[nodiscard]] CUresult extract_ptx(const void* image, uint64_t image_bytes, bool or_wrapper,
                                   std::string* ptx);

}  // namespace software_gpu::fatbin
