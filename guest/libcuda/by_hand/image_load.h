// SPDX-License-Identifier: Apache-2.0
// Images on their way to the worker.
#pragma once

#include <string>

#include "call.h"
#include "image.h"

namespace kvgpu::guest {

// `blob` names the image, which follows from its parts, from then on. CUDA_ERROR_INVALID_IMAGE: not
// all of it is readable. CUDA_ERROR_NOT_SUPPORTED: longer than wire::MAX_IMAGE_BYTES.
CUresult upload(const Call& call, std::span<const ImageBytes> parts, wire::Handle* blob);

// A module of what nvcc leaves in a program, or of the fat binary that it names.
CUresult module_load_wrapper(CUmodule* module, const void* wrapper);

// The whole file, with a zero behind it. CUDA_ERROR_FILE_NOT_FOUND: it cannot be read.
CUresult read_file(const char* path, std::string* bytes);

}  // namespace kvgpu::guest
