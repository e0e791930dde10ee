// SPDX-License-Identifier: Apache-2.0
// A worker without a driver: answers every record with success at once, and adds its opcode to the
// file NULL_WORKER_LOG. A call of the library that succeeds here without a line there has done
// nothing.
// NULL_WORKER_ADDRESSES: the opcodes whose replies begin with a device address, with commas
// between.
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kvgpu/barrier.h"
#include "kvgpu/calls.h"
#include "kvgpu/control.h"
#include "kvgpu/graph_calls.h"
#include "kvgpu/layout.h"
#include "kvgpu/memory_calls.h"
#include "kvgpu/opcodes.gen.h"
#include "kvgpu/ring.h"

using namespace kvgpu;

namespace {

enum { CONTROL_FD = 3, REGION_FD = 4 };

class NullWorker {
 public:
  NullWorker(uint64_t block_offset, uint64_t window)
      : block_(
            static_cast<std::byte*>(mmap(nullptr, BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
                                         REGION_FD, static_cast<off_t>(block_offset)))),
        next_address_(window - DEVICE_WINDOW_BYTES + ADDRESS_STEP),
        commands_(block_ + COMMAND_RING_OFF, COMMAND_RING_BYTES,
                  &reinterpret_cast<HostPage*>(block_)->command_credit),
        events_(block_ + EVENT_RING_OFF, EVENT_RING_BYTES,
                &reinterpret_cast<GuestPage*>(block_ + GUEST_PAGE_OFF)->event_credit),
        addresses_(numbers(std::getenv("NULL_WORKER_ADDRESSES"))),
        log_(std::fopen(std::getenv("NULL_WORKER_LOG"), "a")) {
    auto* const page = reinterpret_cast<HostPage*>(block_);
    page->version = VERSION;
    page->magic = BLOCK_MAGIC;
  }

  [[noreturn]] void serve() {
    std::vector<std::byte> record(wire::MAX_RECORD_BYTES);
    for (;;) {
      wire::Header header{};
      if (!commands_.peek(&header)) {
        if (commands_.unpublished()) commands_.publish();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        continue;
      }
      commands_.take(header, record.data());
      body_ = record.data() + sizeof header;
      body_bytes_ = header.len_bytes - sizeof header;
      handle(header);
    }
  }

 private:
  static constexpr uint64_t ADDRESS_STEP = 4 * GIB;
  static constexpr uint32_t VERSION =
      uint32_t{control::PROTOCOL_MAJOR} << 16 | control::PROTOCOL_MINOR;

  static std::set<uint16_t> numbers(const char* text) {
    std::set<uint16_t> found;
    for (char* end = nullptr; *text != '\0'; text = *end == ',' ? end + 1 : end) {
      found.insert(static_cast<uint16_t>(std::strtoul(text, &end, 10)));
    }
    return found;
  }

  template <typename T>
  T body() const {
    T value{};
    std::memcpy(&value, body_, std::min<size_t>(sizeof value, body_bytes_));
    return value;
  }

  void handle(const wire::Header& header) {
    std::fprintf(log_, "%u\n", header.opcode);
    std::fflush(log_);
    note_streams(static_cast<wire::Op>(header.opcode));
    finish_work();
    if (header.flags & wire::NOREPLY) return;
    // Whatever the reply's form: zeroes, after an address of the guest's own window where it is
    // one.
    std::vector<std::byte> out(1024);
    if (addresses_.contains(header.opcode)) {
      std::memcpy(out.data(), &next_address_, sizeof next_address_);
      next_address_ += ADDRESS_STEP;
    }
    if (header.opcode == static_cast<uint16_t>(wire::Op::cuGraphAddNode_v2)) {
      std::memcpy(out.data() + sizeof(wire::GraphNodeNamed), &next_address_, sizeof next_address_);
      next_address_ += ADDRESS_STEP;
    }
    if (header.opcode == static_cast<uint16_t>(wire::Op::cuIpcOpenMemHandle_v2)) {
      const wire::OpenedMemory opened{next_address_, PAGE_BYTES};
      std::memcpy(out.data(), &opened, sizeof opened);
    }
    if (header.opcode == static_cast<uint16_t>(wire::Op::HELLO)) out = hello();
    if (header.opcode == static_cast<uint16_t>(wire::Op::HEAP_GROW)) out = extent();
    if (header.opcode == static_cast<uint16_t>(wire::Op::GRAPH_FUNCTIONS)) out = host_node();
    wire::Header answer{};
    answer.opcode = static_cast<uint16_t>(wire::Op::REPLY);
    answer.flags = wire::NOREPLY;
    answer.call_id = header.call_id;
    const wire::Reply reply{};
    while (!events_.reserve(static_cast<uint32_t>(sizeof answer + sizeof reply + out.size()))) {
      std::this_thread::yield();
    }
    events_.write(answer, part(reply), Part{out.data(), static_cast<uint32_t>(out.size())});
  }

  void note_streams(wire::Op op) {
    if (op == wire::Op::cuStreamCreate) {
      const auto stream = body<wire::StreamCreate>();
      words_[stream.stream] = stream.word;
    } else if (op == wire::Op::cuDevicePrimaryCtxRetain || op == wire::Op::cuCtxCreate_v2) {
      const auto context = body<wire::ContextRetain>();
      words_[context.legacy_stream] = context.legacy_word;
    }
  }

  // Work is done as soon as it is there: a record that begins with a stream and a number.
  void finish_work() {
    const auto work = body<wire::Enqueue>();
    const auto word = words_.find(work.stream);
    if (word == words_.end() || work.mark == 0 || word->second >= N_PROGRESS_WORDS) return;
    auto& number = reinterpret_cast<uint64_t*>(block_ + PROGRESS_OFF)[word->second];
    if (number < work.mark) store_release(number, work.mark);
  }

  std::vector<std::byte> hello() const {
    const wire::HelloReply reply{VERSION, control::FEATURES & body<wire::Hello>().features, 13000,
                                 1};
    wire::DeviceInfo device{"null", "0000:01:00.0", {1}, 1ull << 30, {}};
    for (int32_t& attribute : device.attributes) attribute = 1024;
    std::vector<std::byte> out(sizeof reply + sizeof device);
    std::memcpy(out.data(), &reply, sizeof reply);
    std::memcpy(out.data() + sizeof reply, &device, sizeof device);
    return out;
  }

  // Every graph has one host node: the one that every_row.py names.
  static std::vector<std::byte> host_node() {
    const struct {
      wire::GraphListed head;
      wire::GraphFunction node;
    } answer{{1, 1}, {wire::make_handle(wire::Kind::GRAPH_NODE, 0, 1, 1), 1}};
    std::vector<std::byte> out(sizeof answer);
    std::memcpy(out.data(), &answer, sizeof answer);
    return out;
  }

  // Pinned memory is kvgpud's to give.
  std::vector<std::byte> extent() const {
    struct {
      control::FrameHeader header;
      control::ExtentAlloc wanted;
    } ask{{control::FRAME_MAGIC, static_cast<uint16_t>(control::Type::EXTENT_ALLOC), 0, 8, 1},
          {body<wire::HeapGrow>().bytes}};
    struct {
      control::FrameHeader header;
      control::Extent extent;
    } answer{};
    if (send(CONTROL_FD, &ask, sizeof ask, 0) < 0 ||
        recv(CONTROL_FD, &answer, sizeof answer, 0) < 0) {
      std::exit(1);
    }
    const wire::HeapGrown grown{answer.extent.offset, answer.extent.bytes};
    std::vector<std::byte> out(sizeof grown);
    std::memcpy(out.data(), &grown, sizeof grown);
    return out;
  }

  std::byte* const block_;
  uint64_t next_address_;
  Consumer commands_;
  Producer events_;
  const std::set<uint16_t> addresses_;  // opcodes whose reply begins with an address
  std::FILE* const log_;
  const std::byte* body_ = nullptr;
  size_t body_bytes_ = 0;
  std::map<wire::Handle, uint32_t> words_;
};

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> options;
  for (int i = 1; i + 1 < argc; ++i) options[argv[i]] = argv[i + 1];
  if (!options.contains("--session")) {  // --inventory
    std::puts("{\"driver_version\": 13000, \"devices\": [{\"name\": \"null\"}]}");
    return 0;
  }
  static NullWorker worker(std::stoull(options["--block-offset"], nullptr, 0),
                           std::stoull(options["--window"], nullptr, 0));
  const struct {
    control::FrameHeader header;
    control::Ready ready;
  } ready{{control::FRAME_MAGIC, static_cast<uint16_t>(control::Type::READY), 0, 4,
           static_cast<uint32_t>(std::stoul(options["--session"]))},
          {1}};
  static_assert(sizeof ready == sizeof(control::FrameHeader) + 4);
  if (send(CONTROL_FD, &ready, sizeof ready, 0) < 0) return 1;
  std::thread([] { worker.serve(); }).detach();
  pollfd hangup{CONTROL_FD, POLLRDHUP, 0};  // not POLLIN: answers are the other thread's
  while (poll(&hangup, 1, -1) < 0) {
  }
  std::_Exit(0);
}
