// SPDX-License-Identifier: Apache-2.0
// Command line, signals and the word to the service manager; agent.h has the rest.
#include <getopt.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "agent.h"
#include "log.h"

namespace {

using kvgpu::agent::log;
using kvgpu::agent::Options;

constexpr char USAGE[] =
    "usage: kvgpu-agentd [OPTION]...\n"
    "Connects the CUDA processes of this VM with kvgpud on its host.\n"
    "  --region FILE    the shared region, instead of looking for PCI device 1af4:1110\n"
    "  --no-region      serve without one, over the port alone\n"
    "  --port FILE      the port to the host or a unix socket, instead of looking for org.kvgpu.0\n"
    "  --socket FILE    where clients connect (/run/kvgpu/guest.sock)\n"
    "  --state FILE     the table that survives a restart (/run/kvgpu/agent.state)\n"
    "  --group NAME     who may connect, beside root (kvgpu)\n"
    "  --devices DIR    of the PCI devices (/sys/bus/pci/devices)\n"
    "  --answer-s N     how long a program waits for the host to open its session (60)\n"
    "  --boot-id HEX    instead of the kernel's\n";

// Each client takes two descriptors, and service managers start with a soft limit of 1024.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 8192);
  setrlimit(RLIMIT_NOFILE, &limit);
}

bool parse(int argc, char** argv, Options& options, std::string& boot_id) {
  static const option LONG[] = {{"region", required_argument, nullptr, 'r'},
                                {"no-region", no_argument, nullptr, 'n'},
                                {"port", required_argument, nullptr, 'p'},
                                {"socket", required_argument, nullptr, 's'},
                                {"state", required_argument, nullptr, 't'},
                                {"group", required_argument, nullptr, 'g'},
                                {"devices", required_argument, nullptr, 'd'},
                                {"answer-s", required_argument, nullptr, 'a'},
                                {"boot-id", required_argument, nullptr, 'b'},
                                {"help", no_argument, nullptr, 'h'},
                                {nullptr, 0, nullptr, 0}};
  for (int c; (c = getopt_long(argc, argv, "", LONG, nullptr)) != -1;) {
    switch (c) {
      case 'r':
        options.region_path = optarg;
        break;
      case 'n':
        options.no_region = true;
        break;
      case 'p':
        options.port_path = optarg;
        break;
      case 's':
        options.socket_path = optarg;
        break;
      case 't':
        options.state_path = optarg;
        break;
      case 'g':
        options.group = optarg;
        break;
      case 'd':
        options.devices_path = optarg;
        break;
      case 'a':
        options.answer_limit = std::chrono::seconds(std::atoi(optarg));
        if (options.answer_limit.count() <= 0) return false;
        break;
      case 'b':
        boot_id = optarg;
        break;
      case 'h':
        std::fputs(USAGE, stdout);
        std::exit(0);
      default:
        return false;
    }
  }
  return optind == argc;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::string boot_id;
  if (!parse(argc, argv, options, boot_id)) {
    std::fputs(USAGE, stderr);
    return 2;
  }
  if (!kvgpu::agent::read_boot_id(boot_id, options.boot_id)) {
    log("the boot id is not 32 hexadecimal digits");
    return 2;
  }
  mkdir("/run/kvgpu", 0755);  // where no service manager makes it; if it fails, bind() says so
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  const kvgpu::agent::UniqueFd signal_fd(signalfd(-1, &signals, SFD_CLOEXEC));
  signal(SIGPIPE, SIG_IGN);
  raise_descriptor_limit();
  return kvgpu::agent::Agent(std::move(options)).run(signal_fd.get()) ? 0 : 1;
}
