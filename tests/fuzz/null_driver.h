// SPDX-License-Identifier: Apache-2.0
// A driver that does nothing and accepts everything that a driver could survive. What the worker
// must never pass on, whatever the guest has written, ends the process: a handle that the driver
// has not made, memory that is not the guest's, a text without an end, an image that leads out of
// itself.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "driver.h"

namespace kvgpu::fuzz {

struct Range {
  uint64_t begin, bytes;
  bool contains(uint64_t address, uint64_t len_bytes) const {
    return address >= begin && address - begin <= bytes && len_bytes <= bytes - (address - begin);
  }
};

class NullDriver {
 public:
  // A new process: nothing allocated, no handle made.
  void reset(uint64_t window, Range slab, Range progress);
  void set_faults(uint64_t seed) { random_ = seed; }
  void add_session_memory(Range extent) { session_memory_.push_back(extent); }

  // What a call answers before it does anything.
  CUresult begin(const char* name);

  void* make_handle(const char* type);
  void check_handle(const char* type, const void* handle) const;
  void forget_handle(const void* handle) { handles_.erase(handle); }

  CUresult allocate(uint64_t* address, uint64_t bytes);
  CUresult allocate_for_graph(uint64_t* address, uint64_t bytes);  // never given back
  CUresult free(uint64_t address);
  void check_memory(const char* what, uint64_t address, uint64_t bytes) const;
  void check_registrable(uint64_t address, uint64_t bytes) const;
  bool is_progress_word(uint64_t address) const;

  const std::set<std::string>& called() const { return called_; }  // by any input so far

 private:
  uint64_t window_ = 0, next_address_ = 0, next_handle_ = 0, random_ = 0, n_calls_ = 0;
  Range progress_{};
  std::vector<Range> session_memory_;
  std::map<uint64_t, uint64_t> device_memory_;
  std::set<uint64_t> graph_memory_;
  std::map<const void*, const char*> handles_;
  std::set<std::string> called_;
  const char* call_ = "";

  bool is_known(uint64_t address, uint64_t bytes) const;
};

NullDriver& null_driver();

[[noreturn]] void breach(const char* what, uint64_t a, uint64_t b);

// Every function of the table: those with something to check by hand, the others by their types.
void fill_table(worker::DriverTable* table);

}  // namespace kvgpu::fuzz
