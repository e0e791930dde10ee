// SPDX-License-Identifier: Apache-2.0
// What stands in the driver's table for a function that the loaded driver does not have: an older
// driver, or the software GPU. Calling it refuses, with one log line per name.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <set>

#include "log.h"

namespace kvgpu::worker {

template <size_t INDEX, typename Function>
struct Absent;

template <size_t INDEX, typename... Args>
struct Absent<INDEX, CUresult (*)(Args...)> {
  static inline const char* name = nullptr;
  static CUresult call(Args...) {
    static std::atomic<bool> told{false};
    if (!told.exchange(true)) log("this host's driver has no %s: refused", name);
    return CUDA_ERROR_NOT_SUPPORTED;
  }
};

// A driver whose IPC handles are of no use without a descriptor beside them (the software GPU: its
// processes cannot open one another's files). Null: handles are enough.
struct IpcDescriptors {
  int (*descriptor_of)(const void* handle) = nullptr;  // a new one; negative: none
  void (*offer)(int descriptor) = nullptr;             // before the handle is opened
};

class DriverTableBase {
 public:
  IpcDescriptors ipc;

  // Does the loaded driver have this function? `function` is a member of the table.
  template <typename Function>
  bool has(const Function& function) const {
    return !absent_.contains(offset(&function));
  }

 protected:
  template <size_t INDEX, typename Function, typename Resolve>
  void put(Function& function, const char* name, Resolve resolve) {
    function = reinterpret_cast<Function>(resolve(name));
    if (function != nullptr) return;
    Absent<INDEX, Function>::name = name;
    function = &Absent<INDEX, Function>::call;
    absent_.insert(offset(&function));
  }

 private:
  ptrdiff_t offset(const void* member) const {
    return static_cast<const char*>(member) - reinterpret_cast<const char*>(this);
  }
  std::set<ptrdiff_t> absent_;
};

}  // namespace kvgpu::worker
