// SPDX-License-Identifier: Apache-2.0
#include "memory_limit.h"

#include <algorithm>

#include "generated/api.gen.h"
#include "kvgpu/plain_calls.gen.h"
#include "memory_map.h"
#include "settings.h"
#include "shared.h"
#include "virtual_memory.h"

namespace kvgpu::guest {

namespace {

uint64_t left_bytes(int device, uint64_t limit_bytes) {
  uint64_t used_bytes = memory_map().device_bytes(device) + physical_bytes(device);
  for (const wire::Handle handle : tables().arrays.handles()) {
    const Array* const array = tables().arrays.find(handle);
    if (array != nullptr && array->context->device == device) used_bytes += array->bytes;
  }
  return limit_bytes - std::min(limit_bytes, used_bytes);
}

}  // namespace

Allowance::Allowance(int device, uint64_t bytes) {
  const uint64_t limit_bytes = memory_limit_bytes();
  if (limit_bytes == 0) return;
  static auto& mutex = *new std::mutex;
  lock_ = std::unique_lock(mutex);
  if (bytes > left_bytes(device, limit_bytes)) status_ = CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult mem_get_info_v2(size_t* free, size_t* total) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  revoke_closed();
  wire::cuMemGetInfo_v2_out out;
  const CUresult result =
      call.sync(wire::Op::cuMemGetInfo_v2, wire::cuMemGetInfo_v2_in{call.context()}, &out);
  if (result != CUDA_SUCCESS) return result;
  if (const uint64_t limit_bytes = memory_limit_bytes()) {
    out.total = std::min<uint64_t>(out.total, limit_bytes);
    out.free = std::min<uint64_t>(out.free, left_bytes(call.device(), limit_bytes));
  }
  if (free != nullptr) *free = out.free;
  if (total != nullptr) *total = out.total;
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
