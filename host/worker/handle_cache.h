// SPDX-License-Identifier: Apache-2.0
// What an executor has looked up, for the next record that names it: the table's lock and a
// stream's reference count cost a launch more than most of what the worker does for it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "handles.h"

namespace kvgpu::worker {

// Of one thread. What has gone is not found, as in the table.
class HandleCache {
 public:
  explicit HandleCache(const HandleTable* table) : table_(table) {}

  // Null: there is none. It lasts until the next look-up of a stream.
  Stream* stream(wire::Handle handle) {
    const auto& entry = entry_of(streams_, handle);
    const bool is_known = entry.is_of(handle, table_->n_gone(wire::Kind::STREAM));
    return is_known ? entry.value.get() : look_up_stream(handle);
  }
  // Null: there is none.
  CUfunction function(wire::Handle handle) {
    const auto& entry = entry_of(functions_, handle);
    const bool is_known = entry.is_of(handle, table_->n_gone(wire::Kind::FUNCTION));
    return is_known ? entry.value : look_up_function(handle);
  }

 private:
  template <typename Value>
  struct Entry {
    wire::Handle handle = 0;
    uint64_t n_gone = ~0ull;  // when it was looked up
    Value value{};
    bool is_of(wire::Handle wanted, uint64_t n_gone_now) const {
      return handle == wanted && n_gone == n_gone_now;
    }
  };
  template <typename Value>
  using Entries = std::array<Entry<Value>, 256>;
  template <typename Value>
  static Entry<Value>& entry_of(Entries<Value>& entries, wire::Handle handle) {
    return entries[wire::handle_index(handle) % entries.size()];
  }

  Stream* look_up_stream(wire::Handle handle);
  CUfunction look_up_function(wire::Handle handle);

  const HandleTable* const table_;
  Entries<std::shared_ptr<Stream>> streams_;
  Entries<CUfunction> functions_;
};

}  // namespace kvgpu::worker
