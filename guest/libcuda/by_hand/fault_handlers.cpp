// SPDX-License-Identifier: Apache-2.0
#include "fault_handlers.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>

namespace kvgpu::guest {

namespace {

std::array<std::atomic<FaultHandler>, 2> handlers{};
std::mutex mutex;
struct sigaction next_action;

void pass_on(int signal, siginfo_t* info, void* context) {
  if ((next_action.sa_flags & SA_SIGINFO) != 0) {
    next_action.sa_sigaction(signal, info, context);
  } else if (next_action.sa_handler != SIG_DFL && next_action.sa_handler != SIG_IGN) {
    next_action.sa_handler(signal);
  } else {
    // The fault happens again and finds nobody.
    struct sigaction none{};
    none.sa_handler = SIG_DFL;
    (void)sigaction(SIGSEGV, &none, nullptr);
  }
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const auto address = reinterpret_cast<uint64_t>(info->si_addr);
  for (const auto& handler : handlers) {
    // acquire: pairs with the release in watch_faults()
    const FaultHandler ask = handler.load(std::memory_order_acquire);
    if (ask != nullptr && ask(address)) {
      errno = error;
      return;
    }
  }
  errno = error;
  pass_on(signal, info, context);
}

}  // namespace

void watch_faults(FaultHandler handler) {
  const std::lock_guard lock(mutex);
  const auto known = std::ranges::find_if(
      handlers, [&](const auto& each) { return each.load() == handler || each.load() == nullptr; });
  // release: pairs with the acquire in on_fault()
  known->store(handler, std::memory_order_release);
  struct sigaction now{};
  if (sigaction(SIGSEGV, nullptr, &now) != 0 || now.sa_sigaction == &on_fault) return;
  next_action = now;
  struct sigaction ours{};
  ours.sa_sigaction = &on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  (void)sigaction(SIGSEGV, &ours, nullptr);
}

}  // namespace kvgpu::guest
