// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "unique_fd.h"

namespace kvgpu::agent {

// sd_notify(3)'s protocol, without libsystemd: clients can connect from now on.
inline void notify_service_manager() {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path == nullptr || std::strlen(path) >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path, std::strlen(path));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + std::strlen(path));
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';  // an abstract name
  const UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  constexpr char READY[] = "READY=1";
  sendto(fd.get(), READY, sizeof READY - 1, MSG_NOSIGNAL,
         reinterpret_cast<const sockaddr*>(&address), length);
}

}  // namespace kvgpu::agent
