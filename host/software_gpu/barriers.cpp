// SPDX-License-Identifier: Apache-2.0
// Where threads of a block wait for each other: barriers, and what a warp does together.
#include "builtins.h"
#include "check.h"
#include "groups.h"

namespace software_gpu {

void Block::retire(const std::vector<uint16_t>& lanes) {
  for (const uint16_t lane : lanes) live_[lane] = 0;
  n_live_ -= static_cast<uint32_t>(lanes.size());
  if (waiting_.empty()) return;
  release_warp_waiters();  // they look again at who still lives
  check_barriers();
}

void Block::release_warp_waiters() {
  for (size_t i = 0; i < waiting_.size();) {
    if (waiting_[i].at_barrier) {
      ++i;
      continue;
    }
    runnable_.push_back(std::move(waiting_[i].group));
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
  }
}

void Block::step_barrier(const Instruction& in) {
  const Lanes lanes = in.predicate == NO_ROW ? current_.view() : active_lanes(in);
  const uint32_t pc = current_.pc++;
  if (lanes.count == 0) return;
  Waiting waiting{};
  waiting.instruction = &in;
  waiting.at_barrier = true;
  waiting.barrier = static_cast<uint32_t>(row(in.a)[lanes.first]);
  waiting.n_expected = in.b == NO_ROW ? 0 : static_cast<uint32_t>(row(in.b)[lanes.first]);
  waiting.arrived_only = in.mode == BARRIER_ARRIVE;
  waiting.group.pc = pc + 1;
  waiting.group.frame = current_.frame;
  waiting.group.last_turn = current_.last_turn;
  waiting.group.lanes = lane_list(lanes);
  if (checker_) checker_->arrive(waiting.group.lanes);
  if (!waiting.arrived_only) {
    current_.lanes = without(current_.lanes, waiting.group.lanes);
    if (current_.lanes.empty()) {
      selected_ = false;
    } else {
      deselect_group();
    }
  }
  waiting_.push_back(std::move(waiting));
  check_barriers();
}

void Block::check_barriers() {
  for (size_t i = 0; i < waiting_.size(); ++i) {
    if (!waiting_[i].at_barrier) continue;
    const uint32_t id = waiting_[i].barrier;
    uint32_t n_arrived = 0, n_expected = 0;
    for (const Waiting& other : waiting_) {
      if (!other.at_barrier || other.barrier != id) continue;
      n_arrived += static_cast<uint32_t>(other.group.lanes.size());
      n_expected = std::max(n_expected, other.n_expected);
    }
    if (n_arrived < (n_expected == 0 ? n_live_ : std::min(n_expected, n_live_))) continue;
    finish_barrier(id);
    i = static_cast<size_t>(-1);  // waiting_ changed: look from the start
  }
}

void Block::finish_barrier(uint32_t id) {
  if (checker_) check_barrier(id);
  uint32_t n_true = 0, n_total = 0;
  for (const Waiting& waiting : waiting_) {
    const Instruction& in = *waiting.instruction;
    if (!waiting.at_barrier || waiting.barrier != id || in.c == NO_ROW) continue;
    const uint64_t* value =
        rows_.data() + size_t{waiting.group.frame->first_row + in.c} * n_threads_;
    for (const uint16_t lane : waiting.group.lanes)
      n_true += ((value[lane] & 1) != 0) != in.operand_negated;
    n_total += static_cast<uint32_t>(waiting.group.lanes.size());
  }
  for (size_t i = 0; i < waiting_.size();) {
    Waiting& waiting = waiting_[i];
    if (!waiting.at_barrier || waiting.barrier != id) {
      ++i;
      continue;
    }
    const Instruction& in = *waiting.instruction;
    if (in.dst != NO_ROW) {
      const uint64_t result = in.mode == BARRIER_POPC  ? n_true
                              : in.mode == BARRIER_AND ? n_true == n_total
                                                       : n_true != 0;
      uint64_t* to = rows_.data() + size_t{waiting.group.frame->first_row + in.dst} * n_threads_;
      for (const uint16_t lane : waiting.group.lanes) to[lane] = result;
    }
    if (!waiting.arrived_only) runnable_.push_back(std::move(waiting.group));
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
  }
  if (selected_) update_stop_pc();
}

void Block::check_barrier(uint32_t id) {
  std::vector<uint16_t> arrived, leaving;
  for (const Waiting& waiting : waiting_) {
    if (!waiting.at_barrier || waiting.barrier != id) continue;
    const std::vector<uint16_t>& lanes = waiting.group.lanes;
    arrived.insert(arrived.end(), lanes.begin(), lanes.end());
    if (!waiting.arrived_only) leaving.insert(leaving.end(), lanes.begin(), lanes.end());
  }
  if (leaving.size() == n_live_)
    checker_->meet_all();
  else
    checker_->meet(arrived, leaving);
}

void Block::step_warp(const Instruction& in) {
  // Those who wait at this very instruction take part.
  for (size_t i = 0; i < waiting_.size();) {
    if (!waiting_[i].at_barrier && same_place(waiting_[i].group, current_)) {
      merge_into(&current_, waiting_[i].group);
      waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  const Lanes lanes = in.predicate == NO_ROW ? current_.view() : active_lanes(in);
  std::vector<uint16_t> absent;  // threads whose mask is not complete yet
  if (lanes.count != 0 && in.d != NO_ROW && !force_warp_) {
    const uint64_t* member_mask = row(in.d);
    uint32_t present[32] = {}, live[32];
    for (uint32_t warp = 0; warp * 32 < n_threads_; ++warp) live[warp] = warp_live_mask(warp);
    for_each(lanes, [&](uint32_t lane) { present[lane / 32] |= 1u << lane % 32; });
    for_each(lanes, [&](uint32_t lane) {
      const auto needed = static_cast<uint32_t>(member_mask[lane]) & live[lane / 32];
      if (needed & ~present[lane / 32]) absent.push_back(static_cast<uint16_t>(lane));
    });
  }
  if (!absent.empty()) {
    const std::vector<uint16_t> participants = lane_list(lanes);
    const std::vector<uint16_t> bystanders = without(current_.lanes, participants);
    const uint32_t pc = current_.pc;
    if (!bystanders.empty()) split_off(bystanders, pc + 1);
    Waiting waiting{};
    waiting.instruction = &in;
    waiting.group.pc = pc;
    waiting.group.frame = current_.frame;
    waiting.group.last_turn = current_.last_turn;
    waiting.group.lanes = absent;
    current_.lanes = without(current_.lanes, absent);
    waiting_.push_back(std::move(waiting));
    if (current_.lanes.empty()) {
      selected_ = false;
    } else {
      deselect_group();  // the complete warps come back to this instruction
    }
    return;
  }
  ++current_.pc;
  force_warp_ = false;
  if (lanes.count == 0) return;
  if (checker_ && in.d != NO_ROW) checker_->meet_in_warps(lanes, row(in.d));
  in.handler(*this, in, lanes);
}

}  // namespace software_gpu
