// SPDX-License-Identifier: Apache-2.0
#include "host_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "kvgpu/control.h"

namespace kvgpu::guest {

const char* host_socket_path() {
  const char* path = secure_getenv(control::SOCKET_ENV);
  return path != nullptr ? path : control::GUEST_SOCKET;
}

int connect_to_host() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, host_socket_path(), sizeof address.sun_path - 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

const char* host_socket_hint(int error) {
  if (error == EACCES) return "Add this user to the group kvgpu (adduser USER kvgpu), log in again";
  if (std::strcmp(host_socket_path(), control::GUEST_SOCKET) == 0) {
    return "Start kvgpu's agent: systemctl start kvgpu-agentd (its log: journalctl -u "
           "kvgpu-agentd)";
  }
  return "Is kvgpud running (systemctl status kvgpud), or in a VM kvgpu-agentd?";
}

}  // namespace kvgpu::guest
