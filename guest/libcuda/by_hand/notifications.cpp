// SPDX-License-Identifier: Apache-2.0
// Notifications of devices. The one kind there is tells a process that it has gone over its budget
// of memory. A program here has no memory that it could go over: what is beyond it is not
// allocated. So callbacks are kept, and none is ever due. And the switches of profilers, which
// nobody hears.
#include <mutex>
#include <set>

#include "call.h"
#include "generated/api.gen.h"

struct CUasyncCallbackEntry_st {
  CUdevice device;
};

namespace kvgpu::guest {

namespace {

std::mutex mutex;  // guards the callbacks
auto& callbacks = *new std::set<CUasyncCallbackHandle>;

CUresult check_device(CUdevice device) {
  if (const CUresult bad = Session::get().pending_error()) return bad;
  return Session::get().find_device(device) == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

}  // namespace

CUresult device_register_async_notification(CUdevice device, CUasyncCallback callbackFunc, void*,
                                            CUasyncCallbackHandle* callback) {
  if (callbackFunc == nullptr || callback == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = check_device(device)) return bad;
  const std::lock_guard lock(mutex);
  *callback = *callbacks.insert(new CUasyncCallbackEntry_st{device}).first;
  return CUDA_SUCCESS;
}

CUresult device_unregister_async_notification(CUdevice device, CUasyncCallbackHandle callback) {
  if (const CUresult bad = check_device(device)) return bad;
  const std::lock_guard lock(mutex);
  const auto found = callbacks.find(callback);
  if (found == callbacks.end() || callback->device != device) return CUDA_ERROR_INVALID_VALUE;
  callbacks.erase(found);
  delete callback;
  return CUDA_SUCCESS;
}

CUresult profiler_start() { return Call(CaptureRule::FORBIDDEN).status(); }
CUresult profiler_stop() { return Call(CaptureRule::FORBIDDEN).status(); }

}  // namespace kvgpu::guest
