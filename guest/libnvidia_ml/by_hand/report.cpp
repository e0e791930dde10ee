// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "host_socket.h"
#include "kvgpu/control.h"
#include "log.h"

namespace kvgpu::nvml {

namespace {

using Clock = std::chrono::steady_clock;
using guest::Level;
using guest::log;

constexpr size_t MAX_FRAME_BYTES = sizeof(control::FrameHeader) + control::MAX_PAYLOAD_BYTES;
// CUDA 13.0 cuda.h, of which no more is needed.
constexpr int32_t CUDA_NOT_SUPPORTED = 801;

struct Socket {
  const int fd;
  ~Socket() {
    if (fd >= 0) close(fd);
  }
};

// The length of the one message that comes; 0: the other side hung up, -1: nothing came in time.
ssize_t receive(int fd, std::span<char> buffer, Clock::time_point end) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    pollfd answer{fd, POLLIN, 0};
    const int n_ready = left.count() > 0 ? poll(&answer, 1, static_cast<int>(left.count())) : 0;
    if (n_ready < 0 && errno == EINTR) continue;  // a signal handler of the program's
    if (n_ready <= 0) return -1;
    const ssize_t n = recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n >= 0) return n;
    if (errno != EINTR && errno != EAGAIN) return 0;
  }
}

template <typename T>
bool take(std::span<const char>* from, std::vector<T>* items, uint32_t n) {
  if (n > from->size() / sizeof(T)) return false;
  items->resize(n);
  if (n != 0) std::memcpy(items->data(), from->data(), n * sizeof(T));
  *from = from->subspan(n * sizeof(T));
  return true;
}

bool parse(std::span<const char> payload, Report* report) {
  auto& head = report->head;
  if (payload.size() < sizeof head) return false;
  std::memcpy(&head, payload.data(), sizeof head);
  head.pci_bus_id[sizeof head.pci_bus_id - 1] = '\0';
  head.name[sizeof head.name - 1] = '\0';
  head.driver_release[sizeof head.driver_release - 1] = '\0';
  payload = payload.subspan(sizeof head);
  return head.major == control::PROTOCOL_MAJOR &&
         take(&payload, &report->processes, head.n_processes) &&
         take(&payload, &report->readings, head.n_readings);
}

nvmlReturn_t refused(std::span<const char> payload) {
  control::Failure failure{};
  if (payload.size() < sizeof failure) return NVML_ERROR_UNKNOWN;
  std::memcpy(&failure, payload.data(), sizeof failure);
  const auto text = payload.subspan(sizeof failure);
  log(Level::WARNING, "NVML: %.*s", static_cast<int>(text.size()), text.data());
  return failure.cuda_error == CUDA_NOT_SUPPORTED ? NVML_ERROR_NOT_SUPPORTED
                                                  : NVML_ERROR_DRIVER_NOT_LOADED;
}

nvmlReturn_t no_answer(ssize_t n) {
  if (n < 0) {
    log(Level::WARNING, "NVML: no answer from %s: see the log of kvgpud on the host",
        guest::host_socket_path());
    return NVML_ERROR_TIMEOUT;
  }
  log(Level::WARNING,
      "NVML: %s hung up: an older kvgpu-agentd or kvgpud does not know what NVML asks. Upgrade "
      "kvgpu-host on the host, in a VM kvgpu-guest, too",
      guest::host_socket_path());
  return NVML_ERROR_NOT_SUPPORTED;
}

}  // namespace

std::optional<uint64_t> Report::find(control::Reading reading) const {
  const auto found =
      std::ranges::find(readings, static_cast<uint32_t>(reading), &control::DeviceReading::reading);
  return found == readings.end() ? std::nullopt : std::optional(found->value);
}

nvmlReturn_t ask(unsigned device, std::chrono::milliseconds limit, Report* report) {
  const auto end = Clock::now() + limit;
  const Socket socket{guest::connect_to_host()};
  if (socket.fd < 0) {
    const int error = errno;
    log(Level::WARNING, "NVML: cannot reach %s: %s. %s", guest::host_socket_path(), strerror(error),
        guest::host_socket_hint(error));
    return error == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
  }
  const struct {
    control::FrameHeader header;
    control::DeviceQuery query;
  } frame{{control::FRAME_MAGIC, static_cast<uint16_t>(control::Type::DEVICE_QUERY), 0,
           sizeof(control::DeviceQuery), 1},
          {device, 0}};
  char buffer[MAX_FRAME_BYTES];
  const bool sent = send(socket.fd, &frame, sizeof frame, MSG_NOSIGNAL) == sizeof frame;
  const ssize_t n = sent ? receive(socket.fd, buffer, end) : 0;
  control::FrameHeader header{};
  if (n < static_cast<ssize_t>(sizeof header)) return no_answer(n);
  std::memcpy(&header, buffer, sizeof header);
  const std::span payload(buffer + sizeof header, static_cast<size_t>(n) - sizeof header);
  if (header.type == static_cast<uint16_t>(control::Type::REFUSED)) return refused(payload);
  if (header.type != static_cast<uint16_t>(control::Type::DEVICE_REPORT) ||
      !parse(payload, report)) {
    log(Level::WARNING, "NVML: %s answers what is not understood", guest::host_socket_path());
    return NVML_ERROR_UNKNOWN;
  }
  return NVML_SUCCESS;
}

}  // namespace kvgpu::nvml
