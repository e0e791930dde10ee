// SPDX-License-Identifier: Apache-2.0
#include "event_ring.h"

#include <cuda.h>
#include <sys/eventfd.h>

#include <chrono>
#include <thread>

#include "kvgpu/layout.h"
#include "session.h"

namespace kvgpu::worker {

EventRing::EventRing(std::byte* block, const std::atomic<bool>* ending, int wake_fd)
    : producer_(block + EVENT_RING_OFF, EVENT_RING_BYTES,
                &reinterpret_cast<GuestPage*>(block + GUEST_PAGE_OFF)->event_credit),
      ending_(ending),
      wake_fd_(wake_fd) {}

void EventRing::reply(uint64_t call_id, CUresult result, const ReplyWriter& out, uint32_t flags) {
  const wire::Reply body{out.overflowed() ? CUDA_ERROR_UNKNOWN : result, flags};
  send_parts(wire::Op::REPLY, call_id, part(body), {out.data(), out.len_bytes()});
}

void EventRing::send_parts(wire::Op op, uint64_t call_id, Part first, Part second) {
  wire::Header header{};
  header.opcode = static_cast<uint16_t>(op);
  header.flags = wire::NOREPLY;
  header.call_id = call_id;
  const uint32_t len_bytes = sizeof header + first.len_bytes + second.len_bytes;
  producer_.expect_record();
  const std::lock_guard lock(mutex_);
  while (!producer_.reserve(len_bytes)) {
    if (producer_.error() != RingError::NONE) {
      end_session(to_string(producer_.error()), ExitStatus::VIOLATION);
    }
    if (ending_->load(std::memory_order_relaxed)) return;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  producer_.write(header, first, second);
  if (wake_fd_ >= 0) (void)!eventfd_write(wake_fd_, 1);
}

}  // namespace kvgpu::worker
