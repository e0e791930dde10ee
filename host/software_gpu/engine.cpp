// SPDX-License-Identifier: Apache-2.0
#include "engine.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <thread>

#include "check.h"

namespace software_gpu {
namespace {

// A block that ran this many instructions makes room for others: they may be what it waits for.
constexpr int64_t SLICE_INSTRUCTIONS = 200'000;
constexpr size_t MAX_UNFINISHED_BLOCKS = 32;   // per core, for launches that are not cooperative
constexpr uint64_t MIN_SHARED_THREADS = 4096;  // smaller launches are not worth waking a helper

/// Threads that help launches. Never destroyed: they may run until the process ends.
class Helpers {
 public:
  static Helpers& instance() {
    static Helpers* helpers = new Helpers;
    return *helpers;
  }
  void offer(const std::function<void()>& job, size_t n_times) {
    std::lock_guard lock(mutex_);
    for (; n_threads_ + 1 < n_cores(); ++n_threads_) std::thread([this] { work(); }).detach();
    for (size_t i = 0; i < std::min<size_t>(n_times, n_threads_); ++i) jobs_.push_back(job);
    changed_.notify_all();
  }

 private:
  [[noreturn]] void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !jobs_.empty(); });
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      lock.lock();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  uint32_t n_threads_ = 0;
};

/// One launch on its way, shared with the helpers that joined it.
struct Run {
  std::shared_ptr<Launch> launch;
  std::atomic<uint64_t> next_block{0};
  std::mutex mutex;
  std::condition_variable changed;
  int n_helping = 0;
};

void run_blocks(Run& run) {
  Launch& launch = *run.launch;
  const uint64_t n_blocks = launch.grid.count();
  const size_t max_unfinished = launch.cooperative ? SIZE_MAX : MAX_UNFINISHED_BLOCKS;
  std::deque<std::unique_ptr<Block>> unfinished;
  std::unique_ptr<Block> spare;
  while (launch.fault.load(std::memory_order_relaxed) == CUDA_SUCCESS) {
    std::unique_ptr<Block> block;
    uint64_t index = n_blocks;
    if (unfinished.size() < max_unfinished &&
        run.next_block.load(std::memory_order_relaxed) < n_blocks)
      index = run.next_block.fetch_add(1);
    if (index < n_blocks) {
      block = spare ? std::move(spare) : std::make_unique<Block>(launch);
      block->start(index);
    } else if (!unfinished.empty()) {
      block = std::move(unfinished.front());
      unfinished.pop_front();
    } else {
      return;
    }
    if (block->run(SLICE_INSTRUCTIONS) == Block::State::FINISHED)
      spare = std::move(block);
    else
      unfinished.push_back(std::move(block));
  }
}

}  // namespace

uint32_t n_cores() {
  static const uint32_t n = std::max(std::thread::hardware_concurrency(), 1u);
  return n;
}

CUresult run_launch(const std::shared_ptr<Launch>& launch) {
  auto run = std::make_shared<Run>();
  run->launch = launch;
  const uint64_t n_blocks = launch->grid.count();
  if (n_blocks > 1 && n_blocks * launch->block.count() >= MIN_SHARED_THREADS) {
    Helpers::instance().offer(
        [run] {
          {
            std::lock_guard lock(run->mutex);
            if (run->next_block.load() >= run->launch->grid.count()) return;  // too late to help
            ++run->n_helping;
          }
          run_blocks(*run);
          std::lock_guard lock(run->mutex);
          --run->n_helping;
          run->changed.notify_all();
        },
        std::min<uint64_t>(n_blocks - 1, launch->n_cores - 1));
  }
  run_blocks(*run);
  std::unique_lock lock(run->mutex);
  run->next_block.store(n_blocks);  // nobody joins from now on
  run->changed.wait(lock, [&] { return run->n_helping == 0; });
  print_counts(*launch);
  return static_cast<CUresult>(launch->fault.load());
}

}  // namespace software_gpu
