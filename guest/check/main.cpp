// SPDX-License-Identifier: Apache-2.0
// kvgpu-check [--json]: does CUDA work in this VM, and if not, which part of the way is broken?
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "checks.h"

namespace {

constexpr unsigned LIMIT_S = 120;  // an emulated VM takes some seconds

void give_up(int) {
  constexpr char LINE[] =
      "kvgpu-check: no answer within 120 s: see the session's log on the host\n";
  (void)!write(STDERR_FILENO, LINE, sizeof LINE - 1);
  _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace kvgpu::check;
  const bool json = argc == 2 && std::strcmp(argv[1], "--json") == 0;
  if (argc > 1 && !json) {
    const bool help = std::strcmp(argv[1], "--help") == 0;
    std::fprintf(
        help ? stdout : stderr,
        "usage: kvgpu-check [--json]\n"
        "Looks at each part of the way from a CUDA program to the host's GPU: device, agent,\n"
        "region, memory, kick, host, library, kernel. Exit status 0: all is well; 1: a check "
        "failed.\n");
    return help ? 0 : 2;
  }
  (void)signal(SIGALRM, give_up);
  alarm(LIMIT_S);

  Report report(json);
  report.add("device", check_device());
  Channel channel;
  const Result opened = channel.open();
  report.add("agent", opened);
  if (opened.state == State::OK) {
    report.add("region", channel.check_region());
    report.add("memory", channel.check_memory());
    report.add("kick", channel.check_kick());
    report.add("host", channel.check_host());
  } else {
    for (const char* check : {"region", "memory", "kick", "host"})
      report.add(check, skipped("no session"));
  }
  const Result library = check_library();
  report.add("library", library);
  // A library that is not ours would start another's GPU.
  report.add("kernel", library.state == State::OK ? check_kernel() : skipped("no library of ours"));
  return report.end();
}
