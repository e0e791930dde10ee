// SPDX-License-Identifier: Apache-2.0
#include "host_link.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "cuda_api.h"
#include "host_socket.h"
#include "kvgpu/control.h"
#include "log.h"
#include "session.h"

namespace kvgpu::guest {

namespace {

constexpr timeval ANSWER_LIMIT{10, 0};  // kvgpud may still be waiting for its driver

// The host driver's version; 0 where it is not to be had.
int ask_driver_version() {
  const int socket = connect_to_host();
  if (socket < 0) {
    log(Level::DEBUG, "nobody to ask for the host's driver at %s: %s", host_socket_path(),
        strerror(errno));
    return 0;
  }
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &ANSWER_LIMIT, sizeof ANSWER_LIMIT);
  const control::FrameHeader query{control::FRAME_MAGIC,
                                   static_cast<uint16_t>(control::Type::QUERY), 0, 0, 1};
  struct {
    control::FrameHeader header;
    control::Facts facts;
  } answer{};
  const bool sent = ::send(socket, &query, sizeof query, MSG_NOSIGNAL) == sizeof query;
  const ssize_t n_bytes = sent ? recv(socket, &answer, sizeof answer, 0) : -1;
  close(socket);
  if (n_bytes < static_cast<ssize_t>(sizeof answer) ||
      answer.header.type != static_cast<uint16_t>(control::Type::FACTS)) {
    log(Level::DEBUG, "the host's driver is not known yet: %s does not say", host_socket_path());
    return 0;
  }
  return answer.facts.driver_version;
}

}  // namespace

int served_cuda_version() {
  const Session& session = Session::get();
  if (session.is_open()) return session.driver_version();
  // No lock: a fork may happen at any time, and two threads that both ask do no harm.
  static std::atomic<int> known{0};
  int version = known.load(std::memory_order_relaxed);
  if (version == 0) {
    version = ask_driver_version();
    version = version <= 0 ? CUDA_VERSION : std::min(version, static_cast<int>(CUDA_VERSION));
    known.store(version, std::memory_order_relaxed);
  }
  return version;
}

}  // namespace kvgpu::guest
