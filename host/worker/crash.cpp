// SPDX-License-Identifier: Apache-2.0
#include "crash.h"

#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <span>

namespace kvgpu::worker {

namespace {

constexpr int MAX_FRAMES = 64;
constexpr size_t MAX_THREADS = 64;
constexpr int ASKED = SIGUSR2;  // where is this thread?
constexpr unsigned ANSWERS_LIMIT_US = 500'000, PAUSE_US = 1'000;
constexpr unsigned LIMIT_S = 10;
constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

std::array<std::atomic<pid_t>, MAX_THREADS> threads;
std::atomic<size_t> n_threads{0};
std::atomic<size_t> n_answers{0};

void write_stack() {
  std::array<void*, MAX_FRAMES> frames;
  const int n_frames = backtrace(frames.data(), MAX_FRAMES);
  backtrace_symbols_fd(frames.data(), n_frames, STDERR_FILENO);
}

// It does not go on: the process is broken, and its end is to say of what.
void answer(int) {
  char line[64];
  const int len = std::snprintf(line, sizeof line, "meanwhile thread %d\n", gettid());
  (void)!write(STDERR_FILENO, line, static_cast<size_t>(len));
  write_stack();
  n_answers.fetch_add(1);
  for (;;) (void)pause();
}

// One after the other; one that is within the kernel, or waits for a lock of backtrace()'s, does
// not answer in time.
void ask_others() {
  unsigned us = 0;
  for (const auto& thread : std::span(threads).first(std::min(n_threads.load(), MAX_THREADS))) {
    const size_t before = n_answers.load();
    if (thread == gettid() || tgkill(getpid(), thread, ASKED) != 0) continue;
    for (; us < ANSWERS_LIMIT_US && n_answers.load() == before; us += PAUSE_US) {
      (void)usleep(PAUSE_US);
    }
  }
}

void say_where(int number, siginfo_t* info, void*) {
  (void)alarm(LIMIT_S);  // ends the process where the crash holds a lock that the rest here wants
  char line[96];
  const int len = std::snprintf(line, sizeof line, "crash: signal %d, address %p, thread %d\n",
                                number, info->si_addr, gettid());
  (void)!write(STDERR_FILENO, line, static_cast<size_t>(len));
  write_stack();
  ask_others();
  (void)raise(number);  // with its default action by now
}

}  // namespace

void log_crashes_of_thread() {
  const size_t at = n_threads.fetch_add(1);
  if (at < MAX_THREADS) threads[at] = gettid();
}

void log_crashes() {
  void* frame = nullptr;
  (void)backtrace(&frame, 1);  // its first call loads a library
  struct sigaction action{};
  action.sa_sigaction = say_where;
  action.sa_flags = static_cast<int>(SA_SIGINFO | SA_RESETHAND);
  for (const int number : SIGNALS) (void)sigaction(number, &action, nullptr);
  (void)signal(ASKED, answer);
}

}  // namespace kvgpu::worker
