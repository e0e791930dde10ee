// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "check.h"

namespace software_gpu {

Order::Order(uint32_t n_threads)
    : n_(n_threads), now_(n_threads, 1), arrived_(n_threads), fenced_(n_threads) {}

uint64_t* Order::heard(uint32_t thread) {
  if (heard_.empty()) heard_.resize(size_t{n_} * n_);
  return heard_.data() + size_t{thread} * n_;
}

void Order::meet_all() {
  all_met_ = ++time_;
  std::fill(now_.begin(), now_.end(), time_);
  released_.clear();
  in_warps_ = true;
}

void Order::arrive(uint32_t thread) {
  arrived_[thread] = now_[thread];
  now_[thread] = ++time_;
}

void Order::meet(const std::vector<uint16_t>& arrived, const std::vector<uint16_t>& leaving) {
  const uint32_t warp = arrived.front() / 32;
  const auto elsewhere = [=](uint16_t lane) { return lane / 32 != warp; };
  if (std::any_of(arrived.begin(), arrived.end(), elsewhere)) in_warps_ = false;
  // Of threads in other warps nothing was heard since all met, unless threads of two warps have
  // met.
  const uint32_t first = in_warps_ ? warp * 32 : 0,
                 last = in_warps_ ? std::min(first + 32, n_) : n_;
  Times all(n_);
  for (const uint16_t lane : arrived) {
    const uint64_t* known = heard(lane);
    for (uint32_t i = first; i < last; ++i) all[i] = std::max(all[i], known[i]);
    all[lane] = std::max(all[lane], arrived_[lane]);
  }
  for (const uint16_t lane : leaving) std::copy(&all[first], &all[0] + last, heard(lane) + first);
}

void Order::fence(uint32_t thread) {
  fenced_[thread] = now_[thread];
  now_[thread] = ++time_;
}

void Order::release(uint32_t thread, uint64_t address) {
  if (fenced_[thread] < all_met_) return;  // nothing that is not known to all
  Times& times = released_[address];
  times.resize(n_);
  if (times[thread] >= fenced_[thread]) return;  // it has handed that on before
  const uint64_t* known = heard(thread);
  for (uint32_t i = 0; i < n_; ++i) times[i] = std::max(times[i], known[i]);
  times[thread] = std::max(times[thread], fenced_[thread]);
}

void Order::acquire(uint32_t thread, uint64_t address) {
  const auto found = released_.find(address);
  if (found == released_.end()) return;
  uint64_t* known = heard(thread);
  for (uint32_t i = 0; i < n_; ++i) known[i] = std::max(known[i], found->second[i]);
  in_warps_ = false;
}

}  // namespace software_gpu
