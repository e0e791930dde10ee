// SPDX-License-Identifier: Apache-2.0
#include "guest.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "control.h"
#include "kvgpu/layout.h"
#include "kvgpu/ring.h"
#include "null_driver.h"
#include "ops.h"
#include "session.h"

namespace kvgpu::fuzz {

namespace {

constexpr uint64_t WINDOW = WINDOWS[0];

int region_fd = -1;
std::byte* block = nullptr;
uint64_t next_extent = 0;
uint64_t position = 0;
worker::DriverTable driver;
std::set<std::string> succeeded;

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::abort();
}

// A block as kvgpud hands it out: zeroes.
void clean_region() {
  constexpr int PUNCH = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  if (fallocate(region_fd, PUNCH, 0, REGION_BYTES) != 0) fail("fallocate");
  next_extent = BLOCK_OFFSET + BLOCK_BYTES;
}

void print_succeeded() {
  std::string never;
  size_t n_ops = 0;
  for (uint32_t opcode = 0; opcode <= worker::MAX_OPCODE; ++opcode) {
    const worker::OpInfo* op = worker::find_op(static_cast<uint16_t>(opcode));
    if (op == nullptr || op->handler == nullptr) continue;
    ++n_ops;
    if (!succeeded.contains(op->name)) never += std::string(" ") + op->name;
  }
  std::fprintf(stderr, "figure: records of %zu of %zu opcodes were executed with success\n",
               succeeded.size(), n_ops);
  if (!never.empty()) std::fprintf(stderr, "never with success:%s\n", never.c_str());
}

class Guest {
 public:
  explicit Guest(worker::Session* session) : session_(session) {}

  void act(const Action& action) {
    switch (action.what) {
      case Do::SLAB:
        return put(block + SLAB_OFF, SLAB_BYTES, action);
      case Do::RAW:
        put(block + COMMAND_RING_OFF, COMMAND_RING_BYTES, action);
        return work();
      case Do::EVENT_CREDIT:
        store_release(page()->event_credit, first_word(action));
        hostile_credit_ = true;
        return;
      case Do::FAULTS:
        null_driver().set_faults(action.value);
        return;
      default:
        send(action);
        work();
        if (action.flags & wire::NOREPLY && host_page()->error_word == 0) note(action.opcode);
    }
  }

 private:
  static HostPage* host_page() { return reinterpret_cast<HostPage*>(block + HOST_PAGE_OFF); }
  static GuestPage* page() { return reinterpret_cast<GuestPage*>(block + GUEST_PAGE_OFF); }

  static uint64_t first_word(const Action& action) {
    uint64_t word = 0;
    const size_t n = std::min(action.bytes.size(), sizeof word);
    std::copy_n(action.bytes.begin(), n, reinterpret_cast<std::byte*>(&word));
    return word;
  }

  static void put(std::byte* to, uint64_t limit_bytes, const Action& action) {
    const uint64_t offset = action.value % limit_bytes;
    const size_t n = std::min<uint64_t>(action.bytes.size(), limit_bytes - offset);
    std::copy_n(action.bytes.begin(), n, to + offset);
  }

  void send(const Action& action) {
    const auto len_bytes = static_cast<uint32_t>(action.bytes.size());
    if (!commands_.reserve(sizeof(wire::Header) + len_bytes)) return;
    last_opcode_ = action.opcode;
    store_relaxed(position, commands_.position());
    auto* const at = reinterpret_cast<wire::Header*>(
        block + COMMAND_RING_OFF + (commands_.position() & (COMMAND_RING_BYTES - 1)));
    wire::Header header{};
    header.opcode = action.opcode;
    header.flags = action.flags;
    header.call_id = ++n_calls_;
    header.target = wire::make_target(action.target & 0xf, action.target >> 4);
    commands_.write(header, Part{action.bytes.data(), len_bytes});
    if (action.what == Do::BAD_LENGTH) at->len_bytes = static_cast<uint32_t>(first_word(action));
    if (action.what == Do::BAD_COMMIT) store_release(at->commit, first_word(action));
  }

  void work() {
    while (session_->read_command()) {
      while (session_->execute_one()) {
      }
      read_replies();
    }
  }

  void read_replies() {
    wire::Header header;
    alignas(8) std::byte record[wire::MAX_RECORD_BYTES];
    while (replies_.peek(&header)) {
      replies_.take(header, record);
      wire::Reply reply{};
      std::memcpy(&reply, record + sizeof header, sizeof reply);
      const bool ok = header.opcode == uint16_t(wire::Op::REPLY) && reply.result == CUDA_SUCCESS;
      if (ok && header.call_id == n_calls_) note(last_opcode_);
    }
    if (replies_.error() != RingError::NONE) {
      breach("the worker's own ring is broken", replies_.position(), 0);
    }
    if (!hostile_credit_) replies_.publish();
  }

  static void note(uint16_t opcode) {
    const worker::OpInfo* op = worker::find_op(opcode);
    if (op != nullptr && op->handler != nullptr) succeeded.insert(op->name);
  }

  worker::Session* const session_;
  uint16_t last_opcode_ = 0;
  uint64_t n_calls_ = 0;
  bool hostile_credit_ = false;
  Producer commands_{block + COMMAND_RING_OFF, COMMAND_RING_BYTES, &host_page()->command_credit};
  Consumer replies_{block + EVENT_RING_OFF, EVENT_RING_BYTES, &page()->event_credit};
};

}  // namespace

void prepare() {
  region_fd = memfd_create("kvgpu-fuzz", MFD_CLOEXEC);
  if (region_fd < 0 || ftruncate(region_fd, REGION_BYTES) != 0) fail("memfd");
  auto* const address = reinterpret_cast<void*>(WINDOW + BLOCK_OFFSET);
  void* const mapped = mmap(address, BLOCK_BYTES, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_FIXED_NOREPLACE, region_fd, BLOCK_OFFSET);
  if (mapped != address) fail("mmap");
  block = static_cast<std::byte*>(mapped);
  fill_table(&driver);
  // The driver's printf: Output reads it back from descriptor 1, and empties it.
  static worker::Output output;
  if (!output.capture()) fail("capture");
}

SharedBytes shared_bytes() {
  return {block + COMMAND_RING_OFF, block + SLAB_OFF,
          &reinterpret_cast<GuestPage*>(block + GUEST_PAGE_OFF)->event_credit};
}

const uint64_t& ring_position() { return position; }

bool allocate_extent(uint64_t bytes, control::Extent* extent) {
  if (bytes > REGION_BYTES - next_extent) return false;
  *extent = {next_extent, bytes};
  null_driver().add_session_memory({WINDOW + next_extent, bytes});
  next_extent += bytes;
  return true;
}

void with_session(const std::function<void(worker::Session&)>& use) {
  clean_region();
  const auto at = [](uint64_t offset) { return WINDOW + BLOCK_OFFSET + offset; };
  null_driver().reset(WINDOW, {at(SLAB_OFF), SLAB_BYTES}, {at(PROGRESS_OFF), PROGRESS_BYTES});
  worker::Control control(1, reinterpret_cast<HostPage*>(block + HOST_PAGE_OFF), {});
  worker::SessionConfig config;
  config.session_id = 1;
  config.region_bytes = REGION_BYTES;
  config.block_offset = BLOCK_OFFSET;
  config.window = WINDOW;
  config.region_fd = region_fd;
  const auto session =
      std::make_unique<worker::Session>(config, block, &driver, N_DEVICES, &control);
  reinterpret_cast<GuestPage*>(block + GUEST_PAGE_OFF)->callback_done =
      UINT64_MAX;          // every host function has returned already
  session->ending = true;  // no reply waits for a guest that does not read
  try {
    use(*session);
  } catch (const SessionEnded&) {
  }
}

void run_session(const std::vector<Action>& actions) {
  [[maybe_unused]] static const int AT_END = std::atexit(print_succeeded);
  with_session([&](worker::Session& session) {
    Guest guest(&session);
    for (const Action& action : actions) guest.act(action);
  });
}

}  // namespace kvgpu::fuzz
