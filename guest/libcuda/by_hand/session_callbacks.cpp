// SPDX-License-Identifier: Apache-2.0
// Host functions: the worker's driver asks, a thread of ours runs them.
#include <thread>

#include "session.h"
#include "waiter.h"

namespace kvgpu::guest {

namespace {

thread_local bool this_thread_runs_a_callback = false;

}  // namespace

bool Session::in_callback() { return this_thread_runs_a_callback; }

uint64_t Session::add_host_function(HostFunction function, bool once) {
  const std::lock_guard lock(callback_mutex_);
  const uint64_t id = next_host_function_++;
  host_functions_.emplace(id, HostEntry{std::move(function), once});
  if (once) ++expected_callbacks_;
  if (!callback_thread_runs_) {
    callback_thread_runs_ = true;
    std::thread(&Session::run_callbacks, this).detach();
  }
  callback_wanted_.notify_all();
  return id;
}

void Session::expect_callbacks(uint64_t n) {
  if (n == 0) return;
  const std::lock_guard lock(callback_mutex_);
  expected_callbacks_ += n;
  callback_wanted_.notify_all();
}

// One at a time, as the driver does. While one is expected this thread looks at the event ring
// itself: no other may be there.
void Session::run_callbacks() {
  this_thread_runs_a_callback = true;
  std::unique_lock lock(callback_mutex_);
  while (ended_error() == CUDA_SUCCESS) {
    callback_wanted_.wait(lock, [this] { return expected_callbacks_ > 0 || ended_error(); });
    SpinThenSleep wait;
    while (callbacks_.empty() && ended_error() == CUDA_SUCCESS) {
      lock.unlock();
      pump();
      if (wait.step()) check_connection();
      lock.lock();
    }
    if (callbacks_.empty()) return;
    const wire::Callback callback = callbacks_.front();
    callbacks_.pop_front();
    --expected_callbacks_;
    const auto entry = host_functions_.find(callback.function);
    HostFunction function = entry != host_functions_.end() ? entry->second.function : nullptr;
    if (entry != host_functions_.end() && entry->second.once) host_functions_.erase(entry);
    lock.unlock();
    if (function) function(static_cast<CUresult>(callback.status));
    // release: pairs with the worker's acquire in Callbacks::relay(); what the function wrote is
    // visible
    store_release(guest_page_->callback_done, callback.token);
    if (weakly_ordered_) store_fence();
    if (is_byte_stream_) kick();  // the agent, unlike a worker, does not wait for the word
    lock.lock();
  }
}

}  // namespace kvgpu::guest
