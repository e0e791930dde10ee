// SPDX-License-Identifier: Apache-2.0
// What the session has given away to other processes of its VM, by token (PROTOCOL.md §4.1). A
// descriptor stays here as long as somebody may ask for it. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "descriptor.h"
#include "kvgpu/memory_calls.h"

namespace kvgpu::worker {

enum class ShareKind : uint32_t { NONE, PHYSICAL, POOL, POINTER, MEMORY, EVENT, HOST_MEMORY };

struct Share {
  ShareKind kind = ShareKind::NONE;
  std::array<std::byte, 64> content{};  // the driver's handle, where it has one
  Descriptor descriptor;
};

class Shares {
 public:
  explicit Shares(uint32_t session_id) : session_id_(session_id) {}

  // `object`: what it is of, an address or a handle; it is shared once, under one token. 0: each
  // time anew. None: there are too many.
  [[nodiscard]] std::optional<wire::Token> add(Share share, uint64_t object);
  [[nodiscard]] std::optional<wire::Token> find(ShareKind kind, uint64_t object) const;
  // With a descriptor of its own. Kind NONE: there is no such thing.
  [[nodiscard]] Share get(const wire::Token& token) const;
  Share remove(const wire::Token& token);  // kind NONE: there is no such thing
  void remove(ShareKind kind, uint64_t object);
  bool is_own(const wire::Token& token) const { return token.session == session_id_; }

 private:
  using Key = std::array<uint8_t, sizeof(wire::Token)>;
  using Object = std::pair<ShareKind, uint64_t>;
  struct Entry {
    Share share;
    uint64_t object;
  };
  static constexpr size_t MAX_SHARES = 4096;  // far less than MAX_DESCRIPTORS

  static Key key_of(const wire::Token& token);

  const uint32_t session_id_;
  mutable std::mutex mutex_;
  std::map<Key, Entry> entries_;
  std::map<Object, wire::Token> by_object_;
};

}  // namespace kvgpu::worker
