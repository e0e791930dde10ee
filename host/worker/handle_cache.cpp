// SPDX-License-Identifier: Apache-2.0
#include "handle_cache.h"

#include <utility>

namespace kvgpu::worker {

// The number is read before the table is: what goes in between is looked up again.

Stream* HandleCache::look_up_stream(wire::Handle handle) {
  const uint64_t n_gone = table_->n_gone(wire::Kind::STREAM);
  std::shared_ptr<Stream> found = table_->stream(handle);
  if (found == nullptr) return nullptr;
  auto& entry = entry_of(streams_, handle);
  entry = {handle, n_gone, std::move(found)};
  return entry.value.get();
}

CUfunction HandleCache::look_up_function(wire::Handle handle) {
  const uint64_t n_gone = table_->n_gone(wire::Kind::FUNCTION);
  CUfunction found;
  if (!table_->get(handle, &found)) return nullptr;
  entry_of(functions_, handle) = {handle, n_gone, found};
  return found;
}

}  // namespace kvgpu::worker
