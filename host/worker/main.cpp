// SPDX-License-Identifier: Apache-2.0
// kvgpu-worker: owns the real GPU for one guest process. See DESIGN.md and PROTOCOL.md §5.
#include <getopt.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "address_window.h"
#include "control.h"
#include "crash.h"
#include "driver.h"
#include "inventory.h"
#include "jail.h"
#include "log.h"
#include "progress_watch.h"
#include "ready_context.h"
#include "session.h"
#include "stream_end.h"
#include "telemetry.h"
#include "usage.h"

namespace kvgpu::worker {

namespace {

struct Options {
  SessionConfig session;
  JailConfig jail{};
  bool inventory = false;
  bool telemetry = false;
  bool no_jail = false;
  bool prestart = false;      // there is no session yet
  bool with_context = false;  // and there is to be a context
  std::chrono::seconds away_limit{0};
  bool stream = false;  // the byte-stream form: no memory is shared with the guest
};

[[noreturn]] void usage() {
  std::fprintf(stderr,
               "usage: kvgpu-worker --inventory|--telemetry --driver PATH\n"
               "       kvgpu-worker --session ID --region-bytes N --block-offset N --window 0xW "
               "--driver PATH [--devices 0,1] [--uid N --gid N [--max-tasks N] "
               "[--join PID,...] | --no-jail] [--away-s N | --stream]\n"
               "       kvgpu-worker --prestart --window 0xW --driver PATH [--devices 0,1] "
               "[--with-context] [--uid N --gid N [--max-tasks N] | --no-jail]\n"
               "kvgpud starts workers; by hand only --inventory is of use.\n");
  std::exit(2);
}

uint64_t number(const char* text) {
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text, &end, 0);
  if (end == text || *end != '\0') usage();
  return value;
}

std::vector<pid_t> numbers(const std::string& list) {
  std::istringstream parts(list);
  std::vector<pid_t> result;
  for (std::string part; std::getline(parts, part, ',');) {
    result.push_back(static_cast<pid_t>(number(part.c_str())));
  }
  return result;
}

Options parse(int argc, char** argv) {
  enum {
    SESSION = 1,
    REGION,
    BLOCK,
    WINDOW,
    DRIVER,
    DEVICES,
    UID,
    GID,
    MAX_TASKS,
    NO_JAIL,
    AWAY,
    STREAM,
    INVENTORY,
    TELEMETRY,
    PRESTART,
    WITH_CONTEXT,
    JOIN
  };
  const option known[] = {{"session", 1, nullptr, SESSION},
                          {"region-bytes", 1, nullptr, REGION},
                          {"block-offset", 1, nullptr, BLOCK},
                          {"window", 1, nullptr, WINDOW},
                          {"driver", 1, nullptr, DRIVER},
                          {"devices", 1, nullptr, DEVICES},
                          {"uid", 1, nullptr, UID},
                          {"gid", 1, nullptr, GID},
                          {"max-tasks", 1, nullptr, MAX_TASKS},
                          {"no-jail", 0, nullptr, NO_JAIL},
                          {"away-s", 1, nullptr, AWAY},
                          {"stream", 0, nullptr, STREAM},
                          {"inventory", 0, nullptr, INVENTORY},
                          {"telemetry", 0, nullptr, TELEMETRY},
                          {"prestart", 0, nullptr, PRESTART},
                          {"with-context", 0, nullptr, WITH_CONTEXT},
                          {"join", 1, nullptr, JOIN},
                          {nullptr, 0, nullptr, 0}};
  Options options;
  options.session.region_fd = REGION_FD;
  options.session.kick_fd = KICK_FD;
  for (int which; (which = getopt_long(argc, argv, "", known, nullptr)) != -1;) {
    switch (which) {
      case SESSION:
        options.session.session_id = static_cast<uint32_t>(number(optarg));
        break;
      case REGION:
        options.session.region_bytes = number(optarg);
        break;
      case BLOCK:
        options.session.block_offset = number(optarg);
        break;
      case WINDOW:
        options.session.window = number(optarg);
        break;
      case DRIVER:
        options.jail.driver_path = optarg;
        break;
      case DEVICES:
        setenv("CUDA_VISIBLE_DEVICES", optarg, 1);
        break;
      case UID:
        options.jail.uid = static_cast<uid_t>(number(optarg));
        break;
      case GID:
        options.jail.gid = static_cast<gid_t>(number(optarg));
        break;
      case MAX_TASKS:
        options.jail.max_tasks = number(optarg);
        break;
      case JOIN:
        options.jail.join = numbers(optarg);
        break;
      case NO_JAIL:
        options.no_jail = true;
        break;
      case AWAY:
        options.away_limit = std::chrono::seconds(number(optarg));
        break;
      case STREAM:
        options.stream = true;
        break;
      case INVENTORY:
        options.inventory = true;
        break;
      case TELEMETRY:
        options.telemetry = true;
        break;
      case PRESTART:
        options.prestart = true;
        break;
      case WITH_CONTEXT:
        options.with_context = true;
        break;
      default:
        usage();
    }
  }
  if (options.jail.driver_path.empty()) usage();
  const uint64_t* const chosen =
      std::find(std::begin(WINDOWS), std::end(WINDOWS), options.session.window);
  // The guest chose the window: anything else could be mapped over ourselves.
  const bool has_region = options.session.region_bytes != 0;
  if (!options.inventory && !options.telemetry &&
      (has_region == options.prestart || chosen == std::end(WINDOWS))) {
    usage();
  }
  return options;
}

[[noreturn]] void refuse(CUresult error, const std::string& reason) {
  log("cannot start: %s", reason.c_str());
  Control::report_failure(error, reason);
  std::exit(static_cast<int>(ExitStatus::FAILED));
}

void confine(const Options& options) {
  std::string error;
  if (geteuid() == 0 && !options.no_jail) {
    if (options.jail.uid == 0) refuse(CUDA_ERROR_SYSTEM_NOT_READY, "a worker must not keep uid 0");
    if (!enter_jail(options.jail, &error)) refuse(CUDA_ERROR_SYSTEM_NOT_READY, error);
  } else {
    log("no jail: the worker keeps uid %u", geteuid());
  }
  const bool has_listener = options.away_limit.count() > 0 || options.prestart;
  const int last_fd = options.stream ? STREAM_FD : has_listener ? LISTENER_FD : KICK_FD;
  if (!drop_inherited(last_fd, &error)) refuse(CUDA_ERROR_SYSTEM_NOT_READY, error);
}

int start_driver(const Options& options, DriverTable* driver) {
  std::string error;
  if (!load_driver(options.jail.driver_path.c_str(), driver, &error)) {
    refuse(CUDA_ERROR_SYSTEM_NOT_READY, error);
  }
  CUresult result = driver->cuInit(0);
  int n_devices = 0;
  if (result == CUDA_SUCCESS) result = driver->cuDeviceGetCount(&n_devices);
  if (result != CUDA_SUCCESS) refuse(result, "the driver answers " + error_name(*driver, result));
  if (n_devices == 0) refuse(CUDA_ERROR_NO_DEVICE, "the driver has no device");
  if (n_devices > static_cast<int>(MAX_DEVICES)) {
    refuse(CUDA_ERROR_NOT_SUPPORTED, "more than 16 devices: choose some with --devices");
  }
  return n_devices;
}

void take_session(int n_devices, SessionConfig* config, std::chrono::seconds* away_limit) {
  const auto assignment = Control::wait_for_session(static_cast<uint32_t>(n_devices));
  if (!assignment) end_session("there was none for this worker", ExitStatus::ENDED);
  config->session_id = assignment->session_id;
  config->region_bytes = assignment->region_bytes;
  config->block_offset = assignment->block_offset;
  *away_limit = assignment->away_limit;
}

[[noreturn]] void serve(const Options& options) {
  std::string error;
  // In nanoseconds, of all threads: with the kernel's 50 µs a pause of 20 takes 70.
  (void)prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
  Control::remember_owner();
  log_crashes();
  confine(options);
  static StreamEnd stream;
  SessionConfig config = options.session;
  std::chrono::seconds away_limit = options.away_limit;
  if (options.stream) {
    if (!stream.open(config.window, config.region_fd, config.region_bytes, &error)) {
      refuse(CUDA_ERROR_OUT_OF_MEMORY, error);
    }
    config.wake_fd = stream.wake_fd();
  }
  if (!fill_above_window(options.session.window, &error)) refuse(CUDA_ERROR_OUT_OF_MEMORY, error);
  static DriverTable driver;
  const int n_devices = start_driver(options, &driver);
  const CUcontext context = options.with_context ? ReadyContext::make(driver) : nullptr;
  std::vector<wire::DeviceInfo> devices;
  if (options.prestart) {
    if (list_devices(driver, &devices) != CUDA_SUCCESS) devices.clear();
    take_session(n_devices, &config, &away_limit);
  }

  std::byte* const block = map_block(config, &error);
  if (block == nullptr) refuse(CUDA_ERROR_OUT_OF_MEMORY, error);
  auto* const page = reinterpret_cast<HostPage*>(block + HOST_PAGE_OFF);
  static Control control(config.session_id, page, away_limit);
  page->version = uint32_t{control::PROTOCOL_MAJOR} << 16 | control::PROTOCOL_MINOR;
  const char* progress = std::getenv("KVGPU_PROGRESS");
  const bool by_records =
      options.stream || (progress != nullptr && std::strcmp(progress, "records") == 0);
  page->features = by_records ? control::FEATURE_PROGRESS_RECORDS : 0;
  page->magic = BLOCK_MAGIC;
  static Session session(config, block, &driver, n_devices, &control);
  session.ready_context.hold(context);
  session.known_devices = std::move(devices);
  static ProgressWatch progress_watch(session.progress_word(0), &session.events);
  if (by_records) {
    session.progress = &progress_watch;
    std::thread([] { progress_watch.run(); }).detach();
  }
  if (!session.output.capture()) refuse(CUDA_ERROR_SYSTEM_NOT_READY, "cannot capture the output");
  session.start();
  std::thread([] { session.read_commands(); }).detach();
  if (options.stream) {
    stream.attach(session);
    std::thread([] { stream.serve(); }).detach();
  }
  if (context != nullptr) std::thread([] { session.ready_context.drop_later(driver); }).detach();
  log("session %u: %d devices, block at 0x%llx", config.session_id, n_devices,
      static_cast<unsigned long long>(config.window + config.block_offset));
  control.ready(static_cast<uint32_t>(n_devices));
  const auto measure = [] {
    thread_local const bool prepared = (prepare_driver_thread(driver), true);
    (void)prepared;
    return measure_usage(session);
  };
  const std::string why = control.serve(measure, [] { return report_activity(session); });
  session.ending = true;
  store_release(page->ended, 1);
  end_session(why, ExitStatus::ENDED);
}

}  // namespace

}  // namespace kvgpu::worker

int main(int argc, char** argv) {
  using namespace kvgpu::worker;
  const Options options = parse(argc, argv);
  if (options.telemetry) return print_telemetry(options.jail.driver_path);
  if (!options.inventory) serve(options);
  DriverTable driver;
  std::string error;
  if (!load_driver(options.jail.driver_path.c_str(), &driver, &error)) {
    std::fprintf(stderr, "kvgpu-worker: %s\n", error.c_str());
    return 1;
  }
  return print_inventory(driver);
}
