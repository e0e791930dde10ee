// SPDX-License-Identifier: Apache-2.0
// A client that opens a session as libcuda.so.1 does and then breaks the protocol: hostile_client
// WHAT. Exit 0: the host ended this session. Exit 1: it did not.
#include <cuda.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "kvgpu/calls.h"
#include "kvgpu/control.h"
#include "kvgpu/layout.h"
#include "kvgpu/module_calls.h"
#include "kvgpu/opcodes.gen.h"
#include "kvgpu/ring.h"

using namespace kvgpu;

namespace {

struct Client {
  int socket_fd;
  int kick_fd = -1;
  std::byte* block;

  Client() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, std::getenv(control::SOCKET_ENV), sizeof address.sun_path - 1);
    socket_fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (connect(socket_fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      fail("connect");
    struct {
      control::FrameHeader header;
      control::Open open;
    } frame{};
    frame.header = {control::FRAME_MAGIC, static_cast<uint16_t>(control::Type::OPEN), 0,
                    sizeof frame.open, 1};
    frame.open = {control::PROTOCOL_MAJOR, control::PROTOCOL_MINOR, 0, WINDOWS[0], 0, 0, "hostile"};
    if (::send(socket_fd, &frame, sizeof frame, 0) < 0) fail("send");
    receive_opened();
  }

  void receive_opened() {
    char buffer[8192];
    alignas(cmsghdr) char ancillary[CMSG_SPACE(2 * sizeof(int))];
    iovec io{buffer, sizeof buffer};
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = ancillary;
    message.msg_controllen = sizeof ancillary;
    control::FrameHeader header;
    control::Opened opened;
    if (recvmsg(socket_fd, &message, 0) < static_cast<ssize_t>(sizeof header + sizeof opened))
      fail("open");
    std::memcpy(&header, buffer, sizeof header);
    std::memcpy(&opened, buffer + sizeof header, sizeof opened);
    if (header.type != static_cast<uint16_t>(control::Type::OPENED)) fail("refused");
    int fds[2];
    std::memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fds);
    kick_fd = fds[1];
    void* const mapped = mmap(nullptr, BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0],
                              static_cast<off_t>(opened.block_offset));
    if (mapped == MAP_FAILED) fail("mmap");
    block = static_cast<std::byte*>(mapped);
  }

  [[noreturn]] static void fail(const char* what) {
    std::perror(what);
    std::exit(2);
  }

  // A record at the beginning of the ring, its length as told, not as it is.
  template <typename Body>
  void send_raw(uint16_t opcode, uint32_t len_bytes, const Body& body, uint32_t target = 0,
                uint16_t flags = wire::NOREPLY) const {
    wire::Header header{0, len_bytes, opcode, flags, 0, target, 0};
    std::byte* const ring = block + COMMAND_RING_OFF;
    std::memcpy(ring + sizeof header, &body, sizeof body);
    std::memcpy(ring, &header, sizeof header);
    store_release(*reinterpret_cast<uint64_t*>(ring), 1);
    eventfd_write(kick_fd, 1);
  }
  template <typename Body>
  void send(wire::Op op, const Body& body, uint32_t target = 0) const {
    send_raw(static_cast<uint16_t>(op), sizeof(wire::Header) + sizeof body, body, target);
  }

  bool ended() const {
    pollfd wait{socket_fd, POLLIN, 0};
    return poll(&wait, 1, 5000) > 0;  // CLOSED, or end of file
  }
};

using Attack = void (*)(const Client&);

constexpr uint32_t HEAD = sizeof(wire::Header);
const wire::Handle NO_STREAM = wire::make_handle(wire::Kind::STREAM, 0, 12345, 1);

const std::map<std::string, Attack> ATTACKS = {
    {"length_zero", [](const Client& c) { c.send_raw(1, 0, wire::Hello{}); }},
    {"length_huge", [](const Client& c) { c.send_raw(1, 0xffffffff, wire::Hello{}); }},
    {"length_over_limit",
     [](const Client& c) { c.send_raw(1, wire::MAX_RECORD_BYTES + 64, wire::Hello{}); }},
    {"pad_in_the_middle", [](const Client& c) { c.send_raw(0, 64, wire::Hello{}, 0, wire::PAD); }},
    {"unknown_opcode", [](const Client& c) { c.send_raw(999, HEAD + 8, wire::Hello{}); }},
    {"event_opcode", [](const Client& c) { c.send(wire::Op::REPLY, wire::Hello{}); }},
    {"opcode_out_of_table", [](const Client& c) { c.send_raw(0xffff, HEAD + 8, wire::Hello{}); }},
    {"unknown_endpoint",
     [](const Client& c) { c.send(wire::Op::HELLO, wire::Hello{}, wire::make_target(5, 0)); }},
    {"unknown_device",
     [](const Client& c) { c.send(wire::Op::HELLO, wire::Hello{}, wire::make_target(0, 200)); }},
    {"body_too_short",
     [](const Client& c) { c.send_raw(uint16_t(wire::Op::cuLaunchKernel), HEAD + 8, NO_STREAM); }},
    {"unknown_stream", [](const Client& c) { c.send(wire::Op::MARK, wire::Mark{NO_STREAM, 1}); }},
    {"slab_out_of_range",
     [](const Client& c) { c.send(wire::Op::UPLOAD, wire::Upload{1, 64, 0, SLAB_BYTES - 1, 64}); }},
    {"slab_overflow",
     [](const Client& c) { c.send(wire::Op::UPLOAD, wire::Upload{1, 64, 0, ~0ull, 64}); }},
    {"blob_chunk_past_end",
     [](const Client& c) { c.send(wire::Op::UPLOAD, wire::Upload{1, 16, 8, 0, 4096}); }},
    {"word_out_of_range",
     [](const Client& c) {
       c.send(
           wire::Op::cuDevicePrimaryCtxRetain,
           wire::ContextRetain{wire::make_handle(wire::Kind::CONTEXT, 0, 1, 1),
                               wire::make_handle(wire::Kind::STREAM, 0, 1, 1), 1u << 30, 0, 0, 0});
     }},
    {"blocks_without_reply",
     [](const Client& c) { c.send(wire::Op::STREAM_SYNC, wire::StreamRef{NO_STREAM}); }},
    {"name_past_the_record",
     [](const Client& c) {
       c.send(wire::Op::cuLibraryGetKernel, wire::GetFunction{0, 1, 2, 4096, 0});
     }},
    {"event_credit_ahead",
     [](const Client& c) {
       auto* page = reinterpret_cast<GuestPage*>(c.block + GUEST_PAGE_OFF);
       store_release(page->event_credit, 1ull << 40);
       // Replies until the host needs room and looks at the credit.
       Producer commands(c.block + COMMAND_RING_OFF, COMMAND_RING_BYTES,
                         &reinterpret_cast<HostPage*>(c.block + HOST_PAGE_OFF)->command_credit);
       for (int i = 0; i < 2000; ++i) {
         wire::Header header{0, 0, uint16_t(wire::Op::HELLO), 0, uint64_t(i + 1), 0, 0};
         for (int tries = 0; !commands.reserve(HEAD + 8) && tries < 100000; ++tries) usleep(10);
         if (i > 300) return;
         commands.write(header, part(wire::Hello{}));
         eventfd_write(c.kick_fd, 1);
       }
     }},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--list") {
    for (const auto& [name, attack] : ATTACKS) std::puts(name.c_str());
    return 0;
  }
  const auto attack = argc == 2 ? ATTACKS.find(argv[1]) : ATTACKS.end();
  if (attack == ATTACKS.end()) {
    std::fprintf(stderr, "usage: hostile_client --list | WHAT\n");
    return 2;
  }
  const Client client;
  attack->second(client);
  return client.ended() ? 0 : 1;
}
