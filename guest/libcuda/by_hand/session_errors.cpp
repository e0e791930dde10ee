// SPDX-License-Identifier: Apache-2.0
// Deferred errors: who has been told of which, and which progress numbers went with them.
#include <algorithm>

#include "log.h"
#include "session.h"
#include "thread_object.h"

namespace kvgpu::guest {

constinit thread_local Session::Thread Session::thread_;

// ---- threads

Session::ThreadEnd::~ThreadEnd() {
  if (!get().is_forked_child()) get().leave_threads();
}

void Session::join_threads() {
  (void)of_this_thread<ThreadEnd>();
  thread_.told = known_to_all_;
  ++n_threads_;
  thread_.number = n_joined_++;
}

void Session::leave_threads() {
  const std::unique_lock lock(error_mutex_, std::try_to_lock);  // at exit nobody may wait
  if (!lock.owns_lock() || thread_.has_work) return;
  if (thread_.told == load_acquire(host_page_->error_word)) --n_threads_;
}

CUresult Session::take_error() {
  if (const CUresult over = ended_error()) return over;
  if (ErrorWord::sticky(load_acquire(host_page_->error_word))) pump();  // what the device has said
  const std::lock_guard lock(error_mutex_);
  const bool is_new = thread_.told == NEW_THREAD;
  if (is_new) join_threads();
  const uint64_t word = load_acquire(host_page_->error_word);
  if (word == thread_.told) return CUDA_SUCCESS;
  const auto error = static_cast<CUresult>(ErrorWord::error(word));
  log(Level::DEBUG, "deferred error %d of opcode %llu", error,
      static_cast<unsigned long long>(host_page_->error_opcode));
  if (ErrorWord::sticky(word)) return error;  // stays: never acknowledged
  const bool is_first = word != acknowledged_;
  if (is_first) {
    if (const CUresult bad = acknowledge(word, error)) return bad;
    n_untold_ = n_threads_;
  }
  thread_.told = word;
  const bool is_counted = is_first || !is_new;
  if (is_counted && --n_untold_ == 0) known_to_all_ = word;
  return error;
}

// ---- numbers

// No record may come between the look at the numbers and the acknowledgement: it would be skipped
// and not be found lost.
CUresult Session::acknowledge(uint64_t word, CUresult error) {
  wire::Header header{};
  header.opcode = static_cast<uint16_t>(wire::Op::ACK_ERROR);
  header.flags = wire::NOREPLY;
  const wire::AckError ack{ErrorWord::epoch(word)};
  {
    const std::lock_guard lock(command_mutex_);
    if (const CUresult bad = wait_for_room(sizeof header + sizeof ack)) return bad;
    mark_lost(error);
    commands_.write(header, part(ack));
    acknowledged_ = word;
  }
  kick_if_asleep();
  return CUDA_SUCCESS;
}

// What had been asked for and not been reached when the error was found may never be written:
// whoever waits for it gets the error. Work before the failing record may be among it; an error too
// many is the safe side.
void Session::mark_lost(CUresult error) {
  const std::lock_guard lock(word_mutex_);
  for (uint32_t word = 0; word < N_PROGRESS_WORDS; ++word) {
    const uint64_t last =
        std::atomic_ref<uint64_t>(word_last_[word]).load(std::memory_order_relaxed);
    const uint64_t now = load_acquire(progress_[word]);
    if (now >= last) continue;
    std::vector<Lost>& ranges = lost_[word];
    if (!ranges.empty() && now < ranges.back().to) {  // still not reached
      ranges.back().to = last;
      continue;
    }
    ranges.push_back({now, last, error});
    if (ranges.size() > MAX_LOST) {
      ranges[1].from = ranges[0].from;
      ranges.erase(ranges.begin());
    }
  }
  any_lost_.store(true, std::memory_order_release);
}

CUresult Session::lost_error(uint32_t word, uint64_t number) {
  if (!any_lost_.load(std::memory_order_acquire)) return CUDA_SUCCESS;
  const std::lock_guard lock(word_mutex_);
  const auto lost = lost_.find(word);
  if (lost == lost_.end()) return CUDA_SUCCESS;
  const auto range = std::ranges::find_if(
      lost->second, [&](const Lost& each) { return number > each.from && number <= each.to; });
  return range == lost->second.end() ? CUDA_SUCCESS : range->error;
}

}  // namespace kvgpu::guest
