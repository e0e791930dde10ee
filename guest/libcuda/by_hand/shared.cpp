// SPDX-License-Identifier: Apache-2.0
// A descriptor is one end of a pair of sockets that holds the token as a message, which is looked
// at and never taken out. The other end stays here: it hears when nobody has the first one any
// more.
#include "shared.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#include "session.h"

namespace kvgpu::guest {

namespace {

struct Message {
  uint64_t magic;
  wire::Token token;
};
constexpr uint64_t MAGIC = 0x6e656b6f7475676bull;  // "kgutoken"

struct Kept {
  int fd;
  wire::Token token;
};
std::mutex mutex;
auto& kept = *new std::vector<Kept>;
std::atomic<bool> any_kept{false};  // a look for most programs; what it misses is seen next time

CUresult revoke(const wire::Token& token) {
  const wire::Revoke body{token};
  return Session::get().call(wire::Op::REVOKE, 0, nullptr, part(body));
}

}  // namespace

CUresult make_descriptor(const wire::Token& token, int* fd) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    (void)revoke(token);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  const Message message{MAGIC, token};
  (void)!send(ends[0], &message, sizeof message, MSG_NOSIGNAL);  // there is room for the first
  const std::lock_guard lock(mutex);
  kept.push_back({ends[0], token});
  any_kept = true;
  *fd = ends[1];
  return CUDA_SUCCESS;
}

std::optional<wire::Token> token_in(int fd) {
  Message message{};
  const ssize_t n = recv(fd, &message, sizeof message, MSG_PEEK | MSG_DONTWAIT);
  if (n != static_cast<ssize_t>(sizeof message) || message.magic != MAGIC) return std::nullopt;
  return message.token;
}

void revoke_closed() {
  if (!any_kept) return;
  const std::lock_guard lock(mutex);
  std::erase_if(kept, [](const Kept& each) {
    pollfd other{each.fd, 0, 0};
    if (poll(&other, 1, 0) <= 0 || (other.revents & POLLHUP) == 0) return false;
    close(each.fd);
    (void)revoke(each.token);
    return true;
  });
  any_kept = !kept.empty();
}

void put_token(char* bytes, const wire::Token& token) {
  const Message message{MAGIC, token};
  std::memset(bytes, 0, CU_IPC_HANDLE_SIZE);
  std::memcpy(bytes, &message, sizeof message);
}

std::optional<wire::Token> token_in(const char* bytes) {
  Message message;
  std::memcpy(&message, bytes, sizeof message);
  if (message.magic != MAGIC) return std::nullopt;
  return message.token;
}

}  // namespace kvgpu::guest
