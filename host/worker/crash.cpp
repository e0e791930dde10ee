// SPDX-License-Identifier: Apache-2.0
#include "crash.h"

#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>

namespace kvgpu::worker {

namespace {

constexpr int MAX_FRAMES = 64;
constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

void say_where(int number, siginfo_t* info, void*) {
  char line[96];
  const int len = std::snprintf(line, sizeof line, "crash: signal %d, address %p, thread %d\n",
                                number, info->si_addr, gettid());
  (void)!write(STDERR_FILENO, line, static_cast<size_t>(len));
  std::array<void*, MAX_FRAMES> frames;
  const int n_frames = backtrace(frames.data(), MAX_FRAMES);
  backtrace_symbols_fd(frames.data(), n_frames, STDERR_FILENO);
  (void)raise(number);  // with its default action by now
}

}  // namespace

void log_crashes() {
  void* frame = nullptr;
  (void)backtrace(&frame, 1);  // its first call loads a library
  struct sigaction action{};
  action.sa_sigaction = say_where;
  action.sa_flags = static_cast<int>(SA_SIGINFO | SA_RESETHAND);
  for (const int number : SIGNALS) (void)sigaction(number, &action, nullptr);
}

}  // namespace kvgpu::worker
