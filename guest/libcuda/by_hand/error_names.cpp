// SPDX-License-Identifier: Apache-2.0
// cuGetErrorName and cuGetErrorString: before cuInit, too. The strings are ours.
#include "generated/api.gen.h"
#include "generated/error_names.gen.h"

namespace kvgpu::guest {

namespace {

const ErrorName* find_error(CUresult error) {
  for (const ErrorName& entry : ERROR_NAMES) {
    if (entry.error == error) return &entry;
  }
  return nullptr;
}

}  // namespace

CUresult get_error_name(CUresult error, const char** pStr) {
  if (pStr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorName* const found = find_error(error);
  *pStr = found != nullptr ? found->name : nullptr;
  return found != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult get_error_string(CUresult error, const char** pStr) {
  if (pStr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorName* const found = find_error(error);
  *pStr = found != nullptr ? found->text : nullptr;
  return found != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace kvgpu::guest
