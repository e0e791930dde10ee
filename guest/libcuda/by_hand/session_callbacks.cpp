// SPDX-License-Identifier: Apache-2.0
// Host functions: the worker's driver asks, a thread of ours runs them.
#include <algorithm>
#include <chrono>
#include <thread>

#include "managed_memory.h"
#include "managed_pager.h"
#include "session.h"
#include "waiter.h"

namespace kvgpu::guest {

uint64_t Session::add_entry(HostEntry entry) {
  const uint64_t id = next_host_function_++;
  host_functions_.emplace(id, std::move(entry));
  if (!callback_thread_runs_) {
    callback_thread_runs_ = true;
    std::thread(&Session::run_callbacks, this).detach();
  }
  return id;
}

uint64_t Session::add_host_function(HostFunction function) {
  const std::lock_guard lock(callback_mutex_);
  HostEntry entry{std::move(function)};
  entry.n_expected = 1;
  ++expected_callbacks_;
  const uint64_t id = add_entry(std::move(entry));
  callback_wanted_.notify_all();
  return id;
}

void Session::drop_host_function(uint64_t id) {
  const std::lock_guard lock(callback_mutex_);
  expected_callbacks_ -= host_functions_.erase(id);
}

uint64_t Session::add_graph_function(CUhostFn function, void* user) {
  const std::lock_guard lock(callback_mutex_);
  HostEntry entry{nullptr, {function, user}};
  entry.n_keepers = 1;
  return add_entry(std::move(entry));
}

void Session::keep_function(uint64_t id) {
  const std::lock_guard lock(callback_mutex_);
  const auto found = host_functions_.find(id);
  if (found != host_functions_.end()) ++found->second.n_keepers;
}

void Session::release_function(uint64_t id) {
  const std::lock_guard lock(callback_mutex_);
  const auto found = host_functions_.find(id);
  if (found == host_functions_.end()) return;
  --found->second.n_keepers;
  if (found->second.is_over()) host_functions_.erase(found);
}

bool Session::find_graph_function(uint64_t id, CUDA_HOST_NODE_PARAMS* found) {
  const std::lock_guard lock(callback_mutex_);
  const auto entry = host_functions_.find(id);
  if (entry == host_functions_.end()) return false;
  *found = entry->second.graph_function;
  return found->fn != nullptr;
}

void Session::expect_callbacks(const std::vector<GraphExec::HostNode>& nodes) {
  if (nodes.empty()) return;
  const std::lock_guard lock(callback_mutex_);
  for (const auto& node : nodes) {
    const auto entry = host_functions_.find(node.function);
    if (entry != host_functions_.end()) ++entry->second.n_expected;
  }
  expected_callbacks_ += nodes.size();
  callback_wanted_.notify_all();
}

void Session::expect_no_callbacks(const std::vector<GraphExec::HostNode>& nodes) {
  const std::lock_guard lock(callback_mutex_);
  for (const auto& node : nodes) {
    const auto entry = host_functions_.find(node.function);
    if (entry != host_functions_.end() && entry->second.n_expected > 0) --entry->second.n_expected;
  }
  expected_callbacks_ -= std::min<uint64_t>(expected_callbacks_, nodes.size());
}

uint64_t Session::add_destructor(HostFunction function) {
  const std::lock_guard lock(callback_mutex_);
  HostEntry entry{std::move(function)};
  entry.n_expected = 1;
  entry.is_destructor = true;
  ++n_destructors_;
  const uint64_t id = add_entry(std::move(entry));
  callback_wanted_.notify_all();
  return id;
}

void Session::drop_destructor(uint64_t id) {
  const std::lock_guard lock(callback_mutex_);
  n_destructors_ -= host_functions_.erase(id);
}

// Sleeps until a function is asked for or expected soon. A destructor's time is nobody's to know:
// for that the ring is looked at now and then.
void Session::await_callbacks(std::unique_lock<std::mutex>& lock) {
  const auto is_due = [this] {
    return expected_callbacks_ > 0 || !callbacks_.empty() || ended_error() != CUDA_SUCCESS;
  };
  while (!is_due()) {
    if (n_destructors_ == 0) {
      callback_wanted_.wait(lock, [&] { return is_due() || n_destructors_ > 0; });
    } else if (!callback_wanted_.wait_for(lock, std::chrono::milliseconds(10), is_due)) {
      lock.unlock();
      look_around();
      lock.lock();
    }
  }
}

// One at a time, as the driver does. While one is expected this thread looks at the event ring
// itself: no other may be there.
void Session::run_callbacks() {
  thread_.runs_callback = true;
  std::unique_lock lock(callback_mutex_);
  while (ended_error() == CUDA_SUCCESS) {
    await_callbacks(lock);
    SpinThenSleep wait;
    while (callbacks_.empty() && expected_callbacks_ > 0 && ended_error() == CUDA_SUCCESS) {
      lock.unlock();
      pump();
      if (wait.step()) check_connection();
      lock.lock();
    }
    if (callbacks_.empty()) continue;
    const wire::Callback callback = callbacks_.front();
    callbacks_.pop_front();
    const auto found = host_functions_.find(callback.function);
    const bool is_destructor = found != host_functions_.end() && found->second.is_destructor;
    uint64_t& n_left = is_destructor ? n_destructors_ : expected_callbacks_;
    if (n_left > 0) --n_left;
    HostEntry entry;
    if (found != host_functions_.end()) {
      if (found->second.n_expected > 0) --found->second.n_expected;
      entry = found->second;
      if (entry.is_over()) host_functions_.erase(found);
    }
    lock.unlock();
    if (entry.function) entry.function(static_cast<CUresult>(callback.status));
    const auto& of_graph = entry.graph_function;
    if (of_graph.fn && callback.status == CUDA_SUCCESS) of_graph.fn(of_graph.userData);
    if (ManagedMemory::is_used()) Pager::after_host_function();
    // release: pairs with the worker's acquire in Callbacks::relay(); what the function wrote is
    // visible
    store_release(guest_page_->callback_done, callback.token);
    if (weakly_ordered_) store_fence();
    if (is_byte_stream_) kick();  // the agent, unlike a worker, does not wait for the word
    lock.lock();
  }
}

}  // namespace kvgpu::guest
