// SPDX-License-Identifier: Apache-2.0
// Progress for a guest whose memory the GPU cannot write: the GPU writes its numbers here, a thread
// looks for them while some are outstanding and sends each as a PROGRESS record.
//
// Not a host function behind the work: the driver runs those one at a time, so that one which waits
// for another stream would wait for ever.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "kvgpu/layout.h"

namespace kvgpu::worker {

class EventRing;

class ProgressWatch {
 public:
  // `words`: what the GPU writes.
  ProgressWatch(const uint64_t* words, EventRing* events) : words_(words), events_(events) {}

  // The GPU will write `number`, and none above it before the next call for this word.
  void expect(uint32_t word, uint64_t number);
  // Its stream's context has ended: whatever is outstanding will never be written.
  void forget(uint32_t word);
  // Runs as long as the process.
  [[noreturn]] void run();

 private:
  struct Word {
    uint64_t expected = 0;
    uint64_t sent = 0;
  };

  bool send_reached(std::unique_lock<std::mutex>* lock);

  const uint64_t* const words_;
  EventRing* const events_;
  std::mutex mutex_;
  std::condition_variable wanted_;
  std::unordered_map<uint32_t, Word> outstanding_;
  bool is_new_ = false;  // since the last look
};

}  // namespace kvgpu::worker
