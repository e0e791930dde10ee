// SPDX-License-Identifier: Apache-2.0
#include "other_process.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr char VARIABLE[] = "KVGPU_TEST_SOCKET";

// One byte with, perhaps, a descriptor beside it.
struct Message {
  char byte = 'd';
  iovec vector = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  Message() {
    header.msg_iov = &vector;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
};

}  // namespace

OtherProcess::OtherProcess(const char* case_name) {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  socket_ = ends[0];
  fcntl(ends[1], F_SETFD, 0);
  setenv(VARIABLE, std::to_string(ends[1]).c_str(), 1);
  std::string filter = std::string("--test-case=") + case_name, no_skip = "--no-skip",
              program = "cases";
  char* arguments[] = {program.data(), filter.data(), no_skip.data(), nullptr};
  const int error = posix_spawn(&pid_, "/proc/self/exe", nullptr, nullptr, arguments, environ);
  unsetenv(VARIABLE);
  close(ends[1]);
  REQUIRE(error == 0);
}

OtherProcess::~OtherProcess() {
  close(socket_);  // where this case has failed the other one does not wait for ever
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

void OtherProcess::finish() {
  int status = -1;
  REQUIRE(waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  CHECK(status == 0);
}

int socket_to_first_process() {
  const char* number = getenv(VARIABLE);
  REQUIRE(number != nullptr);
  return atoi(number);
}

void send_bytes(int socket, const void* bytes, size_t n) {
  REQUIRE(send(socket, bytes, n, MSG_NOSIGNAL) == static_cast<ssize_t>(n));
}

void receive_bytes(int socket, void* bytes, size_t n) {
  REQUIRE(recv(socket, bytes, n, MSG_WAITALL) == static_cast<ssize_t>(n));
}

void send_descriptor(int socket, int descriptor) {
  Message message;
  cmsghdr* const head = CMSG_FIRSTHDR(&message.header);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof descriptor);
  memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
  REQUIRE(sendmsg(socket, &message.header, MSG_NOSIGNAL) == 1);
}

int receive_descriptor(int socket) {
  Message message;
  REQUIRE(recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC) == 1);
  const cmsghdr* const head = CMSG_FIRSTHDR(&message.header);
  REQUIRE(head != nullptr);
  int descriptor = -1;
  memcpy(&descriptor, CMSG_DATA(head), sizeof descriptor);
  return descriptor;
}
