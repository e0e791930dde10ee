// SPDX-License-Identifier: Apache-2.0
// Device memory, copies and sets. A device address that the guest has not reserved never leaves
// here.
#include "control.h"
#include "generated/handlers.gen.h"
#include "kvgpu/calls.h"

namespace kvgpu::worker {

namespace {

template <typename Set>
CUresult set(Session& session, const Task& task, uint64_t element_bytes, Set driver_call) {
  wire::Memset body;
  if (!task.read(&body)) session.violation(task);
  if (body.n > UINT64_MAX / element_bytes ||
      !session.is_guest_memory(body.dst, body.n * element_bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return driver_call(body.dst, body.value, body.n, task.stream->raw);
}

// Bytes from the first to the last one of some rows; false: more than there are addresses.
bool extent_bytes(uint64_t pitch_bytes, uint64_t width_bytes, uint64_t height, uint64_t* bytes) {
  uint64_t before_last;
  return height != 0 && !__builtin_mul_overflow(pitch_bytes, height - 1, &before_last) &&
         !__builtin_add_overflow(before_last, width_bytes, bytes);
}

template <typename Set>
CUresult set_rows(Session& session, const Task& task, uint64_t element_bytes, Set driver_call) {
  wire::Memset2D body;
  if (!task.read(&body)) session.violation(task);
  uint64_t width_bytes, bytes;
  if (__builtin_mul_overflow(body.width, element_bytes, &width_bytes) ||
      !extent_bytes(body.pitch_bytes, width_bytes, body.height, &bytes) ||
      !session.is_guest_memory(body.dst, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return driver_call(body, task.stream->raw);
}

}  // namespace

CUresult mem_alloc_v2(Session& session, const Task& task, ReplyWriter& reply) {
  wire::MemAlloc body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUdeviceptr dptr = 0;
  if (const CUresult bad = session.driver->cuMemAlloc_v2(&dptr, body.bytes)) return bad;
  session.add_device_range(dptr, {body.bytes, body.context});
  reply.put(wire::MemAllocated{dptr});
  return CUDA_SUCCESS;
}

CUresult mem_alloc_pitch_v2(Session& session, const Task& task, ReplyWriter& reply) {
  wire::MemAllocPitch body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUdeviceptr dptr = 0;
  size_t pitch_bytes = 0;
  const CUresult result = session.driver->cuMemAllocPitch_v2(&dptr, &pitch_bytes, body.width_bytes,
                                                             body.height, body.element_bytes);
  if (result != CUDA_SUCCESS) return result;
  session.add_device_range(dptr, {pitch_bytes * body.height, body.context});
  reply.put(wire::MemAllocatedPitch{dptr, pitch_bytes});
  return CUDA_SUCCESS;
}

CUresult mem_free_v2(Session& session, const Task& task, ReplyWriter&) {
  wire::MemFree body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  // Forgotten first: once it is free another thread may be given the same address.
  const auto range = session.remove_device_range(body.dptr);
  for (const ShareKind kind : {ShareKind::MEMORY, ShareKind::POINTER}) {
    session.control->shares.remove(kind, body.dptr);
  }
  const CUresult result = session.driver->cuMemFree_v2(body.dptr);
  if (result != CUDA_SUCCESS && range.bytes != 0) session.add_device_range(body.dptr, range);
  return result;
}

CUresult memcpy_htod_async_v2(Session& session, const Task& task, ReplyWriter&) {
  wire::Copy body;
  if (!task.read(&body)) session.violation(task);
  if (!session.is_session_memory(body.src, body.bytes)) session.violation(task);
  if (!session.is_guest_memory(body.dst, body.bytes)) return CUDA_ERROR_INVALID_VALUE;
  return session.driver->cuMemcpyHtoDAsync_v2(body.dst, reinterpret_cast<const void*>(body.src),
                                              body.bytes, task.stream->raw);
}

CUresult memcpy_dtoh_async_v2(Session& session, const Task& task, ReplyWriter&) {
  wire::Copy body;
  if (!task.read(&body)) session.violation(task);
  if (!session.is_session_memory(body.dst, body.bytes)) session.violation(task);
  if (!session.is_guest_memory(body.src, body.bytes)) return CUDA_ERROR_INVALID_VALUE;
  return session.driver->cuMemcpyDtoHAsync_v2(reinterpret_cast<void*>(body.dst), body.src,
                                              body.bytes, task.stream->raw);
}

CUresult memcpy_dtod_async_v2(Session& session, const Task& task, ReplyWriter&) {
  wire::Copy body;
  if (!task.read(&body)) session.violation(task);
  if (!session.is_guest_memory(body.dst, body.bytes) ||
      !session.is_guest_memory(body.src, body.bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return session.driver->cuMemcpyDtoDAsync_v2(body.dst, body.src, body.bytes, task.stream->raw);
}

CUresult memcpy_2d_async_v2(Session& session, const Task& task, ReplyWriter&) {
  wire::Copy2D body;
  if (!task.read(&body)) session.violation(task);
  uint64_t dst_bytes, src_bytes;
  if (!extent_bytes(body.dst_pitch_bytes, body.width_bytes, body.height, &dst_bytes) ||
      !extent_bytes(body.src_pitch_bytes, body.width_bytes, body.height, &src_bytes) ||
      !session.is_guest_memory(body.dst, dst_bytes) ||
      !session.is_guest_memory(body.src, src_bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUDA_MEMCPY2D copy{};
  const bool to_host = session.is_session_memory(body.dst, dst_bytes);
  copy.dstMemoryType = to_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  copy.dstHost = reinterpret_cast<void*>(body.dst);
  copy.dstDevice = body.dst;
  copy.dstPitch = body.dst_pitch_bytes;
  const bool from_host = session.is_session_memory(body.src, src_bytes);
  copy.srcMemoryType = from_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  copy.srcHost = reinterpret_cast<const void*>(body.src);
  copy.srcDevice = body.src;
  copy.srcPitch = body.src_pitch_bytes;
  copy.WidthInBytes = body.width_bytes;
  copy.Height = body.height;
  return session.driver->cuMemcpy2DAsync_v2(&copy, task.stream->raw);
}

CUresult memset_d2d8_async(Session& session, const Task& task, ReplyWriter&) {
  return set_rows(session, task, 1, [&](const wire::Memset2D& b, CUstream stream) {
    const auto value = static_cast<unsigned char>(b.value);
    return session.driver->cuMemsetD2D8Async(b.dst, b.pitch_bytes, value, b.width, b.height,
                                             stream);
  });
}

CUresult memset_d2d16_async(Session& session, const Task& task, ReplyWriter&) {
  return set_rows(session, task, 2, [&](const wire::Memset2D& b, CUstream stream) {
    const auto value = static_cast<unsigned short>(b.value);
    return session.driver->cuMemsetD2D16Async(b.dst, b.pitch_bytes, value, b.width, b.height,
                                              stream);
  });
}

CUresult memset_d2d32_async(Session& session, const Task& task, ReplyWriter&) {
  return set_rows(session, task, 4, [&](const wire::Memset2D& b, CUstream stream) {
    return session.driver->cuMemsetD2D32Async(b.dst, b.pitch_bytes, b.value, b.width, b.height,
                                              stream);
  });
}

CUresult memset_d8_async(Session& session, const Task& task, ReplyWriter&) {
  return set(session, task, 1, [&](CUdeviceptr dst, uint32_t value, size_t n, CUstream stream) {
    return session.driver->cuMemsetD8Async(dst, static_cast<unsigned char>(value), n, stream);
  });
}

CUresult memset_d16_async(Session& session, const Task& task, ReplyWriter&) {
  return set(session, task, 2, [&](CUdeviceptr dst, uint32_t value, size_t n, CUstream stream) {
    return session.driver->cuMemsetD16Async(dst, static_cast<unsigned short>(value), n, stream);
  });
}

CUresult memset_d32_async(Session& session, const Task& task, ReplyWriter&) {
  return set(session, task, 4, [&](CUdeviceptr dst, uint32_t value, size_t n, CUstream stream) {
    return session.driver->cuMemsetD32Async(dst, value, n, stream);
  });
}

// Attributes of which the driver writes at most eight bytes, about memory of the guest.
CUresult pointer_info(Session& session, const Task& task, ReplyWriter& reply) {
  wire::PointerInfo body;
  if (!task.read(&body)) session.violation(task);
  switch (body.attribute) {
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      break;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (!session.is_guest_memory(body.address, 1)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = session.enter(body.context)) return bad;
  uint64_t value = 0;
  const CUresult result = session.driver->cuPointerGetAttribute(
      &value, static_cast<CUpointer_attribute>(body.attribute), body.address);
  reply.put(wire::Value64{value});
  return result;
}

}  // namespace kvgpu::worker
