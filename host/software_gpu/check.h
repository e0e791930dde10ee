// SPDX-License-Identifier: Apache-2.0
// Check mode (KVGPU_SOFTWARE_GPU_CHECK=1): finds races on shared memory, reads of shared memory
// that nothing has written, and accesses out of bounds. Instructions that touch memory get another
// handler when they are decoded; nothing is asked for while running without check mode.
#pragma once

#include <unordered_map>

#include "block.h"

namespace software_gpu {

/// Read once from the environment.
bool check_mode();

/// Give `in` the handler that checks before it accesses memory.
void add_check(Instruction* in);

/// What a launch has found, on standard error, if it found something new.
void print_counts(const Launch& launch);

enum class Finding : uint8_t { RACE, UNINITIALISED, OUT_OF_BOUNDS };

/// Which accesses of a block's threads come before which. Time is a counter; an access is stamped
/// with its thread's time. What is older than the last barrier of all threads comes before
/// everything. For the rest each thread knows up to when it has heard of each other one.
class Order {
 public:
  explicit Order(uint32_t n_threads);
  uint64_t now(uint32_t thread) const { return now_[thread]; }
  bool is_before(uint32_t thread, uint64_t stamp, uint32_t later_thread) const {
    return thread == later_thread || stamp < all_met_ ||
           (!heard_.empty() && stamp <= heard_[size_t{later_thread} * n_ + thread]);
  }
  void meet_all();
  /// What `arrived` did until they arrived comes before what `leaving` do from now on.
  void arrive(uint32_t thread);
  void meet(const std::vector<uint16_t>& arrived, const std::vector<uint16_t>& leaving);
  /// An atomic hands on what its thread did before its last fence to the next one at the address.
  void fence(uint32_t thread);
  void release(uint32_t thread, uint64_t address);
  void acquire(uint32_t thread, uint64_t address);

 private:
  using Times = std::vector<uint64_t>;  // by thread
  uint64_t* heard(uint32_t thread);

  const uint32_t n_;
  uint64_t time_ = 1, all_met_ = 1;
  Times now_, arrived_, fenced_;
  Times heard_;           // n × n; empty until threads meet that are not all
  bool in_warps_ = true;  // since all met, only threads of one warp have met
  std::unordered_map<uint64_t, Times> released_;
};

/// The checks of one block.
class Checker {
 public:
  explicit Checker(Block& block);
  void access(const Instruction& in, uint32_t lane);
  /// All living threads are at one barrier, or a new block starts.
  void meet_all(bool new_block = false);
  void arrive(const std::vector<uint16_t>& lanes);
  void meet(const std::vector<uint16_t>& arrived, const std::vector<uint16_t>& leaving) {
    order_.meet(arrived, leaving);
  }
  void meet_in_warps(const Lanes& lanes, const uint64_t* member_masks);

 private:
  struct Touch {
    uint64_t stamp = 0;
    const Instruction* at = nullptr;
    uint16_t lane = 0;
    bool strong = false;
  };
  /// Of a byte. Two readers that are not ordered are kept, of two warps if there are.
  struct Cell {
    Touch write, reads[2];
  };

  void shared_access(const Instruction& in, uint32_t lane, uint64_t offset);
  void global_access(const Instruction& in, uint32_t lane, uint64_t address);
  bool races(const Touch& then, const Touch& now) const;
  bool stores_what_is_there(const Instruction& in, uint32_t lane, uint64_t offset, uint32_t k);
  void note_read(Cell* cell, const Touch& now) const;
  void report_race(const Touch& then, bool then_wrote, const Touch& now, uint64_t offset);
  bool is_new(Finding finding, const Instruction& in);
  void print(Finding finding, const Instruction& in, uint32_t lane, const std::string& what);

  Block& block_;
  Order order_;
  uint64_t started_ = 0;  // when the block did: older touches are of blocks before
  std::vector<Cell> cells_;
};

}  // namespace software_gpu
