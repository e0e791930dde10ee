// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <tuple>

namespace software_gpu {
namespace {

constexpr const char* NAMES[] = {"race", "uninitialised read", "out of bounds"};

std::string bytes(uint64_t n) { return std::to_string(n) + (n == 1 ? " byte" : " bytes"); }

std::string hexadecimal(uint64_t value) {
  char text[32];
  snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

const char* verb(const Instruction& in) {
  return in.access == Access::READ ? "reads" : in.access == Access::WRITE ? "writes" : "updates";
}

/// Where an access that is in no allocation lies, seen from the nearest one.
std::string distance(const Snapshot& memory, uint64_t address) {
  const Allocation* nearest = nullptr;
  uint64_t least = UINT64_MAX;
  const auto away = [=](const Allocation& a) {
    return address < a.base ? a.base - address : address - std::min(address, a.base + a.size_bytes);
  };
  for (const auto& allocation : memory.allocations) {
    if (away(*allocation) >= least) continue;
    nearest = allocation.get();
    least = away(*nearest);
  }
  if (!nearest) return "there is no memory";
  const std::string where = bytes(nearest->size_bytes) + " at " + hexadecimal(nearest->base);
  if (least == 0 && address != nearest->base + nearest->size_bytes)
    return "across the end of the " + where;
  return bytes(least) +
         (address < nearest->base ? " before the start of the " : " after the end of the ") + where;
}

/// The handler of check mode: thread by thread, so that each sees what those before it have done.
void checked_access(Block& block, const Instruction& in, const Lanes& lanes) {
  for_each(lanes, [&](uint32_t lane) {
    block.checker().access(in, lane);
    const uint16_t list = static_cast<uint16_t>(lane);
    in.unchecked(block, in, {&list, lane, 1, true});
  });
}

}  // namespace

bool check_mode() {
  static const bool on = [] {
    const char* value = getenv("KVGPU_SOFTWARE_GPU_CHECK");
    return value && strcmp(value, "1") == 0;
  }();
  return on;
}

void add_check(Instruction* in) {
  if (in->access == Access::NONE) return;
  in->unchecked = in->handler;
  in->handler = checked_access;
}

void print_counts(const Launch& launch) {
  if (!launch.has_new_finding) return;
  fprintf(stderr,
          "kvgpu software GPU check: kernel %s found %llu times racing, %llu times reading "
          "uninitialised memory, %llu times out of bounds\n",
          launch.entry->name.c_str(), static_cast<unsigned long long>(launch.n_findings[0]),
          static_cast<unsigned long long>(launch.n_findings[1]),
          static_cast<unsigned long long>(launch.n_findings[2]));
}

Checker::Checker(Block& block)
    : block_(block), order_(block.n_threads()), cells_(block.shared_bytes()) {}

void Checker::meet_all(bool new_block) {
  order_.meet_all();
  if (new_block) started_ = order_.now(0);
}

void Checker::arrive(const std::vector<uint16_t>& lanes) {
  for (const uint16_t lane : lanes) order_.arrive(lane);
}

void Checker::meet_in_warps(const Lanes& lanes, const uint64_t* member_masks) {
  std::vector<uint16_t> sets[32];  // by the first lane of their mask
  for (uint32_t warp = 0; warp * 32 < block_.n_threads(); ++warp) {
    for_each(lanes, [&](uint32_t lane) {
      const uint32_t mask = static_cast<uint32_t>(member_masks[lane]);
      if (lane / 32 != warp || mask == 0) return;
      sets[std::countr_zero(mask)].push_back(static_cast<uint16_t>(lane));
    });
    for (std::vector<uint16_t>& set : sets) {
      if (set.empty()) continue;
      arrive(set);
      meet(set, set);
      set.clear();
    }
  }
}

void Checker::access(const Instruction& in, uint32_t lane) {
  if (in.releases || in.access == Access::FENCE) order_.fence(lane);
  if (in.access == Access::FENCE || in.space == Space::LOCAL) return;
  uint64_t address = block_.row(in.a)[lane] + static_cast<uint64_t>(in.imm);
  if (in.space == Space::SHARED) address = block_.shared_address(address);
  const uint64_t offset = address - block_.shared_base();
  if (in.space == Space::SHARED || offset < block_.shared_bytes())
    shared_access(in, lane, offset);
  else
    global_access(in, lane, address);
  if (!in.strong) return;
  if (in.access != Access::WRITE) order_.acquire(lane, address);
  if (in.access != Access::READ) order_.release(lane, address);
}

void Checker::shared_access(const Instruction& in, uint32_t lane, uint64_t offset) {
  const Launch& launch = block_.launch();
  // Without dynamic memory the end is known to the byte.
  const uint64_t limit =
      launch.dynamic_shared_bytes == 0 ? launch.entry->shared_bytes : block_.shared_bytes();
  if (offset > limit || in.access_bytes > limit - offset) {
    if (is_new(Finding::OUT_OF_BOUNDS, in))
      print(Finding::OUT_OF_BOUNDS, in, lane,
            std::string(verb(in)) + " " + bytes(in.access_bytes) + " at shared offset " +
                std::to_string(static_cast<int64_t>(offset)) + " of " + bytes(limit));
    return;
  }
  const Touch now{order_.now(lane), &in, static_cast<uint16_t>(lane), in.strong};
  Touch raced;
  bool raced_with_write = false, unwritten = false;
  for (uint32_t k = 0; k < in.access_bytes; ++k) {
    Cell& cell = cells_[offset + k];
    if (in.access != Access::WRITE) unwritten |= cell.write.stamp < started_;
    if (races(cell.write, now) && !stores_what_is_there(in, lane, offset, k)) {
      raced = cell.write;
      raced_with_write = true;
    }
    if (in.access != Access::READ) {
      for (const Touch& read : cell.reads)
        if (!raced.at && races(read, now)) raced = read;
      cell.write = now;
    } else {
      note_read(&cell, now);
    }
  }
  if (raced.at) report_race(raced, raced_with_write, now, offset);
  if (unwritten && is_new(Finding::UNINITIALISED, in))
    print(Finding::UNINITIALISED, in, lane,
          std::string(verb(in)) + " " + bytes(in.access_bytes) + " at shared offset " +
              std::to_string(offset) + " that nothing has written");
}

bool Checker::races(const Touch& then, const Touch& now) const {
  return then.stamp >= started_ && !(then.strong && now.strong) &&
         !order_.is_before(then.lane, then.stamp, now.lane);
}

/// Threads that all store the same do no harm.
bool Checker::stores_what_is_there(const Instruction& in, uint32_t lane, uint64_t offset,
                                   uint32_t k) {
  if (in.access != Access::WRITE) return false;
  const uint32_t element_bytes = in.access_bytes / in.n_vector;
  const Row row = in.n_vector == 1 ? in.b : block_.vector(in)[k / element_bytes];
  const uint64_t value = block_.row(row)[lane] >> (k % element_bytes * 8);
  const char* there = reinterpret_cast<const char*>(block_.shared_address(offset + k));
  return static_cast<char>(value) == *there;
}

void Checker::note_read(Cell* cell, const Touch& now) const {
  Touch* const reads = cell->reads;
  const auto replaced = [&](const Touch& read) {
    return read.stamp < started_ || order_.is_before(read.lane, read.stamp, now.lane);
  };
  if (replaced(reads[0]))
    reads[0] = now;
  else if (replaced(reads[1]) || reads[1].lane / 32 == reads[0].lane / 32)
    reads[1] = now;
}

void Checker::report_race(const Touch& then, bool then_wrote, const Touch& now, uint64_t offset) {
  if (!is_new(Finding::RACE, *now.at)) return;
  print(Finding::RACE, *now.at, now.lane,
        std::string(verb(*now.at)) + " " + bytes(now.at->access_bytes) + " at shared offset " +
            std::to_string(offset) + " that thread " + block_.thread_name(then.lane) +
            (then_wrote ? " wrote at " : " read at ") + block_.place(*then.at) +
            ", with no barrier between");
}

void Checker::global_access(const Instruction& in, uint32_t lane, uint64_t address) {
  const Launch& launch = block_.launch();
  const uint64_t parameters = reinterpret_cast<uint64_t>(launch.parameters.data());
  if (block_.is_local(address) || address - parameters < launch.parameters.size() * 8) return;
  const Allocation* in_it = launch.memory->find(address);
  if (in_it && in.access_bytes <= in_it->size_bytes - (address - in_it->base)) return;
  if (is_new(Finding::OUT_OF_BOUNDS, in))
    print(Finding::OUT_OF_BOUNDS, in, lane,
          std::string(verb(in)) + " " + bytes(in.access_bytes) + " at " + hexadecimal(address) +
              ", " + distance(*launch.memory, address));
}

/// Counts the finding; true when it is the first of its kind at this instruction of this kernel.
bool Checker::is_new(Finding finding, const Instruction& in) {
  static std::mutex mutex;
  static std::set<std::tuple<std::string, uint32_t, Finding>> known;
  Launch& launch = block_.launch();
  ++launch.n_findings[static_cast<size_t>(finding)];
  std::lock_guard lock(mutex);
  if (!known.emplace(launch.entry->name, in.line, finding).second) return false;
  launch.has_new_finding = true;
  return true;
}

void Checker::print(Finding finding, const Instruction& in, uint32_t lane,
                    const std::string& what) {
  fprintf(stderr, "kvgpu software GPU check: %s: kernel %s, %s, block %s, thread %s: %s\n",
          NAMES[static_cast<size_t>(finding)], block_.launch().entry->name.c_str(),
          block_.place(in).c_str(), block_.name().c_str(), block_.thread_name(lane).c_str(),
          what.c_str());
}

}  // namespace software_gpu
