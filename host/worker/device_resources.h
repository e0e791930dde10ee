// SPDX-License-Identifier: Apache-2.0
// The device resources that the guest has been given. What is in them is the driver's and may lead
// anywhere, so only what is byte for byte one of these goes back to the driver.
#pragma once

#include <cuda.h>

#include <cstring>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kvgpu/context_calls.h"

namespace kvgpu::worker {

class DeviceResources {
 public:
  // As it goes to the guest. False: too many are known.
  [[nodiscard]] bool give(const CUdevResource& resource, wire::DevResource* out) {
    static_assert(sizeof resource == sizeof *out);
    std::memcpy(out, &resource, sizeof *out);
    const std::lock_guard lock(mutex_);
    if (known_.size() >= MAX_KNOWN) return false;
    known_.insert(key(*out));
    return true;
  }
  // As it comes back. False: it is none.
  [[nodiscard]] bool take(const wire::DevResource& guest_resource, CUdevResource* out) const {
    std::memcpy(out, &guest_resource, sizeof *out);
    const std::lock_guard lock(mutex_);
    return known_.contains(key(guest_resource));
  }

 private:
  static constexpr size_t MAX_KNOWN = 1 << 16;  // some ten MB

  static std::string key(const wire::DevResource& resource) {
    return {reinterpret_cast<const char*>(resource.bytes), sizeof resource.bytes};
  }
  mutable std::mutex mutex_;
  std::set<std::string> known_;
};

}  // namespace kvgpu::worker
