// SPDX-License-Identifier: Apache-2.0
#include "block.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "check.h"
#include "log.h"

namespace software_gpu {
namespace {

// Per thread, for the frames of called functions; more than CUDA's default of 1 KiB because frames
// are not packed. Recursion beyond it is a fault, as it is natively.
constexpr uint64_t CALL_STACK_BYTES = 16 << 10;

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

void PrintBuffer::append(const std::string& text) {
  std::lock_guard lock(mutex_);
  text_ += text;
}

void PrintBuffer::flush() {
  std::string text;
  {
    std::lock_guard lock(mutex_);
    text.swap(text_);
  }
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data() + done, text.size() - done);
    if (n <= 0) return;  // nobody reads: natively the text is lost as well
    done += static_cast<size_t>(n);
  }
}

Block::Block(Launch& launch)
    : launch_(launch), n_threads_(static_cast<uint32_t>(launch.block.count())) {
  const Function& entry = *launch.entry;
  rows_.resize(size_t{entry.n_rows} * n_threads_);
  shared_bytes_ = round_up(entry.shared_bytes, 16) + launch.dynamic_shared_bytes;
  shared_.resize(shared_bytes_ / sizeof(Line) + 1);
  local_bytes_ = round_up(entry.local_bytes + (entry.makes_calls ? CALL_STACK_BYTES : 0), 128);
  local_.resize(local_bytes_ / sizeof(Line) * n_threads_);
  live_.resize(n_threads_);
  if (check_mode()) checker_ = std::make_unique<Checker>(*this);
}

Block::~Block() = default;

void Block::start(uint64_t block_index) {
  index_.x = static_cast<uint32_t>(block_index % launch_.grid.x);
  index_.y = static_cast<uint32_t>(block_index / launch_.grid.x % launch_.grid.y);
  index_.z = static_cast<uint32_t>(block_index / launch_.grid.x / launch_.grid.y);
  auto frame = std::make_shared<Frame>();
  frame->function = launch_.entry;
  frame->local_base_bytes = 0;
  std::fill(live_.begin(), live_.end(), 1);
  n_live_ = n_threads_;
  Group all;
  all.frame = std::move(frame);
  all.lanes.resize(n_threads_);
  for (uint32_t i = 0; i < n_threads_; ++i) all.lanes[i] = static_cast<uint16_t>(i);
  fill_constants(all, constants_filled_);
  constants_filled_ = true;
  selected_ = unfair_turn_ = next_turn_unfair_ = force_warp_ = false;
  if (checker_) checker_->meet_all(true);
  waiting_.clear();
  runnable_.clear();
  runnable_.push_back(std::move(all));
}

uint64_t Block::constant_value(const Constant& constant, uint32_t lane, const Frame& frame) const {
  using Kind = Constant::Kind;
  const Dim3& block = launch_.block;
  const uint32_t in_warp = lane % 32;
  switch (constant.kind) {
    case Kind::VALUE:
      return constant.value;
    case Kind::SHARED_DYNAMIC:
      return round_up(launch_.entry->shared_bytes, 16) + constant.value;
    case Kind::LOCAL:
      return frame.local_base_bytes + constant.value;
    case Kind::PARAMETER_BUFFER:
      return reinterpret_cast<uint64_t>(launch_.parameters.data()) + constant.value;
    case Kind::TID_X:
      return lane % block.x;
    case Kind::TID_Y:
      return lane / block.x % block.y;
    case Kind::TID_Z:
      return lane / block.x / block.y;
    case Kind::NTID_X:
      return block.x;
    case Kind::NTID_Y:
      return block.y;
    case Kind::NTID_Z:
      return block.z;
    case Kind::CTAID_X:
      return index_.x;
    case Kind::CTAID_Y:
      return index_.y;
    case Kind::CTAID_Z:
      return index_.z;
    case Kind::NCTAID_X:
      return launch_.grid.x;
    case Kind::NCTAID_Y:
      return launch_.grid.y;
    case Kind::NCTAID_Z:
      return launch_.grid.z;
    case Kind::LANEID:
      return in_warp;
    case Kind::WARPID:
      return lane / 32;
    case Kind::NWARPID:
      return (n_threads_ + 31) / 32;
    case Kind::LANEMASK_EQ:
      return 1u << in_warp;
    case Kind::LANEMASK_LT:
      return (1u << in_warp) - 1;
    case Kind::LANEMASK_LE:
      return (2ull << in_warp) - 1;
    case Kind::LANEMASK_GE:
      return ~((1u << in_warp) - 1);
    case Kind::LANEMASK_GT:
      return static_cast<uint32_t>(~((2ull << in_warp) - 1));
    case Kind::SMID:
      return 0;
    case Kind::NSMID:
      return 1;
    case Kind::GRIDID:
      return launch_.id;
    case Kind::DYNAMIC_SHARED_BYTES:
      return launch_.dynamic_shared_bytes;
    case Kind::TOTAL_SHARED_BYTES:
      return shared_bytes_;
    case Kind::GRID_WORKSPACE_HIGH:
      return launch_.grid_workspace >> 32;
    case Kind::GRID_WORKSPACE_LOW:
      return launch_.grid_workspace & 0xffffffff;
  }
  return 0;
}

void Block::fill_constants(const Group& group, bool only_block_index) {
  const Frame& frame = *group.frame;
  for (const Constant& constant : frame.function->constants) {
    const bool block_index =
        constant.kind >= Constant::Kind::CTAID_X && constant.kind <= Constant::Kind::CTAID_Z;
    if (only_block_index && !block_index) continue;
    uint64_t* values = rows_.data() + size_t{frame.first_row + constant.row} * n_threads_;
    for (const uint16_t lane : group.lanes) values[lane] = constant_value(constant, lane, frame);
  }
}

char* Block::resolve_window(const Instruction& in, uint32_t lane, uint64_t address,
                            uint32_t n_bytes, uint32_t align_bytes) {
  const bool shared = in.space == Space::SHARED;
  const uint64_t limit_bytes = shared ? shared_bytes_ : local_bytes_;
  if (address >= limit_bytes || n_bytes > limit_bytes - address) {
    fault(in, lane, CUDA_ERROR_ILLEGAL_ADDRESS,
          std::string(shared ? "shared" : "local") + " address " + std::to_string(address) +
              " of " + std::to_string(limit_bytes) + " bytes");
    return nullptr;
  }
  if (address & (align_bytes - 1)) {
    fault(in, lane, CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address " + std::to_string(address));
    return nullptr;
  }
  return reinterpret_cast<char*>((shared ? shared_base() : local_base(lane)) + address);
}

char* Block::resolve_generic(const Instruction& in, uint32_t lane, uint64_t address,
                             uint32_t n_bytes, uint32_t align_bytes) {
  char text[32];
  snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  const uint64_t parameter_base = reinterpret_cast<uint64_t>(launch_.parameters.data());
  uint64_t base = 0, bytes = 0;
  bool read_only = false;
  if (address - shared_base() < shared_bytes_) {
    base = shared_base(), bytes = shared_bytes_;
  } else if (is_local(address)) {
    base = local_base(0), bytes = local_bytes_ * n_threads_;
  } else if (const Allocation* allocation = launch_.memory->find(address)) {
    base = allocation->base, bytes = allocation->size_bytes;
    read_only = allocation->read_only;
  } else if (address - parameter_base < launch_.parameters.size() * 8) {
    base = parameter_base, bytes = launch_.parameters.size() * 8;
  }
  const bool writes = in.access == Access::WRITE || in.access == Access::UPDATE;
  if (address - base >= bytes || n_bytes > bytes - (address - base) || (read_only && writes)) {
    fault(in, lane, CUDA_ERROR_ILLEGAL_ADDRESS, std::string("illegal address ") + text);
    return nullptr;
  }
  if (address & (align_bytes - 1)) {
    fault(in, lane, CUDA_ERROR_MISALIGNED_ADDRESS, std::string("misaligned address ") + text);
    return nullptr;
  }
  if (!read_only) {  // what is cached is not asked again whether it may be written
    cached_base_ = base;
    cached_bytes_ = bytes;
  }
  return reinterpret_cast<char*>(address);
}

void Block::fault(const Instruction& in, uint32_t lane, CUresult code, const std::string& what) {
  int none = CUDA_SUCCESS;
  if (!launch_.fault.compare_exchange_strong(none, code)) return;  // the first one counts
  report(CU_LOG_LEVEL_ERROR, "kvgpu software GPU: kernel " + launch_.entry->name + ": " + what +
                                 ", thread " + thread_name(lane) + " of block " + name() + ", " +
                                 place(in));
}

std::string Block::place(const Instruction& in) const {
  const auto file = launch_.module->files.find(in.source.file);
  if (file != launch_.module->files.end() && in.source.line != 0)
    return file->second + ":" + std::to_string(in.source.line);
  return "PTX line " + std::to_string(in.line) + " of " + function_->name;
}

std::string Block::thread_name(uint32_t lane) const {
  const Dim3& block = launch_.block;
  return "(" + std::to_string(lane % block.x) + "," + std::to_string(lane / block.x % block.y) +
         "," + std::to_string(lane / block.x / block.y) + ")";
}

std::string Block::name() const {
  return "(" + std::to_string(index_.x) + "," + std::to_string(index_.y) + "," +
         std::to_string(index_.z) + ")";
}

bool Block::read_string(const Instruction& in, uint32_t lane, uint64_t address, std::string* text) {
  Instruction generic = in;
  generic.space = Space::GENERIC;
  text->clear();
  while (true) {
    const char* at = resolve(generic, lane, address++, 1, 1);
    if (!at) return false;
    if (*at == 0) return true;
    text->push_back(*at);
  }
}

uint32_t Block::warp_live_mask(uint32_t warp) const {
  uint32_t mask = 0;
  for (uint32_t i = 0; i < 32 && warp * 32 + i < n_threads_; ++i)
    mask |= uint32_t{live_[warp * 32 + i]} << i;
  return mask;
}

}  // namespace software_gpu
