// SPDX-License-Identifier: Apache-2.0
// Attributes of streams, and memory operations in batches.
#include "api.h"

using namespace software_gpu;

namespace {

bool is_known(CUstreamAttrID id) {
  return id == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY || id == CU_LAUNCH_ATTRIBUTE_PRIORITY ||
         id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP ||
         id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN ||
         id == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;
}

CUresult one_operation(CUstream stream, const CUstreamBatchMemOpParams& p) {
  const auto& wait = p.waitValue;
  const auto& write = p.writeValue;
  switch (p.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      return cuStreamWaitValue32_v2(stream, wait.address, wait.value, wait.flags);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return cuStreamWaitValue64_v2(stream, wait.address, wait.value64, wait.flags);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      return cuStreamWriteValue32_v2(stream, write.address, write.value, write.flags);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return cuStreamWriteValue64_v2(stream, write.address, write.value64, write.flags);
    case CU_STREAM_MEM_OP_BARRIER:
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      return CUDA_SUCCESS;  // each operation here ends before the next one begins
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

SOFTWARE_GPU_API cuStreamBatchMemOp_v2(CUstream stream, unsigned n, CUstreamBatchMemOpParams* list,
                                       unsigned flags) {
  if (n == 0 || n > 256 || !list || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < n; ++i) RETURN_IF_FAILED(one_operation(stream, list[i]));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuStreamSetAttribute(CUstream handle, CUstreamAttrID id,
                                      const CUstreamAttrValue* value) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  if (!value || !is_known(id)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(context->order_mutex);
  stream->attributes[id] = *value;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuStreamGetAttribute(CUstream handle, CUstreamAttrID id,
                                      CUstreamAttrValue* value) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(*context, handle, &stream));
  if (!value || !is_known(id)) return CUDA_ERROR_INVALID_VALUE;
  *value = {};
  if (id == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) value->syncPolicy = CU_SYNC_POLICY_AUTO;
  std::lock_guard lock(context->order_mutex);
  const auto found = stream->attributes.find(id);
  if (found != stream->attributes.end()) *value = found->second;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuStreamCopyAttributes(CUstream to_handle, CUstream from_handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> to, from;
  RETURN_IF_FAILED(find_stream(*context, to_handle, &to));
  RETURN_IF_FAILED(find_stream(*context, from_handle, &from));
  std::lock_guard lock(context->order_mutex);
  to->attributes = from->attributes;
  return CUDA_SUCCESS;
}
