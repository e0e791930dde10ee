// SPDX-License-Identifier: Apache-2.0
// Devices that reach each other's memory, and copies between contexts. Where both sides are of one
// device that is a copy like any other.
#include <algorithm>

#include "copy_boxes.h"
#include "generated/api.gen.h"
#include "kvgpu/context_calls.h"
#include "kvgpu/memory_calls.h"

namespace kvgpu::guest {

namespace {

// Whose device memory it is; null: nobody's.
Context* owner_of(uint64_t address) {
  const auto range = memory_map().find(address);
  return range && !range->is_host() ? range->context : nullptr;
}

bool crosses_devices(CUdeviceptr dst, CUdeviceptr src) {
  const Context *const to = owner_of(dst), *const from = owner_of(src);
  return to != nullptr && from != nullptr && to->device != from->device;
}

// Null is taken as driver 580 takes it: the addresses say whose they are.
bool is_context(CUcontext context) { return context == nullptr || find(context) != nullptr; }

CUresult check_side(const wire::PeerSide& side, const wire::PeerCopy& copy, Operand* found) {
  uint64_t bytes;
  if (!wire::peer_bytes(side, copy, &bytes)) return CUDA_ERROR_INVALID_VALUE;
  *found = operand(side.address, bytes);
  return found->is_device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// cuda.h on the synchronous forms: in order with all work of the two contexts.
CUresult finish_both(Context& to, Context& from) {
  if (const CUresult bad = finish_work(to)) return bad;
  return finish_work(from);
}

CUresult copy_between_devices(wire::PeerCopy copy, CUstream stream, Wait wait) {
  const Enqueue enqueue(stream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  Operand to{}, from{};
  if (const CUresult bad = check_side(copy.dst, copy, &to)) return bad;
  if (const CUresult bad = check_side(copy.src, copy, &from)) return bad;
  Context &dst = *owner_of(copy.dst.address), &src = *owner_of(copy.src.address);
  copy.dst.context = dst.handle;
  copy.src.context = src.handle;
  ask_where_needed(enqueue, to, from);
  if (copy.height != 1 || copy.depth != 1) enqueue.ask_driver();  // about pitches
  constexpr wire::Op OP = wire::Op::cuMemcpyPeerAsync;
  if (wait == Wait::NO || enqueue.capture() != nullptr) return enqueue.submit(OP, copy);
  if (const CUresult bad = finish_both(dst, src)) return bad;
  uint64_t number;
  if (const CUresult bad = enqueue.submit_marked(OP, copy, &number)) return bad;
  return wait_for(enqueue, number);
}

wire::PeerCopy linear(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  return {0, 0, {0, dst, bytes, 1}, {0, src, bytes, 1}, bytes, 1, 1};
}

bool first_byte(const wire::MemcpySide& side, uint64_t* address) {
  uint64_t row;
  return !__builtin_mul_overflow(side.z, side.height, &row) &&
         !__builtin_add_overflow(row, side.y, &row) &&
         !__builtin_mul_overflow(row, side.pitch_bytes, &row) &&
         !__builtin_add_overflow(row, side.x_bytes, &row) &&
         !__builtin_add_overflow(side.address, row, address);
}

// Of linear memory; none of an array, which its handle names.
uint64_t address_of(const wire::MemcpySide& side) {
  return side.type == CU_MEMORYTYPE_ARRAY ? 0 : side.address;
}

CUresult copy_peer(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
                   size_t bytes, CUstream stream, Wait wait) {
  if (!is_context(dst_context) || !is_context(src_context)) return CUDA_ERROR_INVALID_CONTEXT;
  CUresult bad = CUDA_SUCCESS;
  Stream* const given = find_stream(stream, &bad);
  // On driver 580 no capture takes it, not even on one device.
  if (given != nullptr && given->capture.load() != nullptr) {
    return break_capture(*given, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  if (bytes != 0 && crosses_devices(dst, src)) {
    return copy_between_devices(linear(dst, src, bytes), stream, wait);
  }
  return memcpy_dtod_async_v2(dst, src, bytes, stream);
}

// Both sides are linear device memory.
CUresult copy_box_between_devices(const wire::MemcpyNode& box, CUstream stream, Wait wait) {
  wire::PeerCopy copy{0, 0, {}, {}, box.width_bytes, box.height, box.depth};
  copy.dst = {0, 0, box.dst.pitch_bytes, box.dst.height};
  copy.src = {0, 0, box.src.pitch_bytes, box.src.height};
  if (!first_byte(box.dst, &copy.dst.address) || !first_byte(box.src, &copy.src.address) ||
      !crosses_devices(copy.dst.address, copy.src.address)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return copy_between_devices(copy, stream, wait);
}

bool is_empty(const wire::MemcpyNode& box) {
  return box.width_bytes == 0 || box.height == 0 || box.depth == 0;
}

// What the other forms have, too.
CUDA_MEMCPY3D without_contexts(const CUDA_MEMCPY3D_PEER& p) {
  CUDA_MEMCPY3D copy{};
  copy.dstMemoryType = p.dstMemoryType;
  copy.dstHost = p.dstHost;
  copy.dstDevice = p.dstDevice;
  copy.dstArray = p.dstArray;
  copy.dstLOD = p.dstLOD;
  copy.dstXInBytes = p.dstXInBytes;
  copy.dstY = p.dstY;
  copy.dstZ = p.dstZ;
  copy.dstPitch = p.dstPitch;
  copy.dstHeight = p.dstHeight;
  copy.srcMemoryType = p.srcMemoryType;
  copy.srcHost = p.srcHost;
  copy.srcDevice = p.srcDevice;
  copy.srcArray = p.srcArray;
  copy.srcLOD = p.srcLOD;
  copy.srcXInBytes = p.srcXInBytes;
  copy.srcY = p.srcY;
  copy.srcZ = p.srcZ;
  copy.srcPitch = p.srcPitch;
  copy.srcHeight = p.srcHeight;
  copy.WidthInBytes = p.WidthInBytes;
  copy.Height = p.Height;
  copy.Depth = p.Depth;
  return copy;
}

CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER* p, CUstream stream, Wait wait) {
  if (p == nullptr || p->srcLOD != 0 || p->dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_context(p->dstContext) || !is_context(p->srcContext)) return CUDA_ERROR_INVALID_CONTEXT;
  const wire::MemcpyNode box = box_of(without_contexts(*p));
  if (!is_empty(box) && crosses_devices(address_of(box.dst), address_of(box.src))) {
    return copy_box_between_devices(box, stream, wait);
  }
  const Enqueue enqueue(stream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  if (enqueue.capture() != nullptr) {
    return break_capture(enqueue.stream(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  return copy_box(enqueue, box, wait);
}

// `peer`: that of an access to be changed.
CUresult change_access(const Call& call, wire::Op op, CUcontext peer, unsigned flags) {
  const Context* const known = find(peer);
  if (known == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return call.sync(op, wire::PeerAccess{call.context(), known->handle, flags});
}

}  // namespace

CUresult device_get_p2_patomic_capabilities(unsigned int* capabilities,
                                            const CUatomicOperation* operations, unsigned int count,
                                            CUdevice srcDevice, CUdevice dstDevice) {
  const Call call(CaptureRule::ALLOWED, nullptr, ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (capabilities == nullptr || operations == nullptr || count == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (count > wire::MAX_ATOMIC_OPERATIONS) {
    return srcDevice == dstDevice ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
  }
  struct {
    uint32_t values[wire::MAX_ATOMIC_OPERATIONS];
  } out;
  static_assert(sizeof(CUatomicOperation) == sizeof(uint32_t));
  const wire::P2PAtomicCapabilities body{srcDevice, dstDevice, count, 0};
  const CUresult result =
      call.sync(wire::Op::cuDeviceGetP2PAtomicCapabilities, body, &out,
                Part{operations, static_cast<uint32_t>(count * sizeof(uint32_t))});
  if (result == CUDA_SUCCESS) std::copy_n(out.values, count, capabilities);
  return result;
}

CUresult ctx_enable_peer_access(CUcontext peerContext, unsigned int Flags) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  // On driver 580 it breaks a capture between two devices (two H200s), and leaves it alone where it
  // refuses the device itself (one). What flags do in a capture has not been seen.
  const Context* const peer = find(peerContext);
  if (Flags == 0 && peer != nullptr && peer->device != call.device()) {
    if (const CUresult bad = unsafe_call_allowed()) return bad;
  }
  return change_access(call, wire::Op::cuCtxEnablePeerAccess, peerContext, Flags);
}
CUresult ctx_disable_peer_access(CUcontext peerContext) {
  const Call call(CaptureRule::FORBIDDEN);
  if (call.status() != CUDA_SUCCESS) return call.status();
  return change_access(call, wire::Op::cuCtxDisablePeerAccess, peerContext, 0);
}

CUresult memcpy_peer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                     CUcontext srcContext, size_t ByteCount, CUstream stream) {
  return copy_peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, stream,
                   Wait::UNTIL_DONE);
}
CUresult memcpy_peer_async(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                           CUcontext srcContext, size_t ByteCount, CUstream hStream) {
  return copy_peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream, Wait::NO);
}
CUresult memcpy_3d_peer(const CUDA_MEMCPY3D_PEER* pCopy, CUstream stream) {
  return copy_3d_peer(pCopy, stream, Wait::UNTIL_DONE);
}
CUresult memcpy_3d_peer_async(const CUDA_MEMCPY3D_PEER* pCopy, CUstream hStream) {
  return copy_3d_peer(pCopy, hStream, Wait::NO);
}

}  // namespace kvgpu::guest
