// SPDX-License-Identifier: Apache-2.0
#include "process.h"

#include <sys/syscall.h>

#include <fstream>
#include <sstream>
#include <string>

namespace kvgpu::agent {

namespace {

uint64_t start_ticks_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  // The command name, field 2, may hold anything; it ends at the last parenthesis.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;
  return std::strtoull(field.c_str(), nullptr, 10);
}

}  // namespace

Process watch_process(pid_t pid) {
  // The descriptor first: from then on the number stays the process's own.
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  const uint64_t start_ticks = pidfd ? start_ticks_of(pid) : 0;
  return Process{pid, start_ticks, std::move(pidfd)};
}

}  // namespace kvgpu::agent
