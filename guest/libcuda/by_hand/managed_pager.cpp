// SPDX-License-Identifier: Apache-2.0
#include "managed_pager.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <mutex>
#include <thread>

#include "fault_handlers.h"
#include "managed_memory.h"
#include "session.h"

namespace kvgpu::guest {

namespace {

// On the stack of the thread that asks.
struct Request {
  uint64_t address;  // 0: a host function is over
  bool in_host_function;
  bool is_ours = false;
  std::atomic<uint32_t> is_done{0};  // release by the pager, acquire by who asked
  Request* next = nullptr;
};
struct Queue {
  std::atomic<Request*> requests{nullptr};  // release by who asks, acquire by the pager
  std::atomic<uint32_t> n_asked{0};         // likewise: release by who asks, acquire by the pager
};
Queue of_threads, of_host_functions;

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  (void)syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake(std::atomic<uint32_t>& word) {
  (void)syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

// Runs in a signal handler, too. The request may be gone as soon as it is done.
void ask(Request& request) {
  Queue& queue = request.in_host_function ? of_host_functions : of_threads;
  request.next = queue.requests.load(std::memory_order_relaxed);
  while (!queue.requests.compare_exchange_weak(request.next, &request, std::memory_order_release,
                                               std::memory_order_relaxed)) {
  }
  queue.n_asked.fetch_add(1, std::memory_order_release);
  wake(queue.n_asked);
  while (request.is_done.load(std::memory_order_acquire) == 0) sleep_while(request.is_done, 0);
}

bool on_fault(uint64_t address) {
  if (!ManagedMemory::may_hold(address) || Session::get().is_forked_child()) return false;
  Request request{address, Session::in_callback()};
  ask(request);
  return request.is_ours;
}

void serve(Request& request) {
  ManagedMemory& memory = ManagedMemory::get();
  if (request.address == 0) {
    memory.after_host_function();
  } else {
    request.is_ours = memory.bring_back(request.address, request.in_host_function);
  }
  request.is_done.store(1, std::memory_order_release);
  wake(request.is_done);
}

[[noreturn]] void run(Queue& queue) {
  for (;;) {
    const uint32_t n = queue.n_asked.load(std::memory_order_acquire);
    Request* request = queue.requests.exchange(nullptr, std::memory_order_acquire);
    if (request == nullptr) sleep_while(queue.n_asked, n);
    while (request != nullptr) {
      Request* const next = request->next;
      serve(*request);
      request = next;
    }
  }
}

}  // namespace

void Pager::start() {
  static std::once_flag once;
  std::call_once(once, [] {
    // The program's signals are for its own threads.
    sigset_t all, before;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    for (Queue* const queue : {&of_threads, &of_host_functions}) {
      std::thread(run, std::ref(*queue)).detach();
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
  });
  watch();
}

void Pager::watch() { watch_faults(&on_fault); }

void Pager::after_host_function() {
  Request request{0, true};
  ask(request);
}

}  // namespace kvgpu::guest
