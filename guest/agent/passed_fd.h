// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstring>

namespace kvgpu::agent {

// Room for one descriptor beside a message. Must live until sendmsg().
class PassedFd {
 public:
  // A negative FD adds nothing.
  void add_to(msghdr& message, int fd) {
    if (fd < 0) return;
    message.msg_control = bytes_.data();
    message.msg_controllen = bytes_.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }

 private:
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> bytes_{};
};

}  // namespace kvgpu::agent
