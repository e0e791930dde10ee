// SPDX-License-Identifier: Apache-2.0
// Host to guest: replies, callbacks, printed output. Any thread may send; the ring's producer is
// locked here.
#pragma once

#include <cuda.h>

#include <atomic>
#include <mutex>

#include "kvgpu/opcodes.gen.h"
#include "kvgpu/ring.h"
#include "task.h"

namespace kvgpu::worker {

class EventRing {
 public:
  // `wake_fd`: an eventfd of whoever empties the ring and sleeps; -1: a guest that looks by itself.
  EventRing(std::byte* block, const std::atomic<bool>* ending, int wake_fd);

  // `flags`: those of wire::Reply.
  void reply(uint64_t call_id, CUresult result, const ReplyWriter& out, uint32_t flags = 0);
  template <typename Body>
  void send(wire::Op op, const Body& body, Part rest = {nullptr, 0}) {
    send_parts(op, 0, part(body), rest);
  }

 private:
  // Waits while the guest does not empty the ring; gives up when the session ends. A broken credit
  // ends it.
  void send_parts(wire::Op op, uint64_t call_id, Part first, Part second);

  std::mutex mutex_;
  Producer producer_;
  const std::atomic<bool>* const ending_;
  const int wake_fd_;
};

}  // namespace kvgpu::worker
