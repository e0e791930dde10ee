// SPDX-License-Identifier: Apache-2.0
// Frees in stream order, which wait in the guest (freed_memory.h).
#include "session.h"

namespace kvgpu::guest {

CUresult Session::free_async(const FreedBlock& block) {
  // What another device's executor is asked about a pool could come before the free.
  if (every_call_waits_ || devices_.size() > 1) {
    const wire::FreeAsync body{block.stream, 0, block.address};
    return send_work(wire::Op::cuMemFreeAsync, block.device, part(body));
  }
  {
    std::unique_lock lock(command_mutex_);
    if (const CUresult bad = begin_work(lock)) return bad;
    const bool is_full = freed_.is_full();
    if (is_full) {
      if (const CUresult bad = write_freed()) return bad;
    }
    freed_.add(block);
    if (!is_full) return CUDA_SUCCESS;
  }
  kick_if_asleep();
  return CUDA_SUCCESS;
}

std::optional<uint64_t> Session::take_freed(wire::Handle stream, wire::Handle pool,
                                            uint64_t bytes) {
  const std::lock_guard lock(command_mutex_);
  return freed_.take(stream, pool, bytes);
}

CUresult Session::write_freed() {
  for (const FreedBlock& block : freed_.blocks()) {
    wire::Header header{};
    header.opcode = static_cast<uint16_t>(wire::Op::cuMemFreeAsync);
    header.flags = wire::NOREPLY;
    header.target = wire::make_target(0, static_cast<uint32_t>(block.device));
    const wire::FreeAsync body{block.stream, 0, block.address};
    constexpr uint32_t LEN_BYTES = sizeof header + sizeof body;
    if (!commands_.reserve(LEN_BYTES)) {
      if (const CUresult bad = wait_for_room(LEN_BYTES)) return bad;
    }
    commands_.write(header, part(body));
    if (Trace::is_on()) [[unlikely]]
      Trace::sent(LEN_BYTES);
  }
  freed_.clear();
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
