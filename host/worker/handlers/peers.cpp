// SPDX-License-Identifier: Apache-2.0
// Devices that reach each other's memory, and copies between their contexts.
#include <array>

#include "generated/handlers.gen.h"
#include "kvgpu/context_calls.h"
#include "kvgpu/memory_calls.h"

namespace kvgpu::worker {

namespace {

bool is_guests(const Session& session, const wire::PeerSide& side, const wire::PeerCopy& copy) {
  uint64_t bytes;
  return wire::peer_bytes(side, copy, &bytes) && session.is_guest_memory(side.address, bytes);
}

// The current context, and the one that was named.
CUresult enter_and_find(Session& session, const wire::PeerAccess& body,
                        std::shared_ptr<Context>* peer) {
  if (const CUresult bad = session.enter(body.context)) return bad;
  *peer = session.handles.context(body.peer);
  return *peer != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace

CUresult device_get_p2_patomic_capabilities(Session& session, const Task& task,
                                            ReplyWriter& reply) {
  wire::P2PAtomicCapabilities body;
  if (!task.read(&body)) session.violation(task);
  const auto rest = task.after<wire::P2PAtomicCapabilities>();
  if (body.n > wire::MAX_ATOMIC_OPERATIONS || rest.size() < body.n * sizeof(uint32_t)) {
    session.violation(task);
  }
  std::array<CUatomicOperation, wire::MAX_ATOMIC_OPERATIONS> operations{};
  if (body.n != 0) std::memcpy(operations.data(), rest.data(), body.n * sizeof(uint32_t));
  std::array<unsigned, wire::MAX_ATOMIC_OPERATIONS> capabilities{};
  const CUresult result = session.driver->cuDeviceGetP2PAtomicCapabilities(
      capabilities.data(), operations.data(), body.n, body.source, body.destination);
  reply.put_bytes(capabilities.data(), body.n * sizeof(uint32_t));
  return result;
}

CUresult ctx_enable_peer_access(Session& session, const Task& task, ReplyWriter&) {
  wire::PeerAccess body;
  if (!task.read(&body)) session.violation(task);
  std::shared_ptr<Context> peer;
  if (const CUresult bad = enter_and_find(session, body, &peer)) return bad;
  return session.driver->cuCtxEnablePeerAccess(peer->raw, static_cast<unsigned>(body.flags));
}

CUresult ctx_disable_peer_access(Session& session, const Task& task, ReplyWriter&) {
  wire::PeerAccess body;
  if (!task.read(&body)) session.violation(task);
  std::shared_ptr<Context> peer;
  if (const CUresult bad = enter_and_find(session, body, &peer)) return bad;
  return session.driver->cuCtxDisablePeerAccess(peer->raw);
}

CUresult memcpy_peer_async(Session& session, const Task& task, ReplyWriter&) {
  wire::PeerCopy body;
  if (!task.read(&body)) session.violation(task);
  const auto to = session.handles.context(body.dst.context),
             from = session.handles.context(body.src.context);
  if (to == nullptr || from == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!is_guests(session, body.dst, body) || !is_guests(session, body.src, body)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUstream stream = task.stream->raw;
  if (body.height == 1 && body.depth == 1) {
    return session.driver->cuMemcpyPeerAsync(body.dst.address, to->raw, body.src.address, from->raw,
                                             body.width_bytes, stream);
  }
  CUDA_MEMCPY3D_PEER copy{};
  copy.dstMemoryType = copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstContext = to->raw;
  copy.dstDevice = body.dst.address;
  copy.dstPitch = body.dst.pitch_bytes;
  copy.dstHeight = body.dst.height;
  copy.srcContext = from->raw;
  copy.srcDevice = body.src.address;
  copy.srcPitch = body.src.pitch_bytes;
  copy.srcHeight = body.src.height;
  copy.WidthInBytes = body.width_bytes;
  copy.Height = body.height;
  copy.Depth = body.depth;
  return session.driver->cuMemcpy3DPeerAsync(&copy, stream);
}

}  // namespace kvgpu::worker
