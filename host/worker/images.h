// SPDX-License-Identifier: Apache-2.0
// The texture and surface objects of a session. The guest has the driver's own numbers of them,
// since kernels do; each context counts its own. None goes to the driver that is not known here.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "kvgpu/records.h"

namespace kvgpu::worker {

enum class ImageKind : uint8_t { TEXTURE, SURFACE };

class Images {
 public:
  void add(wire::Handle context, uint64_t object, ImageKind kind) {
    const std::lock_guard lock(mutex_);
    all_[{context, object}] = kind;
  }
  [[nodiscard]] bool has(wire::Handle context, uint64_t object, ImageKind kind) const {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find({context, object});
    return found != all_.end() && found->second == kind;
  }
  // False: it is none of these.
  bool remove(wire::Handle context, uint64_t object, ImageKind kind) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find({context, object});
    if (found == all_.end() || found->second != kind) return false;
    all_.erase(found);
    return true;
  }
  void forget(wire::Handle context) {
    const std::lock_guard lock(mutex_);
    std::erase_if(all_, [&](const auto& item) { return item.first.first == context; });
  }

 private:
  using Key = std::pair<wire::Handle, uint64_t>;
  mutable std::mutex mutex_;
  std::map<Key, ImageKind> all_;
};

}  // namespace kvgpu::worker
