// SPDX-License-Identifier: Apache-2.0
// The launch interface of CUDA 3: shape and parameters are state of the function.
#include <cstring>

#include "call.h"
#include "generated/api.gen.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

// A function of the current context: as natively, others are no functions here.
CUresult find_here(CUfunction hfunc, CaptureRule rule, Function** function) {
  const Call call(rule);
  if (call.status() != CUDA_SUCCESS) return call.status();
  *function = find(hfunc);
  if (*function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Module* const module = tables().modules.find((*function)->module);
  const bool is_here =
      module == nullptr || module->context == nullptr || module->context == &call.context_object();
  return is_here ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// Of the current context's device.
int limit_here(CUdevice_attribute attribute) {
  const auto device = static_cast<size_t>(current_context()->device);
  return Session::get().devices()[device].info.attributes[attribute];
}

CUresult set_param(CUfunction hfunc, int offset, const void* value, size_t bytes) {
  Function* function;
  if (const CUresult bad = find_here(hfunc, CaptureRule::ALLOWED, &function)) return bad;
  if (offset < 0 || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(function->mutex);
  auto& params = function->cuda3.params;
  const auto begin = static_cast<size_t>(offset);
  if (begin > sizeof params || bytes > sizeof params - begin) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(params + begin, value, bytes);
  return CUDA_SUCCESS;
}

CUresult launch(CUfunction hfunc, int width, int height, CUstream stream, CaptureRule rule) {
  Function* function;
  if (const CUresult bad = find_here(hfunc, rule, &function)) return bad;
  if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
  Function::Cuda3 own;
  {
    const std::lock_guard lock(function->mutex);
    own = function->cuda3;
  }
  size_t bytes = own.param_bytes;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, own.params, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  return launch_kernel(hfunc, static_cast<unsigned>(width), static_cast<unsigned>(height), 1,
                       own.block[0], own.block[1], own.block[2], own.shared_bytes, stream, nullptr,
                       extra);
}

}  // namespace

CUresult func_set_block_shape(CUfunction hfunc, int x, int y, int z) {
  Function* function;
  if (const CUresult bad = find_here(hfunc, CaptureRule::ALLOWED, &function)) return bad;
  if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (x > limit_here(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X) ||
      y > limit_here(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y) ||
      z > limit_here(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(function->mutex);
  function->cuda3.block[0] = static_cast<unsigned>(x);
  function->cuda3.block[1] = static_cast<unsigned>(y);
  function->cuda3.block[2] = static_cast<unsigned>(z);
  return CUDA_SUCCESS;
}

CUresult func_set_shared_size(CUfunction hfunc, unsigned int bytes) {
  Function* function;
  if (const CUresult bad = find_here(hfunc, CaptureRule::ALLOWED, &function)) return bad;
  const int most = limit_here(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  if (bytes > static_cast<unsigned>(most)) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(function->mutex);
  function->cuda3.shared_bytes = bytes;
  return CUDA_SUCCESS;
}

CUresult param_set_size(CUfunction hfunc, unsigned int numbytes) {
  Function* function;
  if (const CUresult bad = find_here(hfunc, CaptureRule::ALLOWED, &function)) return bad;
  const std::lock_guard lock(function->mutex);
  if (numbytes > sizeof function->cuda3.params) return CUDA_ERROR_INVALID_VALUE;
  function->cuda3.param_bytes = numbytes;
  return CUDA_SUCCESS;
}

CUresult param_seti(CUfunction hfunc, int offset, unsigned int value) {
  return set_param(hfunc, offset, &value, sizeof value);
}
CUresult param_setf(CUfunction hfunc, int offset, float value) {
  return set_param(hfunc, offset, &value, sizeof value);
}
CUresult param_setv(CUfunction hfunc, int offset, void* ptr, unsigned int numbytes) {
  return set_param(hfunc, offset, ptr, numbytes);
}

CUresult launch(CUfunction f) { return launch_grid(f, 1, 1); }
CUresult launch_grid(CUfunction f, int grid_width, int grid_height) {
  return launch(f, grid_width, grid_height, nullptr, CaptureRule::FORBIDDEN);
}
CUresult launch_grid_async(CUfunction f, int grid_width, int grid_height, CUstream hStream) {
  return launch(f, grid_width, grid_height, hStream, CaptureRule::FORBIDDEN);
}

}  // namespace kvgpu::guest
