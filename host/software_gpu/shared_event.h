// SPDX-License-Identifier: Apache-2.0
// An interprocess event: two counters in a file that every process maps which has the event.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "backing.h"

namespace software_gpu {

class SharedEvent : public std::enable_shared_from_this<SharedEvent> {
 public:
  /// Null: the kernel gives no memory.
  static std::shared_ptr<SharedEvent> create(int ordinal);
  static std::shared_ptr<SharedEvent> open(std::shared_ptr<const SharedFile> file);
  explicit SharedEvent(std::shared_ptr<const SharedFile> file);
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;
  ~SharedEvent();
  const SharedFile& file() const { return *file_; }
  /// A recording begins. It has happened when the last copy of what is returned is gone, so that
  /// those in other processes do not wait for ever for work that a fault has cancelled.
  std::shared_ptr<void> record();
  uint64_t last_recording() const;
  bool has_happened(uint64_t recording) const;
  void wait(uint64_t recording) const;

 private:
  struct State {
    std::atomic<uint64_t> n_recorded, n_happened;
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  const std::shared_ptr<const SharedFile> file_;
  State* state_ = nullptr;
};

}  // namespace software_gpu
