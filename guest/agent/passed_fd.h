// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstring>
#include <initializer_list>

namespace kvgpu::agent {

// Room for descriptors beside a message. Must live until sendmsg().
class PassedFds {
 public:
  static constexpr size_t MAX_FDS = 2;

  // Negative ones are left out.
  void add_to(msghdr& message, std::initializer_list<int> fds) {
    size_t n_fds = 0;
    for (const int fd : fds) {
      if (fd >= 0) std::memcpy(CMSG_DATA(header()) + sizeof fd * n_fds++, &fd, sizeof fd);
    }
    if (n_fds == 0) return;
    header()->cmsg_level = SOL_SOCKET;
    header()->cmsg_type = SCM_RIGHTS;
    header()->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
    message.msg_control = bytes_.data();
    message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
  }

 private:
  cmsghdr* header() { return reinterpret_cast<cmsghdr*>(bytes_.data()); }

  alignas(cmsghdr) std::array<char, CMSG_SPACE(MAX_FDS * sizeof(int))> bytes_{};
};

}  // namespace kvgpu::agent
