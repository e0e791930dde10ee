// SPDX-License-Identifier: Apache-2.0
// The JIT linker's states of a session, by the guest's handles.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "kvgpu/records.h"

namespace kvgpu::worker {

struct Link;  // handlers/link.cpp

class Links {
 public:
  // False: the handle is malformed or in use, or there are more than any program makes.
  [[nodiscard]] bool add(wire::Handle handle, std::shared_ptr<Link> link) {
    if (!wire::handle_tagged(handle) || wire::handle_kind(handle) != wire::Kind::LINK) return false;
    const std::lock_guard lock(mutex_);
    return links_.size() < MAX_LINKS && links_.emplace(handle, std::move(link)).second;
  }
  // Null: no such link.
  std::shared_ptr<Link> find(wire::Handle handle) {
    const std::lock_guard lock(mutex_);
    const auto found = links_.find(handle);
    return found == links_.end() ? nullptr : found->second;
  }
  void remove(wire::Handle handle) {
    const std::lock_guard lock(mutex_);
    links_.erase(handle);
  }

 private:
  static constexpr size_t MAX_LINKS = 1024;
  std::mutex mutex_;
  std::map<wire::Handle, std::shared_ptr<Link>> links_;
};

}  // namespace kvgpu::worker
