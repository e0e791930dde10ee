// SPDX-License-Identifier: Apache-2.0
// Devices that reach each other's memory, and copies between contexts. Where both sides are of one
// device that is a copy like any other.
#include "peers.h"

#include <algorithm>

#include "copies.h"
#include "generated/api.gen.h"
#include "kvgpu/memory_calls.h"

namespace kvgpu::guest {

namespace {

// Whose device memory it is; null: nobody's.
Context* owner_of(uint64_t address) {
  const auto range = memory_map().find(address);
  return range && !range->is_host() ? range->context : nullptr;
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

bool first_byte(uint64_t base, uint64_t x, uint64_t y, uint64_t z, uint64_t pitch, uint64_t height,
                uint64_t* address) {
  uint64_t row;
  return !__builtin_mul_overflow(z, height, &row) && !__builtin_add_overflow(row, y, &row) &&
         !__builtin_mul_overflow(row, pitch, &row) && !__builtin_add_overflow(row, x, &row) &&
         !__builtin_add_overflow(base, row, address);
}

CUresult copy_peer(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
                   size_t bytes, CUstream stream, Wait wait) {
  if (!is_context(dst_context) || !is_context(src_context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (bytes != 0 && crosses_devices(dst, src)) {
    return copy_between_devices(linear(dst, src, bytes), stream, wait);
  }
  return memcpy_dtod_async_v2(dst, src, bytes, stream);
}

// The peer of an access to be changed, and what the call is about.
CUresult change_access(wire::Op op, CUcontext peer, unsigned flags) {
  const Call call(CaptureRule::FORBIDDEN);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const Context* const known = find(peer);
  if (known == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return call.sync(op, wire::PeerAccess{call.context(), known->handle, flags});
}

}  // namespace

bool crosses_devices(CUdeviceptr dst, CUdeviceptr src) {
  const Context *const to = owner_of(dst), *const from = owner_of(src);
  return to != nullptr && from != nullptr && to->device != from->device;
}

CUresult copy_box_between_devices(const CUDA_MEMCPY3D_PEER& p, CUstream stream, Wait wait) {
  wire::PeerCopy copy{0, 0, {}, {}, p.WidthInBytes, p.Height, p.Depth};
  copy.dst = {0, 0, p.dstPitch, p.dstHeight};
  copy.src = {0, 0, p.srcPitch, p.srcHeight};
  if (!first_byte(p.dstDevice, p.dstXInBytes, p.dstY, p.dstZ, p.dstPitch, p.dstHeight,
                  &copy.dst.address) ||
      !first_byte(p.srcDevice, p.srcXInBytes, p.srcY, p.srcZ, p.srcPitch, p.srcHeight,
                  &copy.src.address) ||
      !crosses_devices(copy.dst.address, copy.src.address)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return copy_between_devices(copy, stream, wait);
}

CUresult device_get_p2_patomic_capabilities(unsigned int* capabilities,
                                            const CUatomicOperation* operations, unsigned int count,
                                            CUdevice srcDevice, CUdevice dstDevice) {
  const Call call(CaptureRule::ALLOWED, nullptr, ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (capabilities == nullptr || operations == nullptr || count == 0 ||
      count > wire::MAX_ATOMIC_OPERATIONS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  struct {
    uint32_t values[wire::MAX_ATOMIC_OPERATIONS];
  } out;
  static_assert(sizeof(CUatomicOperation) == sizeof(uint32_t));
  const wire::AtomicCapabilities body{srcDevice, dstDevice, count, 0};
  const CUresult result =
      call.sync(wire::Op::cuDeviceGetP2PAtomicCapabilities, body, &out,
                Part{operations, static_cast<uint32_t>(count * sizeof(uint32_t))});
  if (result == CUDA_SUCCESS) std::copy_n(out.values, count, capabilities);
  return result;
}

CUresult ctx_enable_peer_access(CUcontext peerContext, unsigned int Flags) {
  return change_access(wire::Op::cuCtxEnablePeerAccess, peerContext, Flags);
}
CUresult ctx_disable_peer_access(CUcontext peerContext) {
  return change_access(wire::Op::cuCtxDisablePeerAccess, peerContext, 0);
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
}  // namespace kvgpu::guest
