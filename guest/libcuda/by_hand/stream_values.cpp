// SPDX-License-Identifier: Apache-2.0
// Memory operations of streams, and their attributes.
#include "stream_values.h"

#include <cstring>

#include "copies.h"
#include "enqueue.h"
#include "generated/api.gen.h"
#include "memory_map.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

// Driver 580 reads and writes no memory of a pool, unless a graph does.
bool may_hold_value(const Enqueue& enqueue, CUdeviceptr address, size_t bytes) {
  const auto range = memory_map().find(address, bytes);
  return range.has_value() && (range->kind != MemoryKind::POOL || enqueue.capture() != nullptr);
}

template <typename Value>
CUresult value_operation(wire::Op op, CUstream stream, CUdeviceptr address, Value value,
                         unsigned flags, unsigned known_flags) {
  const Enqueue enqueue(stream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  if ((flags & ~known_flags) != 0 || address % sizeof value != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!may_hold_value(enqueue, address, sizeof value)) return CUDA_ERROR_INVALID_VALUE;
  const Operand at = operand(address, sizeof value);
  ask_where_needed(enqueue, at, at);
  const wire::StreamValue body{0, 0, address, value, flags, 0};
  // Not every device can do what a flag asks for.
  return flags == 0 ? enqueue.submit(op, body) : enqueue.submit_and_ask(op, body);
}

// CUDA 13.0 cuda.h: the first forms work where the driver was told to have them, by an option of
// its kernel module.
CUresult first_form_allowed(CUstream stream) {
  const Enqueue enqueue(stream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  const int device = enqueue.stream().context->device;
  const auto& attributes = Session::get().devices()[static_cast<size_t>(device)].info.attributes;
  if (attributes[CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1] != 0) return CUDA_SUCCESS;
  if (enqueue.capture() == nullptr) {
    const CUresult bad = unsafe_call_allowed();
    return bad != CUDA_SUCCESS ? bad : CUDA_ERROR_NOT_SUPPORTED;
  }
  return break_capture(enqueue.stream(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

constexpr unsigned WAIT_FLAGS =
    CU_STREAM_WAIT_VALUE_EQ | CU_STREAM_WAIT_VALUE_AND | CU_STREAM_WAIT_VALUE_FLUSH;
constexpr unsigned WRITE_FLAGS = CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;

bool is_served(const CUstreamBatchMemOpParams& params) {
  switch (params.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      return memory_map().find(params.waitValue.address, 4).has_value();
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return memory_map().find(params.waitValue.address, 8).has_value();
    case CU_STREAM_MEM_OP_BARRIER:
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      return true;
    default:
      return false;
  }
}

// Attributes are of the stream as it is now: in ring order, with a reply.
CUresult attribute_stream(CUstream handle, const Call& call, Stream** stream) {
  if (call.status() != CUDA_SUCCESS) return call.status();
  CUresult error = CUDA_SUCCESS;
  *stream = find_unbroken(handle, &error);
  return error;
}

CUresult check_attribute(CUstreamAttrID id) {
  if (wire::stream_attribute_is_plain(static_cast<uint32_t>(id))) return CUDA_SUCCESS;
  if (id == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW) {
    return static_cast<CUresult>(refuse_part("the access policy window of a stream"));
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// The driver keeps it within its range; cuStreamGetPriority is answered here.
CUresult take_over_priority(const Call& call, Stream& stream) {
  const wire::StreamAttribute body{stream.handle, CU_LAUNCH_ATTRIBUTE_PRIORITY, 0, {}};
  wire::StreamAttributeValue out;
  const CUresult result = call.sync(wire::Op::cuStreamGetAttribute, body, &out);
  if (result != CUDA_SUCCESS) return result;
  CUstreamAttrValue value;
  std::memcpy(&value, out.value, sizeof value);
  stream.priority.store(value.priority, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult stream_write_value32_v2(CUstream s, CUdeviceptr addr, cuuint32_t value, unsigned flags) {
  return value_operation(wire::Op::cuStreamWriteValue32_v2, s, addr, value, flags, WRITE_FLAGS);
}
CUresult stream_write_value64_v2(CUstream s, CUdeviceptr addr, cuuint64_t value, unsigned flags) {
  return value_operation(wire::Op::cuStreamWriteValue64_v2, s, addr, value, flags, WRITE_FLAGS);
}
CUresult stream_wait_value32_v2(CUstream s, CUdeviceptr addr, cuuint32_t value, unsigned flags) {
  return value_operation(wire::Op::cuStreamWaitValue32_v2, s, addr, value, flags, WAIT_FLAGS);
}
CUresult stream_wait_value64_v2(CUstream s, CUdeviceptr addr, cuuint64_t value, unsigned flags) {
  return value_operation(wire::Op::cuStreamWaitValue64_v2, s, addr, value, flags, WAIT_FLAGS);
}
CUresult stream_write_value32(CUstream s, CUdeviceptr addr, cuuint32_t value, unsigned flags) {
  const CUresult bad = first_form_allowed(s);
  return bad != CUDA_SUCCESS ? bad : stream_write_value32_v2(s, addr, value, flags);
}
CUresult stream_write_value64(CUstream s, CUdeviceptr addr, cuuint64_t value, unsigned flags) {
  const CUresult bad = first_form_allowed(s);
  return bad != CUDA_SUCCESS ? bad : stream_write_value64_v2(s, addr, value, flags);
}
CUresult stream_wait_value32(CUstream s, CUdeviceptr addr, cuuint32_t value, unsigned flags) {
  const CUresult bad = first_form_allowed(s);
  return bad != CUDA_SUCCESS ? bad : stream_wait_value32_v2(s, addr, value, flags);
}
CUresult stream_wait_value64(CUstream s, CUdeviceptr addr, cuuint64_t value, unsigned flags) {
  const CUresult bad = first_form_allowed(s);
  return bad != CUDA_SUCCESS ? bad : stream_wait_value64_v2(s, addr, value, flags);
}

CUresult check_batch(const CUstreamBatchMemOpParams* params, unsigned n, unsigned flags) {
  if (n > wire::MAX_STREAM_OPERATIONS || (n > 0 && params == nullptr) || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (unsigned i = 0; i < n; ++i) {
    if (!is_served(params[i])) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult stream_batch_mem_op_v2(CUstream stream, unsigned int count,
                                CUstreamBatchMemOpParams* paramArray, unsigned int flags) {
  const Enqueue enqueue(stream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  if (const CUresult bad = check_batch(paramArray, count, flags)) return bad;
  for (unsigned i = 0; i < count; ++i) {
    const CUstreamBatchMemOpParams& params = paramArray[i];
    const bool has_address = params.operation != CU_STREAM_MEM_OP_BARRIER &&
                             params.operation != CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
    if (has_address && !may_hold_value(enqueue, params.waitValue.address, 4)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  static_assert(sizeof(CUstreamBatchMemOpParams) == sizeof(wire::StreamOperation));
  const Part list{paramArray, static_cast<uint32_t>(count * sizeof(wire::StreamOperation))};
  return enqueue.submit_and_ask(wire::Op::cuStreamBatchMemOp_v2,
                                wire::StreamOperations{0, 0, count, flags}, list);
}
CUresult stream_batch_mem_op(CUstream stream, unsigned int count,
                             CUstreamBatchMemOpParams* paramArray, unsigned int flags) {
  if (count > wire::MAX_STREAM_OPERATIONS) return CUDA_ERROR_INVALID_VALUE;
  const CUresult bad = first_form_allowed(stream);
  return bad != CUDA_SUCCESS ? bad : stream_batch_mem_op_v2(stream, count, paramArray, flags);
}

CUresult stream_get_attribute(CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Call call(CaptureRule::ALLOWED, context_of(hStream));
  Stream* stream;
  if (const CUresult bad = attribute_stream(hStream, call, &stream)) return bad;
  if (const CUresult bad = check_attribute(attr)) return bad;
  wire::StreamAttribute body{stream->handle, static_cast<uint32_t>(attr), 0, {}};
  wire::StreamAttributeValue out;
  const CUresult result = call.sync(wire::Op::cuStreamGetAttribute, body, &out);
  static_assert(sizeof(CUstreamAttrValue) == sizeof out.value);
  if (result == CUDA_SUCCESS) std::memcpy(value, out.value, sizeof out.value);
  return result;
}

CUresult stream_set_attribute(CUstream hStream, CUstreamAttrID attr,
                              const CUstreamAttrValue* param) {
  if (param == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Call call(CaptureRule::ALLOWED, context_of(hStream));
  Stream* stream;
  if (const CUresult bad = attribute_stream(hStream, call, &stream)) return bad;
  if (const CUresult bad = check_attribute(attr)) return bad;
  wire::StreamAttribute body{stream->handle, static_cast<uint32_t>(attr), 0, {}};
  std::memcpy(body.value, param, sizeof body.value);
  const CUresult result = call.sync(wire::Op::cuStreamSetAttribute, body);
  if (result != CUDA_SUCCESS || attr != CU_LAUNCH_ATTRIBUTE_PRIORITY) return result;
  return take_over_priority(call, *stream);
}

CUresult stream_copy_attributes(CUstream dstStream, CUstream srcStream) {
  const Call call(CaptureRule::ALLOWED, context_of(dstStream));
  Stream *to, *from;
  if (const CUresult bad = attribute_stream(dstStream, call, &to)) return bad;
  if (const CUresult bad = attribute_stream(srcStream, call, &from)) return bad;
  const wire::StreamPair body{to->handle, from->handle};
  const CUresult result = call.sync(wire::Op::cuStreamCopyAttributes, body);
  return result == CUDA_SUCCESS ? take_over_priority(call, *to) : result;
}

}  // namespace kvgpu::guest
