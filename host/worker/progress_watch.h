// SPDX-License-Identifier: Apache-2.0
// Progress for a guest whose memory the GPU cannot write: the GPU writes its numbers here, a thread
// looks for them while some are outstanding and sends each as a PROGRESS record, never one before
// those of the work that it came after.
//
// Not a host function behind the work: the driver runs those one at a time, so that one which waits
// for another stream would wait for ever.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "kvgpu/layout.h"
#include "kvgpu/records.h"

namespace kvgpu::worker {

class EventRing;

class ProgressWatch {
 public:
  // `words`: what the GPU writes.
  ProgressWatch(const uint64_t* words, EventRing* events) : words_(words), events_(events) {}

  // The GPU will write `number`; what it waits for before that was expected earlier.
  void expect(uint32_t word, uint64_t number);
  // Its stream's context has ended: whatever is outstanding will never be written.
  void forget(uint32_t word);
  // Runs as long as the process.
  [[noreturn]] void run();

 private:
  bool send_reached(std::unique_lock<std::mutex>* lock);

  const uint64_t* const words_;
  EventRing* const events_;
  std::mutex mutex_;
  std::condition_variable wanted_;
  std::vector<wire::Progress> outstanding_;  // in the order in which they were expected
  bool is_new_ = false;                      // since the last look
};

}  // namespace kvgpu::worker
