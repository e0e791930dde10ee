// SPDX-License-Identifier: Apache-2.0
// The primary context of each device, and what belongs to a context.
#include "api.h"
#include "context_captures.h"
#include "engine.h"

using namespace software_gpu;

namespace {

/// Everything of the context goes. Under the device's mutex.
void tear_down(Context& context) {
  Driver& driver = Driver::instance();
  context.drain();
  context.printed.flush();
  for (const auto& event : driver.events.all())
    if (&event->context == &context) driver.events.take(event.get());
  for (const auto& module : driver.modules.all()) {
    if (module->context != &context || module->is_library) continue;
    for (const auto& [name, kernel] : module->kernels) driver.kernels.take(kernel.get());
    driver.modules.take(module.get());
  }
  context.reset();
  const auto forget_peer = [&](Context& other) {
    std::lock_guard lock(other.peers_mutex);
    other.peers.erase(&context);
  };
  for (const auto& device : driver.devices) {
    device->memory.release_all(&context);
    forget_peer(device->context);
  }
  for (const auto& other : driver.contexts.all()) forget_peer(*other);
}

size_t default_limit(CUlimit limit) {
  switch (limit) {
    case CU_LIMIT_STACK_SIZE:
      return 1024;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      return 1 << 20;
    case CU_LIMIT_MALLOC_HEAP_SIZE:
      return 8 << 20;
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
      return 64;
    default:
      return 0;
  }
}

/// What lies below the current context.
std::vector<ContextHandle>& context_stack() {
  static thread_local std::vector<ContextHandle> stack;
  return stack;
}

void pop_context() {
  current() = context_stack().empty() ? ContextHandle{} : context_stack().back();
  if (!context_stack().empty()) context_stack().pop_back();
}

CUresult synchronize(const ContextHandle& which) {
  RETURN_IF_FAILED(which.context->sticky_error());
  RETURN_IF_FAILED(check_capture_safe(*which.context));
  RETURN_IF_FAILED(refuse_captures(*which.context, which.green));
  which.context->drain(which.green);
  return finish_synchronization(*which.context);
}

CUresult check_affinity(const CUexecAffinityParam* params, int n) {
  if (n > 0 && !params) return CUDA_ERROR_INVALID_VALUE;
  return n <= 0 ? CUDA_SUCCESS : CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

constexpr unsigned VALID_FLAGS =
    CU_CTX_SCHED_MASK | CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX | CU_CTX_SYNC_MEMOPS;

}  // namespace

SOFTWARE_GPU_API cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice ordinal) {
  Device* device;
  RETURN_IF_FAILED(find(ordinal, &device));
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(device->mutex);
  ++device->n_retained;
  *context = reinterpret_cast<CUcontext>(&device->context);
  return CUDA_SUCCESS;
}

/// As on driver 580 the green contexts that live keep it. Under the device's mutex.
static size_t n_green(Device& device) {
  std::lock_guard lock(device.context.per_thread_mutex);
  return device.context.greens.size();
}

CUresult software_gpu::release_primary(Device& device) {
  std::lock_guard lock(device.mutex);
  if (device.n_retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (device.n_retained == n_green(device)) return CUDA_ERROR_NOT_PERMITTED;
  if (--device.n_retained == 0) tear_down(device.context);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
  Device* device;
  RETURN_IF_FAILED(find(ordinal, &device));
  return release_primary(*device);
}

SOFTWARE_GPU_API cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
  Device* device;
  RETURN_IF_FAILED(find(ordinal, &device));
  std::lock_guard lock(device->mutex);
  if (n_green(*device) > 0) return CUDA_ERROR_NOT_PERMITTED;
  tear_down(device->context);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned* flags, int* active) {
  Device* device;
  RETURN_IF_FAILED(find(ordinal, &device));
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(device->mutex);
  *flags = device->context.flags;
  *active = device->n_retained != 0;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags) {
  Device* device;
  RETURN_IF_FAILED(find(ordinal, &device));
  if (flags & ~VALID_FLAGS) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(device->mutex);
  device->context.flags = flags;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuCtxCreate_v2(CUcontext* handle, unsigned flags, CUdevice ordinal) {
  Device* device;
  RETURN_IF_FAILED(find(ordinal, &device));
  RETURN_IF_FAILED(enter_without_error());
  if (!handle || flags & ~VALID_FLAGS) return CUDA_ERROR_INVALID_VALUE;
  auto context = std::make_shared<Context>(*device);
  context->flags = flags;
  *handle = reinterpret_cast<CUcontext>(context.get());
  context_stack().push_back(current());
  current() = {context.get()};
  Driver::instance().contexts.add(std::move(context));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuCtxCreate_v3(CUcontext* handle, CUexecAffinityParam* params, int n,
                                unsigned flags, CUdevice ordinal) {
  RETURN_IF_FAILED(enter_without_context());
  RETURN_IF_FAILED(check_affinity(params, n));
  return cuCtxCreate_v2(handle, flags, ordinal);
}

SOFTWARE_GPU_API cuCtxCreate_v4(CUcontext* handle, CUctxCreateParams* params, unsigned flags,
                                CUdevice ordinal) {
  RETURN_IF_FAILED(enter_without_context());
  if (!params) return cuCtxCreate_v2(handle, flags, ordinal);
  if (params->execAffinityParams && params->cigParams) return CUDA_ERROR_INVALID_VALUE;
  if (params->cigParams) return CUDA_ERROR_NOT_SUPPORTED;
  return cuCtxCreate_v3(handle, params->execAffinityParams, params->numExecAffinityParams, flags,
                        ordinal);
}

SOFTWARE_GPU_API cuDeviceGetExecAffinitySupport(int* supported, CUexecAffinityType,
                                                CUdevice ordinal) {
  Device* device;
  RETURN_IF_FAILED(find(ordinal, &device));
  if (!supported) return CUDA_ERROR_INVALID_VALUE;
  *supported = 0;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuCtxGetExecAffinity(CUexecAffinityParam* affinity, CUexecAffinityType type) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  if (!affinity) return CUDA_ERROR_INVALID_VALUE;
  affinity->type = type;
  affinity->param.smCount.val = n_cores();
  return type == CU_EXEC_AFFINITY_TYPE_SM_COUNT ? CUDA_SUCCESS
                                                : CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

// The object stays in the table: threads may still have it current.
SOFTWARE_GPU_API cuCtxDestroy_v2(CUcontext handle) {
  RETURN_IF_FAILED(enter_without_context());
  const auto context = Driver::instance().contexts.find(handle);
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  if (context->destroyed.exchange(true)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (current_context() == context.get()) pop_context();
  std::lock_guard lock(context->device.mutex);
  tear_down(*context);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuCtxPushCurrent_v2(CUcontext handle) {
  RETURN_IF_FAILED(enter_without_context());
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  const ContextHandle found = find_context(handle);
  if (!found.context) return CUDA_ERROR_INVALID_CONTEXT;
  context_stack().push_back(current());
  current() = found;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuCtxPopCurrent_v2(CUcontext* handle) {
  RETURN_IF_FAILED(enter_without_context());
  if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle) *handle = current().handle();
  pop_context();
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuCtxSetCurrent(CUcontext handle) {
  RETURN_IF_FAILED(enter_without_context());
  const ContextHandle found = find_context(handle);
  if (handle && !found.context) return CUDA_ERROR_INVALID_CONTEXT;
  current() = found;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuCtxGetCurrent(CUcontext* handle) {
  RETURN_IF_FAILED(enter_without_context());
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  *handle = current().handle();
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuCtxGetDevice(CUdevice* ordinal) {
  RETURN_IF_FAILED(enter_without_context());
  if (!ordinal) return CUDA_ERROR_INVALID_VALUE;
  if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
  *ordinal = current_context()->device.ordinal;
  return CUDA_SUCCESS;
}

#undef cuCtxSynchronize
SOFTWARE_GPU_API cuCtxSynchronize() {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  return synchronize(current());
}

SOFTWARE_GPU_API cuCtxSynchronize_v2(CUcontext handle) {
  RETURN_IF_FAILED(enter_without_context());
  if (!handle) return cuCtxSynchronize();
  const ContextHandle found = find_context(handle);
  return found.context ? synchronize(found) : CUDA_ERROR_INVALID_CONTEXT;
}

SOFTWARE_GPU_API cuCtxGetId(CUcontext handle, unsigned long long* id) {
  RETURN_IF_FAILED(enter_without_context());
  const ContextHandle found = handle ? find_context(handle) : current();
  if (!found.context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = found.green ? found.green->id : found.context->id;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  if (least) *least = Stream::LEAST_PRIORITY;
  if (greatest) *greatest = Stream::GREATEST_PRIORITY;
  return CUDA_SUCCESS;
}

CUresult Context::find_heap(std::shared_ptr<DeviceHeap>* found) {
  std::lock_guard lock(order_mutex);
  if (!heap) {
    const auto limit = limits.find(CU_LIMIT_MALLOC_HEAP_SIZE);
    const size_t n_bytes =
        limit == limits.end() ? default_limit(CU_LIMIT_MALLOC_HEAP_SIZE) : limit->second;
    uint64_t base = 0;
    RETURN_IF_FAILED(device.memory.allocate(n_bytes, MemoryKind::MODULE, 0, &base));
    heap = std::make_shared<DeviceHeap>(device.memory, base, n_bytes);
  }
  *found = heap;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuCtxGetLimit(size_t* value, CUlimit limit) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  if (!value || static_cast<unsigned>(limit) >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  if (default_limit(limit) == 0) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  std::lock_guard lock(context->order_mutex);
  const auto found = context->limits.find(limit);
  *value = found == context->limits.end() ? default_limit(limit) : found->second;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuCtxSetLimit(CUlimit limit, size_t value) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  RETURN_IF_FAILED(check_capture_safe(*context));
  if (static_cast<unsigned>(limit) >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  if (default_limit(limit) == 0) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  std::lock_guard lock(context->order_mutex);
  if (limit == CU_LIMIT_MALLOC_HEAP_SIZE && (context->heap || value == 0))
    return CUDA_ERROR_INVALID_VALUE;
  context->limits[limit] = value;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
  RETURN_IF_FAILED(enter_without_context());
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  if (handle ? !context_of(handle) : !current_context()) return CUDA_ERROR_INVALID_CONTEXT;
  *version = 3020;  // of contexts since CUDA 3.2, as natively
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuCtxGetFlags(unsigned* flags) {
  RETURN_IF_FAILED(enter_without_context());
  const Context* const context = current_context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  // As on driver 580, where a primary context maps host memory whatever it was asked for.
  const bool is_primary = context == &context->device.context;
  *flags = context->flags | (is_primary ? unsigned{CU_CTX_MAP_HOST} : 0);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuCtxSetFlags(unsigned flags) {
  RETURN_IF_FAILED(enter_without_context());
  Context* const context = current_context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (flags & ~VALID_FLAGS) return CUDA_ERROR_INVALID_VALUE;
  context->flags = flags;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuCtxGetCacheConfig(CUfunc_cache* config) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  *config = context->cache_config;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuCtxSetCacheConfig(CUfunc_cache config) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  RETURN_IF_FAILED(check_capture_safe(*context));
  if (static_cast<unsigned>(config) > CU_FUNC_CACHE_PREFER_EQUAL) return CUDA_ERROR_INVALID_VALUE;
  context->cache_config = config;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  *config = context->shared_config;
  return CUDA_SUCCESS;
}

// The banks of a GPU since Maxwell have one size: accepted, without effect.
SOFTWARE_GPU_API cuCtxSetSharedMemConfig(CUsharedconfig config) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  RETURN_IF_FAILED(check_capture_safe(*context));
  const bool is_known = static_cast<unsigned>(config) <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE;
  return is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SOFTWARE_GPU_API cuCtxResetPersistingL2Cache() {
  Context* context;
  return enter(&context);
}
