// SPDX-License-Identifier: Apache-2.0
// In the place of what is outside of a session: its end, kvgpud, the threads for calls that block,
// the log.
#include <cstdarg>
#include <cstdio>

#include "control.h"
#include "guest.h"
#include "log.h"
#include "pool.h"
#include "session.h"

namespace kvgpu::worker {

void end_session(const std::string& reason, ExitStatus) { throw fuzz::SessionEnded{reason}; }

void log(const char* format, ...) {
  char line[1024];
  va_list args;
  va_start(args, format);
  (void)std::vsnprintf(line, sizeof line, format, args);
  va_end(args);
}

bool Pool::submit(std::function<void()> work) {
  work();
  return true;
}

bool Control::allocate_extent(uint64_t bytes, control::Extent* extent) {
  return fuzz::allocate_extent(bytes, extent);
}

void Control::free_extent(uint64_t) {}

// There is no other session.
Share Control::resolve(const wire::Token& token) { return shares.get(token); }

}  // namespace kvgpu::worker
