// SPDX-License-Identifier: Apache-2.0
// Which threads of a block run next. Threads at the same place run together; of several places the
// deepest call and then the lowest instruction goes first, which makes diverged threads meet again.
// That order alone would spin for ever on a lock whose holder stands further down, so a group that
// keeps jumping back has to let another one have a turn.
#include "builtins.h"
#include "groups.h"

namespace software_gpu {
namespace {

constexpr size_t MAX_ROW_WORDS = (1ull << 30) / 8;

bool goes_first(const Group& a, const Group& b) {
  return a.frame->depth != b.frame->depth ? a.frame->depth > b.frame->depth : a.pc < b.pc;
}

}  // namespace

Block::State Block::run(int64_t n_instructions) {
  budget_ = n_instructions;
  while (budget_-- > 0) {
    if (!selected_ && !select_group()) return State::FINISHED;
    const Instruction& in = function_->code[current_.pc];
    if (in.control == Control::ORDINARY) [[likely]] {
      ++current_.pc;
      const Lanes lanes = in.predicate == NO_ROW ? current_.view() : active_lanes(in);
      if (lanes.count != 0) in.handler(*this, in, lanes);
    } else {
      step(in);
    }
    if (launch_.fault.load(std::memory_order_relaxed) != CUDA_SUCCESS) return State::FINISHED;
    if (selected_ && current_.pc >= stop_pc_) deselect_group();
  }
  return State::UNFINISHED;
}

bool Block::select_group() {
  if (runnable_.empty()) {
    if (waiting_.empty()) return false;
    // Nobody can move. Threads that a warp instruction waits for will not come: go on without them.
    release_warp_waiters();
    force_warp_ = true;
    if (runnable_.empty()) {
      function_ = waiting_.front().group.frame->function;
      fault(*waiting_.front().instruction, waiting_.front().group.lanes.front(),
            CUDA_ERROR_LAUNCH_FAILED, "barrier that the other threads never reach");
      return false;
    }
  }
  unfair_turn_ = std::exchange(next_turn_unfair_, false);
  auto best = runnable_.begin();
  for (auto it = best + 1; it < runnable_.end(); ++it)
    if (unfair_turn_ ? it->last_turn < best->last_turn : goes_first(*it, *best)) best = it;
  current_ = std::move(*best);
  runnable_.erase(best);
  for (size_t i = 0; i < runnable_.size();) {
    if (same_place(runnable_[i], current_)) {
      merge_into(&current_, runnable_[i]);
      runnable_.erase(runnable_.begin() + static_cast<ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  selected_ = true;
  current_.last_turn = ++n_turns_;
  function_ = current_.frame->function;
  first_row_ = current_.frame->first_row;
  update_stop_pc();
  return true;
}

void Block::deselect_group() {
  runnable_.push_back(std::move(current_));
  selected_ = false;
}

void Block::update_stop_pc() {
  stop_pc_ = UINT32_MAX;
  if (unfair_turn_) return;
  for (const Group& group : runnable_)
    if (group.frame->depth == current_.frame->depth) stop_pc_ = std::min(stop_pc_, group.pc);
}

Lanes Block::active_lanes(const Instruction& in) {
  const uint64_t* predicate = row(in.predicate);
  predicated_.clear();
  for (const uint16_t lane : current_.lanes)
    if ((predicate[lane] & 1) != in.predicate_negated) predicated_.push_back(lane);
  const uint32_t count = static_cast<uint32_t>(predicated_.size());
  if (count == 0) return {nullptr, 0, 0, true};
  const bool contiguous = uint32_t{predicated_.back()} - predicated_.front() + 1 == count;
  return {predicated_.data(), predicated_.front(), count, contiguous};
}

std::vector<uint16_t> Block::lane_list(const Lanes& lanes) const {
  std::vector<uint16_t> list;
  list.reserve(lanes.count);
  for_each(lanes, [&](uint32_t lane) { list.push_back(static_cast<uint16_t>(lane)); });
  return list;
}

void Block::step(const Instruction& in) {
  switch (in.control) {
    case Control::BRANCH:
      return step_branch(in);
    case Control::BRANCH_INDEXED:
      return step_branch_indexed(in);
    case Control::CALL:
      return step_call(in);
    case Control::RETURN:
      return step_return(in, false);
    case Control::EXIT:
      return step_return(in, true);
    case Control::BARRIER:
      return step_barrier(in);
    case Control::WARP:
      return step_warp(in);
    case Control::TRAP: {
      const Lanes lanes = in.predicate == NO_ROW ? current_.view() : active_lanes(in);
      ++current_.pc;
      if (lanes.count != 0) fault(in, lanes.first, CUDA_ERROR_LAUNCH_FAILED, "trap");
      return;
    }
    case Control::ORDINARY:
      return;
  }
}

/// Part of the current group continues elsewhere.
void Block::split_off(const std::vector<uint16_t>& lanes, uint32_t pc) {
  Group group;
  group.pc = pc;
  group.frame = current_.frame;
  group.last_turn = current_.last_turn;
  group.lanes = lanes;
  current_.lanes = without(current_.lanes, lanes);
  runnable_.push_back(std::move(group));
}

void Block::jumped_to(uint32_t target, uint32_t from) {
  current_.pc = target;
  if (target <= from) went_back();
}

/// The count goes on when another group is selected in order: a loop that calls functions or
/// diverges is left at every pass, and those below it should still have their turn.
void Block::went_back() {
  if (++n_backward_ < MAX_BACKWARD_BRANCHES) return;
  n_backward_ = 0;
  if (runnable_.empty()) return;
  if (selected_) deselect_group();
  next_turn_unfair_ = true;
}

void Block::step_branch(const Instruction& in) {
  const uint32_t from = current_.pc;
  if (in.predicate == NO_ROW) return jumped_to(in.target, from);
  const Lanes taken = active_lanes(in);
  if (taken.count == current_.lanes.size()) return jumped_to(in.target, from);
  ++current_.pc;
  if (taken.count == 0) return;
  split_off(std::vector<uint16_t>(predicated_), in.target);
  if (in.target <= from) {
    if (!unfair_turn_) deselect_group();
    went_back();
  }
  if (selected_) update_stop_pc();
}

void Block::step_branch_indexed(const Instruction& in) {
  const std::vector<uint32_t>& table = function_->tables[in.extra];
  const uint64_t* index = row(in.a);
  const std::vector<uint16_t> lanes =
      lane_list(in.predicate == NO_ROW ? current_.view() : active_lanes(in));
  const uint32_t from = current_.pc++;
  bool back = false;
  for (uint32_t target = 0; target < table.size(); ++target) {
    std::vector<uint16_t> here;
    for (const uint16_t lane : lanes)
      if (static_cast<uint32_t>(index[lane]) == target) here.push_back(lane);
    if (here.empty()) continue;
    split_off(here, table[target]);
    back |= table[target] <= from;
  }
  if (current_.lanes.empty()) {
    selected_ = false;
  } else {
    deselect_group();
  }
  if (back) went_back();
}

void Block::step_call(const Instruction& in) {
  const Call& call = function_->calls[in.extra];
  const Lanes lanes = in.predicate == NO_ROW ? current_.view() : active_lanes(in);
  if (lanes.count == 0 || call.builtin != Builtin::NONE) {
    ++current_.pc;
    if (lanes.count != 0) run_builtin(*this, in, call, lanes);
    return;
  }
  Group group;
  group.lanes = lane_list(lanes);
  group.frame = current_.frame;
  group.last_turn = current_.last_turn;
  const Function* callee = call.callee;
  if (!callee) {  // indirect: the threads of one target go together, the others come back here
    const uint64_t* pointer = row(call.pointer);
    const uint64_t target = pointer[group.lanes.front()];
    for (const auto& [name, function] : launch_.module->functions)
      if (reinterpret_cast<uint64_t>(function.get()) == target) callee = function.get();
    if (!callee || !fits(call, *function_, *callee))
      return fault(in, lanes.first, CUDA_ERROR_LAUNCH_FAILED, "call of something not a function");
    std::erase_if(group.lanes, [&](uint16_t lane) { return pointer[lane] != target; });
  }
  enter_callee(in, call, *callee, std::move(group));
}

void Block::enter_callee(const Instruction& in, const Call& call, const Function& callee,
                         Group group) {
  auto frame = std::make_shared<Frame>();
  frame->caller = current_.frame;
  frame->function = &callee;
  frame->call = &call;
  frame->return_pc = current_.pc + 1;
  frame->first_row = first_row_ + function_->n_rows;
  frame->local_base_bytes =
      (current_.frame->local_base_bytes + function_->local_bytes + 15) / 16 * 16;
  frame->depth = current_.frame->depth + 1;
  const size_t n_words = (size_t{frame->first_row} + callee.n_rows) * n_threads_;
  if (frame->local_base_bytes + callee.local_bytes > local_bytes_ || n_words > MAX_ROW_WORDS)
    return fault(in, group.lanes.front(), CUDA_ERROR_LAUNCH_FAILED, "call stack overflow");
  if (rows_.size() < n_words) rows_.resize(n_words);
  group.frame = std::move(frame);
  fill_constants(group, false);
  for (size_t i = 0; i < callee.parameters.size(); ++i) {
    for (uint32_t k = 0; k < callee.parameters[i].n_rows(); ++k) {
      const uint64_t* from = row(call.arguments[i] + k);
      uint64_t* to =
          rows_.data() + size_t{group.frame->first_row + callee.parameters[i].row + k} * n_threads_;
      for (const uint16_t lane : group.lanes) to[lane] = from[lane];
    }
  }
  // Predicated-off threads skip the call; those of another indirect target repeat it.
  std::vector<uint16_t> rest = without(current_.lanes, group.lanes);
  if (!rest.empty()) {
    std::vector<uint16_t> skipping;
    if (in.predicate != NO_ROW) {
      const uint64_t* predicate = row(in.predicate);
      for (const uint16_t lane : rest)
        if ((predicate[lane] & 1) == in.predicate_negated) skipping.push_back(lane);
    }
    if (!skipping.empty()) split_off(skipping, current_.pc + 1);
    rest = without(rest, skipping);
    if (!rest.empty()) split_off(rest, current_.pc);
  }
  runnable_.push_back(std::move(group));
  selected_ = false;
}

void Block::step_return(const Instruction& in, bool exit) {
  const Lanes lanes = in.predicate == NO_ROW ? current_.view() : active_lanes(in);
  if (lanes.count == 0) {
    ++current_.pc;
    return;
  }
  Group leaving;
  leaving.lanes = lane_list(lanes);
  const Frame& frame = *current_.frame;
  if (!exit && frame.caller) {
    const Function& callee = *frame.function;
    for (size_t i = 0; i < callee.results.size(); ++i) {
      for (uint32_t k = 0; k < callee.results[i].n_rows(); ++k) {
        const uint64_t* from = row(callee.results[i].row + k);
        uint64_t* to = rows_.data() +
                       size_t{frame.caller->first_row + frame.call->results[i] + k} * n_threads_;
        for (const uint16_t lane : leaving.lanes) to[lane] = from[lane];
      }
    }
    leaving.pc = frame.return_pc;
    leaving.frame = frame.caller;
    leaving.last_turn = current_.last_turn;
  }
  current_.lanes = without(current_.lanes, leaving.lanes);
  ++current_.pc;
  if (current_.lanes.empty()) {
    selected_ = false;
  } else {
    deselect_group();
  }
  if (leaving.frame) {
    runnable_.push_back(std::move(leaving));
  } else {
    retire(leaving.lanes);
  }
}

}  // namespace software_gpu
