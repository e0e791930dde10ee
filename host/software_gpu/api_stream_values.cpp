// SPDX-License-Identifier: Apache-2.0
// Attributes of streams, and memory operations in batches.
#include <sched.h>
#include <time.h>

#include <type_traits>

#include "api.h"
#include "context_captures.h"

using namespace software_gpu;

namespace {

using Run = std::function<CUresult(Context&)>;

bool is_of_streams(CUstreamAttrID id) {
  return id == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY || id == CU_LAUNCH_ATTRIBUTE_PRIORITY ||
         id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP ||
         id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN ||
         id == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;
}

template <class T>
bool condition_holds(T current, T value, unsigned flags) {
  switch (flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return static_cast<std::make_signed_t<T>>(current - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return current == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (current & value) != 0;
    default:
      return static_cast<T>(~(current | value)) != 0;
  }
}

CUresult check_word(Context& context, CUdeviceptr address, size_t n_bytes) {
  if (address % n_bytes != 0 || !context.visible_memory()->covers(address, n_bytes, true))
    return CUDA_ERROR_INVALID_VALUE;
  // As on driver 580, not in memory of a pool.
  const auto allocation = Driver::instance().find(address);
  return allocation && allocation->pool ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

template <class T>
CUresult make_write(Context& context, CUdeviceptr address, T value, unsigned flags, Run* run) {
  if (flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(check_word(context, address, sizeof(T)));
  *run = [=](Context& c) {
    const auto hold = c.visible_memory();
    if (!hold->covers(address, sizeof(T), true)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    // release: pairs with whoever reads the word with acquire and then what came before it
    __atomic_store_n(reinterpret_cast<T*>(address), value, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
  };
  return CUDA_SUCCESS;
}

template <class T>
CUresult make_wait(Context& context, CUdeviceptr address, T value, unsigned flags, Run* run) {
  if (flags & ~(3u | CU_STREAM_WAIT_VALUE_FLUSH)) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(check_word(context, address, sizeof(T)));
  *run = [=](Context& c) {
    const auto hold = c.visible_memory();
    if (!hold->covers(address, sizeof(T), false)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    const timespec pause{0, 20'000};
    for (int spins = 0; c.sticky_error() == CUDA_SUCCESS; ++spins) {
      if (condition_holds(__atomic_load_n(reinterpret_cast<const T*>(address), __ATOMIC_ACQUIRE),
                          value, flags))
        break;
      if (spins < 64)
        sched_yield();
      else
        nanosleep(&pause, nullptr);
    }
    return CUDA_SUCCESS;
  };
  return CUDA_SUCCESS;
}

CUresult make_run(Context& context, const CUstreamBatchMemOpParams& p, Run* run) {
  const auto& wait = p.waitValue;
  const auto& write = p.writeValue;
  switch (p.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      return make_wait<cuuint32_t>(context, wait.address, wait.value, wait.flags, run);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return make_wait<cuuint64_t>(context, wait.address, wait.value64, wait.flags, run);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      return make_write<cuuint32_t>(context, write.address, write.value, write.flags, run);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return make_write<cuuint64_t>(context, write.address, write.value64, write.flags, run);
    case CU_STREAM_MEM_OP_BARRIER:
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      // Each operation here ends before the next one begins.
      *run = [](Context&) { return CUDA_SUCCESS; };
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult submit(CUstream handle, unsigned n, CUstreamBatchMemOpParams* list, unsigned flags) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_to_enqueue(*context, handle, &stream));
  Operation operation;
  RETURN_IF_FAILED(make_batch(*context, {nullptr, n, list, flags}, &operation));
  return context->submit(*stream, std::move(operation));
}

template <class T>
CUresult submit_one(CUstream stream, CUstreamBatchMemOpType type, CUdeviceptr address, T value,
                    unsigned flags) {
  CUstreamBatchMemOpParams p{};
  p.operation = type;
  p.waitValue.address = address;  // the struct of a write begins alike
  p.waitValue.value64 = value;
  p.waitValue.flags = flags;
  return submit(stream, 1, &p, 0);
}

}  // namespace

namespace software_gpu {

CUresult make_batch(Context& context, const CUDA_BATCH_MEM_OP_NODE_PARAMS& p,
                    Operation* operation) {
  RETURN_IF_FAILED(context.sticky_error());
  if (p.count > 256 || (p.count > 0 && !p.paramArray) || p.flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  std::vector<Run> runs(p.count);
  for (unsigned i = 0; i < p.count; ++i)
    RETURN_IF_FAILED(make_run(context, p.paramArray[i], &runs[i]));
  auto params = std::make_shared<NodeParams>();
  params->operations.assign(p.paramArray, p.paramArray + p.count);
  params->batch = p;
  params->batch.ctx = reinterpret_cast<CUcontext>(&context);
  params->batch.paramArray = params->operations.data();
  operation->type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  operation->run = [runs = std::move(runs)](Context& c) {
    for (const Run& run : runs) RETURN_IF_FAILED(run(c));
    return CUDA_SUCCESS;
  };
  operation->params = std::move(params);
  return CUDA_SUCCESS;
}

}  // namespace software_gpu

SOFTWARE_GPU_API cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                         unsigned flags) {
  return submit_one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, address, value, flags);
}
SOFTWARE_GPU_API cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                         unsigned flags) {
  return submit_one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, address, value, flags);
}
SOFTWARE_GPU_API cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                        unsigned flags) {
  return submit_one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, address, value, flags);
}
SOFTWARE_GPU_API cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                        unsigned flags) {
  return submit_one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, address, value, flags);
}
SOFTWARE_GPU_API cuStreamBatchMemOp_v2(CUstream stream, unsigned n, CUstreamBatchMemOpParams* list,
                                       unsigned flags) {
  return submit(stream, n, list, flags);
}

SOFTWARE_GPU_API cuStreamSetAttribute(CUstream handle, CUstreamAttrID id,
                                      const CUstreamAttrValue* value) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  if (!value || !is_of_streams(id)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(context->order_mutex);
  if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY)
    stream->priority =
        std::clamp(value->priority, Stream::GREATEST_PRIORITY, Stream::LEAST_PRIORITY);
  else
    stream->attributes[id] = *value;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuStreamGetAttribute(CUstream handle, CUstreamAttrID id,
                                      CUstreamAttrValue* value) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  if (!value || !is_of_streams(id)) return CUDA_ERROR_INVALID_VALUE;
  *value = {};
  if (id == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) value->syncPolicy = CU_SYNC_POLICY_AUTO;
  std::lock_guard lock(context->order_mutex);
  if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = stream->priority;
  const auto found = stream->attributes.find(id);
  if (found != stream->attributes.end()) *value = found->second;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuStreamCopyAttributes(CUstream to_handle, CUstream from_handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> to, from;
  RETURN_IF_FAILED(find_unbroken(*context, to_handle, &to));
  RETURN_IF_FAILED(find_unbroken(*context, from_handle, &from));
  std::lock_guard lock(context->order_mutex);
  to->attributes = from->attributes;
  to->priority = from->priority;
  return CUDA_SUCCESS;
}
