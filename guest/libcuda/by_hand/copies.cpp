// SPDX-License-Identifier: Apache-2.0
// Copies and sets. Pinned memory is copied where it is; pageable memory goes through the slab,
// piece by piece, while the GPU copies the piece before.
#include "copies.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "address_space.h"
#include "driver_waits.h"
#include "generated/api.gen.h"
#include "refuse.h"
#include "region_memory.h"
#include "staging.h"

namespace kvgpu::guest {

Operand operand(uint64_t address, uint64_t bytes) {
  const auto range = memory_map().find(address, bytes);
  if (!range) return {address};
  if (range->kind == MemoryKind::VIRTUAL) {
    // Nobody has access: then it is nothing that could be copied.
    if (range->readable == 0) return {.address = address, .may_be_refused = true};
    const Context* const context = current_context();
    const bool all = context != nullptr && (range->writable >> context->device & 1) != 0;
    return {address, address, true, false, range->sync_memops, !all};
  }
  const uint64_t gpu_address = range->gpu_address(address, bytes);
  Operand found{address, gpu_address, !range->is_host(), gpu_address == 0, range->sync_memops};
  found.is_managed = range->kind == MemoryKind::MANAGED;
  return found;
}

CUresult wait_for(const Enqueue& enqueue, uint64_t number) {
  const CUresult bad = Session::get().wait(enqueue.stream().word, number);
  return bad != CUDA_SUCCESS ? bad : DriverWaits::output().settle();
}

CUresult refuse_captured_pageable() {
  return static_cast<CUresult>(refuse_part("a copy of pageable host memory in a stream capture"));
}

CUresult settle_staged(const Enqueue& enqueue, const Operand& side) {
  if (!side.is_staged) return CUDA_SUCCESS;
  return synchronize_stream(enqueue.stream());
}

CUresult stage_to_device(const Enqueue& enqueue, CUdeviceptr dst, const std::byte* src,
                         size_t bytes) {
  Staging& staging = Staging::get();
  while (bytes > 0) {
    const size_t n = std::min<size_t>(bytes, Staging::CHUNK_BYTES);
    Staging::Piece piece;
    if (const CUresult bad = staging.allocate(n, &piece)) return bad;
    RegionMemory::get().copy_in(staging.data(piece), src, n);
    uint64_t number;
    const wire::Copy body{0, 0, dst, staging.address(piece), n};
    const CUresult result = enqueue.submit_marked(wire::Op::cuMemcpyHtoDAsync_v2, body, &number);
    if (result != CUDA_SUCCESS) {
      staging.release(piece);
      return result;
    }
    staging.release_at(piece, enqueue.stream(), number);
    dst += n;
    src += n;
    bytes -= n;
  }
  return CUDA_SUCCESS;
}

CUresult stage_from_device(const Enqueue& enqueue, std::span<const FromDevice> copies) {
  struct InFlight {
    Staging::Piece piece;
    uint64_t number;
    std::byte* dst;
    size_t bytes;
  };
  constexpr size_t MAX_IN_FLIGHT = 4 * Staging::CHUNK_BYTES;  // while one is copied out
  Staging& staging = Staging::get();
  std::deque<InFlight> in_flight;
  size_t n_in_flight = 0;
  FromDevice rest{};
  CUresult result = CUDA_SUCCESS;
  while (result == CUDA_SUCCESS) {
    for (; rest.bytes == 0 && !copies.empty(); copies = copies.subspan(1)) rest = copies.front();
    if (rest.bytes == 0 && in_flight.empty()) break;
    InFlight next{{}, 0, rest.dst, std::min<size_t>(rest.bytes, Staging::CHUNK_BYTES)};
    CUresult has_piece = CUDA_ERROR_NOT_READY;  // the pieces in flight come first
    if (rest.bytes > 0 && in_flight.empty()) {
      has_piece = staging.allocate(next.bytes, &next.piece);
    } else if (rest.bytes > 0 && n_in_flight + next.bytes <= MAX_IN_FLIGHT) {
      has_piece = staging.try_allocate(next.bytes, &next.piece);
    }
    if (has_piece == CUDA_SUCCESS) {
      const wire::Copy body{0, 0, staging.address(next.piece), rest.src, next.bytes};
      result = enqueue.submit_marked(wire::Op::cuMemcpyDtoHAsync_v2, body, &next.number);
      if (result != CUDA_SUCCESS) {
        staging.release(next.piece);
        break;
      }
      rest = {rest.dst + next.bytes, rest.src + next.bytes, rest.bytes - next.bytes};
      n_in_flight += next.bytes;
      in_flight.push_back(next);
      continue;
    }
    if (has_piece != CUDA_ERROR_NOT_READY) {
      result = has_piece;
      break;
    }
    const InFlight& first = in_flight.front();
    if ((result = wait_for(enqueue, first.number)) != CUDA_SUCCESS) break;
    RegionMemory::get().copy_out(first.dst, staging.data(first.piece), first.bytes);
    staging.release(first.piece);
    n_in_flight -= first.bytes;
    in_flight.pop_front();
  }
  // After an error the GPU may still write to these: they come back by their numbers.
  for (const InFlight& left : in_flight) {
    staging.release_at(left.piece, enqueue.stream(), left.number);
  }
  return result;
}

namespace {

template <typename Body>
CUresult copy_in_place(const Enqueue& enqueue, wire::Op op, const Body& body, Wait wait) {
  if (wait == Wait::NO || enqueue.capture() != nullptr) return enqueue.submit(op, body);
  uint64_t number;
  if (const CUresult bad = enqueue.submit_marked(op, body, &number)) return bad;
  return wait_for(enqueue, number);
}

CUresult copy_htod(CUdeviceptr dst, const void* src, size_t bytes, CUstream stream, Wait wait) {
  const Enqueue enqueue(stream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  if (bytes == 0) return CUDA_SUCCESS;
  const Operand to = operand(dst, bytes), from = operand(reinterpret_cast<uint64_t>(src), bytes);
  if (src == nullptr || to.is_pageable()) return CUDA_ERROR_INVALID_VALUE;
  if (from.is_device && !from.is_managed) return CUDA_ERROR_INVALID_VALUE;
  ask_where_needed(enqueue, to, from);
  if (!from.is_pageable()) {
    const wire::Copy body{0, 0, to.gpu_address, from.gpu_address, bytes};
    const auto op =
        from.is_managed ? wire::Op::cuMemcpyDtoDAsync_v2 : wire::Op::cuMemcpyHtoDAsync_v2;
    return copy_in_place(enqueue, op, body, wait);
  }
  if (enqueue.capture() != nullptr) return refuse_captured_pageable();
  if (const CUresult bad = settle_staged(enqueue, from)) return bad;
  // Once it is in the slab the source is the caller's again: natively, too, the call returns then.
  return stage_to_device(enqueue, to.gpu_address, static_cast<const std::byte*>(src), bytes);
}

CUresult copy_dtoh(void* dst, CUdeviceptr src, size_t bytes, CUstream stream, Wait wait) {
  const Enqueue enqueue(stream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  if (bytes == 0) return CUDA_SUCCESS;
  const Operand to = operand(reinterpret_cast<uint64_t>(dst), bytes), from = operand(src, bytes);
  if (dst == nullptr || from.is_pageable()) return CUDA_ERROR_INVALID_VALUE;
  if (to.is_device && !to.is_managed) return CUDA_ERROR_INVALID_VALUE;
  ask_where_needed(enqueue, to, from);
  if (!to.is_pageable()) {
    const wire::Copy body{0, 0, to.gpu_address, from.gpu_address, bytes};
    const auto op = to.is_managed ? wire::Op::cuMemcpyDtoDAsync_v2 : wire::Op::cuMemcpyDtoHAsync_v2;
    return copy_in_place(enqueue, op, body, wait);
  }
  if (enqueue.capture() != nullptr) return refuse_captured_pageable();
  const FromDevice copy{static_cast<std::byte*>(dst), from.gpu_address, bytes};
  return stage_from_device(enqueue, {&copy, 1});
}

CUresult copy_dtod(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream,
                   Wait wait_where_asked = Wait::NO) {
  const Enqueue enqueue(stream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  if (bytes == 0) return CUDA_SUCCESS;
  const Operand to = operand(dst, bytes), from = operand(src, bytes);
  if (to.is_pageable() || from.is_pageable()) return CUDA_ERROR_INVALID_VALUE;
  ask_where_needed(enqueue, to, from);
  // CUDA 13.0 cuda.h, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: of the synchronous forms.
  const bool asked = to.sync_memops || from.sync_memops;
  const wire::Copy body{0, 0, to.gpu_address, from.gpu_address, bytes};
  return copy_in_place(enqueue, wire::Op::cuMemcpyDtoDAsync_v2, body,
                       asked ? wait_where_asked : Wait::NO);
}

// Which side is which is told by the addresses (UVA).
CUresult copy_inferred(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream, Wait wait) {
  const Operand to = operand(dst, bytes), from = operand(src, bytes);
  if (to.is_device && from.is_device) return copy_dtod(dst, src, bytes, stream, wait);
  if (to.is_device) return copy_htod(dst, reinterpret_cast<const void*>(src), bytes, stream, wait);
  if (from.is_device) return copy_dtoh(reinterpret_cast<void*>(dst), src, bytes, stream, wait);
  const Enqueue enqueue(stream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  if (bytes == 0) return CUDA_SUCCESS;
  // Device memory beyond its end, or nothing at all, is no host memory.
  if (dst == 0 || src == 0 || is_reserved_for_devices(dst, 1) || is_reserved_for_devices(src, 1)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!to.is_pageable() && !from.is_pageable()) {
    const wire::Copy body{0, 0, to.gpu_address, from.gpu_address, bytes};
    return copy_in_place(enqueue, wire::Op::cuMemcpyHtoDAsync_v2, body, wait);
  }
  if (enqueue.capture() != nullptr) return refuse_captured_pageable();
  if (const CUresult bad = synchronize_stream(enqueue.stream())) return bad;
  std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), bytes);
  return CUDA_SUCCESS;
}

CUresult set(wire::Op op, CUdeviceptr dst, uint32_t value, size_t n, size_t element_bytes,
             CUstream stream, Wait wait_where_asked = Wait::NO) {
  const Enqueue enqueue(stream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  if (n == 0) return CUDA_SUCCESS;
  if (dst % element_bytes != 0 || n > SIZE_MAX / element_bytes) return CUDA_ERROR_INVALID_VALUE;
  const Operand to = operand(dst, n * element_bytes);
  if (to.is_pageable()) return CUDA_ERROR_INVALID_VALUE;
  ask_where_needed(enqueue, to, to);
  return copy_in_place(enqueue, op, wire::Memset{0, 0, to.gpu_address, n, value, 0},
                       to.sync_memops ? wait_where_asked : Wait::NO);
}

}  // namespace

CUresult memcpy_htod_v2(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount,
                        CUstream stream) {
  return copy_htod(dstDevice, srcHost, ByteCount, stream, Wait::UNTIL_DONE);
}
CUresult memcpy_htod_async_v2(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount,
                              CUstream hStream) {
  return copy_htod(dstDevice, srcHost, ByteCount, hStream, Wait::NO);
}
CUresult memcpy_dtoh_v2(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream stream) {
  return copy_dtoh(dstHost, srcDevice, ByteCount, stream, Wait::UNTIL_DONE);
}
CUresult memcpy_dtoh_async_v2(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                              CUstream hStream) {
  return copy_dtoh(dstHost, srcDevice, ByteCount, hStream, Wait::NO);
}
CUresult memcpy_dtod_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                        CUstream stream) {
  return copy_dtod(dstDevice, srcDevice, ByteCount, stream, Wait::UNTIL_DONE);
}
CUresult memcpy_dtod_async_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                              CUstream hStream) {
  return copy_dtod(dstDevice, srcDevice, ByteCount, hStream);
}
CUresult memcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream stream) {
  return copy_inferred(dst, src, ByteCount, stream, Wait::UNTIL_DONE);
}
CUresult memcpy_async(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) {
  return copy_inferred(dst, src, ByteCount, hStream, Wait::NO);
}
CUresult memset_d8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream stream) {
  return set(wire::Op::cuMemsetD8Async, dstDevice, uc, N, 1, stream, Wait::UNTIL_DONE);
}
CUresult memset_d16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream stream) {
  return set(wire::Op::cuMemsetD16Async, dstDevice, us, N, 2, stream, Wait::UNTIL_DONE);
}
CUresult memset_d32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream stream) {
  return set(wire::Op::cuMemsetD32Async, dstDevice, ui, N, 4, stream, Wait::UNTIL_DONE);
}
CUresult memset_d8_async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream) {
  return set(wire::Op::cuMemsetD8Async, dstDevice, uc, N, 1, hStream);
}
CUresult memset_d16_async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream) {
  return set(wire::Op::cuMemsetD16Async, dstDevice, us, N, 2, hStream);
}
CUresult memset_d32_async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream) {
  return set(wire::Op::cuMemsetD32Async, dstDevice, ui, N, 4, hStream);
}

}  // namespace kvgpu::guest
