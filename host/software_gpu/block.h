// SPDX-License-Identifier: Apache-2.0
// One running thread block: its rows, its shared and local memory, and the groups of threads that
// stand at the same instruction. A block can be left after a slice of instructions and taken up
// again, so blocks that wait for each other all make progress.
#pragma once

#include <cuda.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device_heap.h"
#include "image.h"
#include "memory.h"
#include "program.h"

namespace software_gpu {

/// Text that kernels printed, until a synchronising call writes it to standard output.
class PrintBuffer {
 public:
  void append(const std::string& text);
  void flush();

 private:
  std::mutex mutex_;
  std::string text_;
};

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

/// A kernel launch, shared by the threads that run its blocks.
struct Launch {
  const Function* entry = nullptr;
  Dim3 grid, block;
  uint32_t dynamic_shared_bytes = 0;
  bool cooperative = false;
  uint32_t n_cores = 1;         // that may run it
  uint64_t grid_workspace = 0;  // address of the words of a cooperative launch's grid barrier
  uint64_t id = 0;
  std::vector<uint64_t> parameters;  // the parameter buffer, as words for its alignment
  std::shared_ptr<const Snapshot> memory;
  std::vector<std::shared_ptr<const ImageTable>> images;  // the first that has a handle counts
  const Module* module = nullptr;
  PrintBuffer* printed = nullptr;
  std::shared_ptr<DeviceHeap> heap;  // of modules that call malloc or free
  std::atomic<int> fault{CUDA_SUCCESS};
  std::atomic<uint64_t> n_findings[3] = {};  // of check mode, by Finding
  std::atomic<bool> has_new_finding{false};
};

/// Which threads an instruction applies to: [first, first + count) or the listed ones.
struct Lanes {
  const uint16_t* list;
  uint32_t first, count;
  bool contiguous;
};

template <class F>
inline void for_each(const Lanes& lanes, F f) {
  if (lanes.contiguous) {
    const uint32_t end = lanes.first + lanes.count;
#pragma GCC ivdep
    for (uint32_t i = lanes.first; i < end; ++i) f(i);
  } else {
    for (uint32_t k = 0; k < lanes.count; ++k) f(lanes.list[k]);
  }
}

/// Where a call returns to. Immutable and shared by the groups that a divergence made.
struct Frame {
  std::shared_ptr<const Frame> caller;
  const Function* function = nullptr;
  const Call* call = nullptr;  // the call that entered this frame; null for the entry
  uint32_t return_pc = 0;
  uint32_t first_row = 0;  // of this frame
  uint32_t local_base_bytes = 0;
  uint32_t depth = 0;
};

/// Threads that stand at the same instruction of the same frame.
struct Group {
  uint32_t pc = 0;
  std::shared_ptr<const Frame> frame;
  std::vector<uint16_t> lanes;  // ascending
  uint64_t last_turn = 0;
  Lanes view() const {
    const bool contiguous = uint32_t{lanes.back()} - lanes.front() + 1 == lanes.size();
    return {lanes.data(), lanes.front(), static_cast<uint32_t>(lanes.size()), contiguous};
  }
};

class Checker;

class Block {
 public:
  explicit Block(Launch& launch);
  ~Block();
  void start(uint64_t block_index);

  enum class State { FINISHED, UNFINISHED };
  /// Run at most `n_instructions`.
  State run(int64_t n_instructions);

  // For handlers.
  /// The instruction left memory, and what its threads know of it, as they were: they may wait for
  /// others, who should not have to wait for long. Called once per instruction.
  void poll() {
    n_backward_ += MAX_BACKWARD_BRANCHES / 4;
    budget_ -= POLL_INSTRUCTIONS;
  }
  uint64_t* row(Row r) { return rows_.data() + (size_t{first_row_} + r) * n_threads_; }
  const std::vector<Row>& vector(const Instruction& in) const {
    return function_->vectors[in.extra];
  }
  const Call& call(const Instruction& in) const { return function_->calls[in.extra]; }
  /// Pointer for an access of `size_bytes` by `lane`, or null after recording the fault.
  char* resolve(const Instruction& in, uint32_t lane, uint64_t address, uint32_t n_bytes,
                uint32_t align_bytes) {
    if (in.space == Space::GENERIC) {
      if (address - cached_base_ < cached_bytes_ &&
          n_bytes <= cached_bytes_ - (address - cached_base_) && (address & (align_bytes - 1)) == 0)
          [[likely]]
        return reinterpret_cast<char*>(address);
      return resolve_generic(in, lane, address, n_bytes, align_bytes);
    }
    return resolve_window(in, lane, address, n_bytes, align_bytes);
  }
  void fault(const Instruction& in, uint32_t lane, CUresult code, const std::string& what);
  uint32_t n_threads() const { return n_threads_; }
  uint32_t warp_live_mask(uint32_t warp) const;
  uint64_t shared_address(uint64_t offset) const { return shared_base() + offset; }
  uint64_t shared_base() const { return reinterpret_cast<uint64_t>(shared_.data()); }
  uint64_t shared_bytes() const { return shared_bytes_; }
  uint64_t local_base(uint32_t lane) const {
    return reinterpret_cast<uint64_t>(local_.data()) + uint64_t{lane} * local_bytes_;
  }
  bool is_local(uint64_t address) const {
    return address - local_base(0) < local_bytes_ * n_threads_;
  }
  Launch& launch() { return launch_; }
  Checker& checker() { return *checker_; }  // in check mode
  /// Where `in` stands, for messages: in the source where that is known, else in the PTX.
  std::string place(const Instruction& in) const;
  std::string thread_name(uint32_t lane) const;  // "(x,y,z)"
  std::string name() const;                      // of the block, the same
  /// Read a NUL-terminated string of the program (format strings); false after a fault.
  bool read_string(const Instruction& in, uint32_t lane, uint64_t address, std::string* text);

 private:
  // Before another group gets a turn.
  static constexpr uint32_t MAX_BACKWARD_BRANCHES = 4096;
  static constexpr int64_t POLL_INSTRUCTIONS = 2'500;  // what it costs of the slice

  struct Waiting {
    Group group;
    const Instruction* instruction;
    bool at_barrier;  // else at an instruction that needs other threads of its warp
    uint32_t barrier;
    uint32_t n_expected;  // threads at the barrier; 0: all that live
    bool arrived_only;    // bar.arrive: counts, and goes on
  };

  char* resolve_generic(const Instruction& in, uint32_t lane, uint64_t address, uint32_t n_bytes,
                        uint32_t align_bytes);
  char* resolve_window(const Instruction& in, uint32_t lane, uint64_t address, uint32_t n_bytes,
                       uint32_t align_bytes);
  uint64_t constant_value(const Constant& constant, uint32_t lane, const Frame& frame) const;
  void fill_constants(const Group& group, bool only_block_index);

  // scheduler.cpp
  bool select_group();
  void deselect_group();
  void update_stop_pc();
  Lanes active_lanes(const Instruction& in);
  std::vector<uint16_t> lane_list(const Lanes& lanes) const;
  void step(const Instruction& in);
  void step_branch(const Instruction& in);
  void step_branch_indexed(const Instruction& in);
  void step_call(const Instruction& in);
  void enter_callee(const Instruction& in, const Call& call, const Function& callee, Group group);
  void step_return(const Instruction& in, bool exit);
  void step_barrier(const Instruction& in);
  void step_warp(const Instruction& in);
  void split_off(const std::vector<uint16_t>& lanes, uint32_t pc);
  void jumped_to(uint32_t target, uint32_t from);
  void went_back();
  void retire(const std::vector<uint16_t>& lanes);
  void release_warp_waiters();
  void check_barriers();
  void finish_barrier(uint32_t id);
  void check_barrier(uint32_t id);

  struct alignas(128) Line {
    char bytes[128];
  };

  Launch& launch_;
  const uint32_t n_threads_;
  uint32_t n_live_ = 0;
  std::vector<uint64_t> rows_;
  std::vector<Line> shared_, local_;
  uint64_t shared_bytes_ = 0, local_bytes_ = 0;  // local: per thread
  Dim3 index_;
  std::vector<uint8_t> live_;
  bool constants_filled_ = false;

  bool selected_ = false;
  Group current_;                // while selected_
  std::vector<Group> runnable_;  // the others
  std::vector<Waiting> waiting_;
  std::vector<uint16_t> predicated_;
  const Function* function_ = nullptr;
  uint32_t first_row_ = 0;
  uint32_t stop_pc_ = UINT32_MAX;  // where the current group may meet others
  uint32_t n_backward_ = 0;        // backward branches taken since a group gave up its turn
  int64_t budget_ = 0;             // instructions left of the slice
  uint64_t n_turns_ = 0;
  bool unfair_turn_ = false;  // a group that is not the first in order gets a turn
  bool next_turn_unfair_ = false;
  bool force_warp_ = false;  // nobody else can come: go on with those who did

  uint64_t cached_base_ = 0, cached_bytes_ = 0;
  std::unique_ptr<Checker> checker_;  // null unless in check mode
};

}  // namespace software_gpu
