// SPDX-License-Identifier: Apache-2.0
// A deferred error stops everything that would enqueue or read GPU work until the guest has been
// told (PROTOCOL.md §3.1).
#pragma once

#include <cuda.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "kvgpu/barrier.h"
#include "kvgpu/layout.h"

namespace kvgpu::worker {

class Poison {
 public:
  // `wake_fd`: as EventRing's.
  Poison(HostPage* page, int wake_fd) : page_(page), wake_fd_(wake_fd) {}

  // Must a record with this sequence number be skipped? The records between the failure and its
  // acknowledgement.
  bool stops(uint64_t seq) const {
    return seq > from_.load(std::memory_order_acquire) &&
           seq < until_.load(std::memory_order_acquire);
  }
  CUresult error() const { return error_.load(std::memory_order_acquire); }

  // Record `seq` has failed. The first error counts until it is acknowledged; a sticky one replaces
  // it and stays.
  void fail(uint64_t seq, uint64_t position, uint16_t opcode, CUresult error, bool sticky) {
    const std::lock_guard lock(mutex_);
    const bool pending = from_ != NEVER && until_ == NEVER;
    if (sticky_) return;
    // Other devices' executors may be behind: what they still skip for an earlier error stays
    // skipped, and is told of with this one.
    from_ = sticky ? 0 : std::min(from_.load(), seq);
    if (pending && !sticky) return;
    sticky_ = sticky;
    error_ = error;
    until_ = NEVER;
    page_->error_position = position;
    page_->error_opcode = opcode;
    // release: pairs with the guest's acquire of the word at the start of each call
    store_release(page_->error_word, ErrorWord::make(++epoch_, sticky, error));
    if (wake_fd_ >= 0) (void)!eventfd_write(wake_fd_, 1);
  }

  // The guest has returned the error of `epoch`; records after `seq` run again.
  void acknowledge(uint64_t epoch, uint64_t seq) {
    const std::lock_guard lock(mutex_);
    if (!sticky_ && epoch == epoch_) until_ = seq;
  }

 private:
  static constexpr uint64_t NEVER = ~0ull;
  HostPage* const page_;
  const int wake_fd_;
  std::mutex mutex_;
  // Release by fail() and acknowledge(), acquire by stops() and error().
  std::atomic<uint64_t> from_{NEVER}, until_{NEVER};
  std::atomic<CUresult> error_{CUDA_SUCCESS};  // release by fail(), acquire by error()
  uint32_t epoch_ = 0;
  bool sticky_ = false;
};

}  // namespace kvgpu::worker
