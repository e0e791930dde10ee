// SPDX-License-Identifier: Apache-2.0
#include "service_manager.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "passed_fd.h"

namespace kvgpu::agent {

namespace {

constexpr int FIRST_PASSED_FD = 3;  // sd_listen_fds(3)
constexpr int MAX_PASSED_FDS = 4096;

void notify(std::string state, int fd_to_pass = -1) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path == nullptr || std::strlen(path) >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path, std::strlen(path));
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';  // an abstract name
  const UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return;
  iovec part{state.data(), state.size()};
  PassedFds passed;
  msghdr message{};
  message.msg_name = &address;
  message.msg_namelen = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + std::strlen(path));
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  passed.add_to(message, {fd_to_pass});
  sendmsg(fd.get(), &message, MSG_NOSIGNAL);
}

int to_number(const char* text) { return text == nullptr ? 0 : std::atoi(text); }

}  // namespace

void notify_ready() { notify("READY=1"); }

void store_fd(const std::string& name, int fd) { notify("FDSTORE=1\nFDNAME=" + name, fd); }

void forget_fd(const std::string& name) { notify("FDSTOREREMOVE=1\nFDNAME=" + name); }

std::map<std::string, UniqueFd> take_stored_fds() {
  std::map<std::string, UniqueFd> fds;
  const int n_fds = to_number(std::getenv("LISTEN_FDS"));
  const char* names = std::getenv("LISTEN_FDNAMES");
  if (to_number(std::getenv("LISTEN_PID")) != getpid() || names == nullptr) return fds;
  if (n_fds < 0 || n_fds > MAX_PASSED_FDS) return fds;
  std::istringstream stream(names);
  std::string name;
  for (int fd = FIRST_PASSED_FD; fd < FIRST_PASSED_FD + n_fds; ++fd) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (!std::getline(stream, name, ':')) name.clear();
    fds[name] = UniqueFd(fd);
  }
  return fds;
}

}  // namespace kvgpu::agent
