// SPDX-License-Identifier: Apache-2.0
#include "stream.h"

#include <time.h>

#include <thread>

#include "context.h"

namespace software_gpu {

bool Point::reached() const { return !queue || queue->reached(number); }

void Point::wait() const {
  if (queue) queue->wait(number);
}

Point Queue::push(Operation operation, std::vector<Point> after) {
  std::lock_guard lock(mutex_);
  items_.push_back({std::move(operation), std::move(after)});
  ++n_pushed_;
  if (!has_thread_) {
    has_thread_ = true;
    std::thread([self = shared_from_this()] { self->work(); }).detach();
  }
  changed_.notify_all();
  return {shared_from_this(), n_pushed_};
}

Point Queue::end() {
  std::lock_guard lock(mutex_);
  return {shared_from_this(), n_pushed_};
}

void Queue::wait(uint64_t number) {
  if (reached(number)) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reached(number); });
}

void Queue::wait_for_room() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !is_full(); });
}

void Queue::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void Queue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !items_.empty() || closed_; });
    if (items_.empty()) return;
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    for (const Point& point : item.after) point.wait();
    // After a fault nothing runs any more; the numbers still advance, so that waiters return.
    if (context_.sticky_error() == CUDA_SUCCESS) {
      const CUresult result = item.operation.run(context_);
      if (result != CUDA_SUCCESS) context_.set_sticky_error(result);
    }
    item = {};  // what it holds is gone before it counts as done
    lock.lock();
    n_done_.fetch_add(1, std::memory_order_release);
    changed_.notify_all();
  }
}

static std::atomic<uint64_t> next_stream_id{3};  // 1 and 2 name the default streams

Stream::Stream(Context& context_, unsigned flags_, int priority_, GreenContext* green_)
    : context(context_),
      flags(flags_),
      priority(std::clamp(priority_, GREATEST_PRIORITY, LEAST_PRIORITY)),
      green(green_),
      id(next_stream_id++),
      queue(std::make_shared<Queue>(context_)) {}

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(now.tv_nsec);
}

bool& in_host_function() {
  static thread_local bool inside = false;
  return inside;
}

}  // namespace software_gpu
