// SPDX-License-Identifier: Apache-2.0
// What the scheduler does with groups of threads.
#pragma once

#include <algorithm>
#include <iterator>
#include <utility>

#include "block.h"

namespace software_gpu {

inline bool same_frame(const Frame* a, const Frame* b) {
  while (a != b) {
    if (!a || !b || a->function != b->function || a->return_pc != b->return_pc ||
        a->first_row != b->first_row || a->local_base_bytes != b->local_base_bytes)
      return false;
    a = a->caller.get();
    b = b->caller.get();
  }
  return true;
}

inline bool same_place(const Group& a, const Group& b) {
  return a.pc == b.pc && same_frame(a.frame.get(), b.frame.get());
}

inline void merge_into(Group* group, const Group& other) {
  std::vector<uint16_t> merged(group->lanes.size() + other.lanes.size());
  std::merge(group->lanes.begin(), group->lanes.end(), other.lanes.begin(), other.lanes.end(),
             merged.begin());
  group->lanes = std::move(merged);
}

inline std::vector<uint16_t> without(const std::vector<uint16_t>& all,
                                     const std::vector<uint16_t>& some) {
  std::vector<uint16_t> rest;
  std::set_difference(all.begin(), all.end(), some.begin(), some.end(), std::back_inserter(rest));
  return rest;
}

}  // namespace software_gpu
