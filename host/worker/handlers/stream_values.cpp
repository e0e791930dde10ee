// SPDX-License-Identifier: Apache-2.0
// Memory operations of streams, and their attributes. Where they write and wait is the guest's own
// memory: never the worker's, never the progress words.
#include "generated/handlers.gen.h"
#include "graph_nodes.h"
#include "kvgpu/calls.h"

namespace kvgpu::worker {

bool is_allowed(const Session& session, const CUstreamBatchMemOpParams& params) {
  switch (params.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      return session.is_guest_memory(params.waitValue.address, 4);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return session.is_guest_memory(params.waitValue.address, 8);
    case CU_STREAM_MEM_OP_BARRIER:
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      return true;
    default:
      return false;
  }
}

namespace {

template <typename Value, typename Call>
CUresult value_operation(Session& session, const Task& task, Call call) {
  wire::StreamValue body;
  if (!task.read(&body)) session.violation(task);
  if (!session.is_guest_memory(body.address, sizeof(Value))) return CUDA_ERROR_INVALID_VALUE;
  return call(task.stream->raw, body.address, static_cast<Value>(body.value), body.flags);
}

CUresult enter_stream(Session& session, const Task& task, wire::Handle handle,
                      std::shared_ptr<Stream>* stream) {
  *stream = session.handles.stream(handle);
  if (*stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!is_for_device(task, *(*stream)->context)) session.violation(task);
  return session.enter(**stream);
}

}  // namespace

CUresult stream_write_value32_v2(Session& session, const Task& task, ReplyWriter&) {
  return value_operation<cuuint32_t>(session, task, session.driver->cuStreamWriteValue32_v2);
}
CUresult stream_write_value64_v2(Session& session, const Task& task, ReplyWriter&) {
  return value_operation<cuuint64_t>(session, task, session.driver->cuStreamWriteValue64_v2);
}
CUresult stream_wait_value32_v2(Session& session, const Task& task, ReplyWriter&) {
  return value_operation<cuuint32_t>(session, task, session.driver->cuStreamWaitValue32_v2);
}
CUresult stream_wait_value64_v2(Session& session, const Task& task, ReplyWriter&) {
  return value_operation<cuuint64_t>(session, task, session.driver->cuStreamWaitValue64_v2);
}

CUresult stream_batch_mem_op_v2(Session& session, const Task& task, ReplyWriter&) {
  wire::StreamOperations body;
  if (!task.read(&body)) session.violation(task);
  const auto list = task.after<wire::StreamOperations>();
  if (body.n > wire::MAX_STREAM_OPERATIONS ||
      list.size() < body.n * sizeof(wire::StreamOperation)) {
    session.violation(task);
  }
  static_assert(sizeof(CUstreamBatchMemOpParams) == sizeof(wire::StreamOperation));
  CUstreamBatchMemOpParams operations[wire::MAX_STREAM_OPERATIONS];
  std::memcpy(operations, list.data(), body.n * sizeof(wire::StreamOperation));
  for (uint32_t i = 0; i < body.n; ++i) {
    if (!is_allowed(session, operations[i])) return CUDA_ERROR_INVALID_VALUE;
  }
  return session.driver->cuStreamBatchMemOp_v2(task.stream->raw, body.n, operations, body.flags);
}

CUresult stream_get_attribute(Session& session, const Task& task, ReplyWriter& reply) {
  wire::StreamAttribute body;
  if (!task.read(&body)) session.violation(task);
  if (!wire::stream_attribute_is_plain(body.id)) session.violation(task);
  std::shared_ptr<Stream> stream;
  if (const CUresult bad = enter_stream(session, task, body.stream, &stream)) return bad;
  CUstreamAttrValue value{};
  const CUresult result = session.driver->cuStreamGetAttribute(
      stream->raw, static_cast<CUstreamAttrID>(body.id), &value);
  wire::StreamAttributeValue out;
  std::memcpy(out.value, &value, sizeof out.value);
  reply.put(out);
  return result;
}

CUresult stream_set_attribute(Session& session, const Task& task, ReplyWriter&) {
  wire::StreamAttribute body;
  if (!task.read(&body)) session.violation(task);
  if (!wire::stream_attribute_is_plain(body.id)) session.violation(task);
  std::shared_ptr<Stream> stream;
  if (const CUresult bad = enter_stream(session, task, body.stream, &stream)) return bad;
  CUstreamAttrValue value;
  std::memcpy(&value, body.value, sizeof value);
  stream->has_attributes = true;
  return session.driver->cuStreamSetAttribute(stream->raw, static_cast<CUstreamAttrID>(body.id),
                                              &value);
}

CUresult stream_copy_attributes(Session& session, const Task& task, ReplyWriter&) {
  wire::StreamPair body;
  if (!task.read(&body)) session.violation(task);
  std::shared_ptr<Stream> to, from;
  if (const CUresult bad = enter_stream(session, task, body.to, &to)) return bad;
  if (const CUresult bad = enter_stream(session, task, body.from, &from)) return bad;
  to->has_attributes = true;
  return session.driver->cuStreamCopyAttributes(to->raw, from->raw);
}

}  // namespace kvgpu::worker
