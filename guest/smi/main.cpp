// SPDX-License-Identifier: Apache-2.0
// kvgpu-smi [-L | --json]: the GPUs of this VM, for guests without NVIDIA's nvidia-smi.
#include <cstdio>
#include <cstring>

#include "devices.h"
#include "output.h"

namespace {

constexpr char USAGE[] =
    "usage: kvgpu-smi [-L | --json]\n"
    "Shows the GPUs of this machine, what its programs use of them, and the programs.\n"
    "  -L      names and UUIDs only\n"
    "  --json  the same as one JSON object; null where a device does not say\n"
    "Exit status 0: shown; 1: there is no way to the host's GPUs, and the reason is said.\n";

}  // namespace

int main(int argc, char** argv) {
  using namespace kvgpu::smi;
  const char* const form = argc == 2 ? argv[1] : "";
  const bool names = std::strcmp(form, "-L") == 0, json = std::strcmp(form, "--json") == 0;
  if (argc > 1 && !names && !json) {
    const bool help = std::strcmp(form, "--help") == 0;
    std::fputs(USAGE, help ? stdout : stderr);
    return help ? 0 : 2;
  }
  Nvml nvml;
  std::string problem;
  if (!nvml.start(&problem)) {
    std::fprintf(stderr, "kvgpu-smi: %s\n", problem.c_str());
    return 1;
  }
  const auto devices = list_devices(nvml);
  (names ? print_names : json ? print_json : print_table)(devices);
  return 0;
}
