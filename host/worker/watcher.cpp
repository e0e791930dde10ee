// SPDX-License-Identifier: Apache-2.0
#include "watcher.h"

#include <chrono>
#include <thread>

#include "kvgpu/barrier.h"
#include "log.h"
#include "session.h"

namespace kvgpu::worker {

void Watcher::start() { std::thread(&Watcher::run, this).detach(); }

void Watcher::run() {
  prepare_driver_thread(*session_->driver);
  for (;;) {
    sleeps_.store(1, std::memory_order_relaxed);
    // Our flag before our look: either we see the number, or wake() sees that we sleep. Pairs with
    // the fence there.
    fence_full();
    if (!is_outstanding()) sleeps_.wait(1);
    sleeps_.store(0, std::memory_order_relaxed);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (is_outstanding()) look_for_faults();
  }
}

bool Watcher::is_outstanding() const {
  bool outstanding = false;
  session_->handles.each_stream([&](const Stream& stream) {
    outstanding |= load_relaxed(*stream.progress) < stream.marked.load(std::memory_order_acquire);
  });
  return outstanding;
}

void Watcher::look_for_faults() const {
  for (const auto& context : session_->handles.contexts()) {
    CUresult result = CUDA_SUCCESS;
    context->while_there([&] {
      if (session_->enter(*context) == CUDA_SUCCESS) {
        result = session_->driver->cuStreamQuery(context->watch_stream);
      }
    });
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) {
      log("context of device %d has faulted: %s", context->device,
          error_name(*session_->driver, result).c_str());
      session_->print_last_words();
      session_->poison.fail(0, 0, 0, result, true);
    }
  }
}

void Watcher::end_sleep() {
  sleeps_.store(0, std::memory_order_relaxed);
  sleeps_.notify_one();
}

}  // namespace kvgpu::worker
