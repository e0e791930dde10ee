// SPDX-License-Identifier: Apache-2.0
// A record in the worker's private memory, and the reply to it.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>

#include "kvgpu/records.h"

namespace kvgpu::worker {

struct OpInfo;
struct Stream;      // handles.h
class HandleCache;  // handle_cache.h

inline constexpr size_t MAX_DEVICES = 16;
using DeviceSeqs = std::array<uint64_t, MAX_DEVICES>;

// Copied out of the ring once; nothing below here looks at shared memory for it again.
struct Task {
  wire::Header header;
  std::span<const std::byte> body;
  uint64_t seq;       // number of the record in the session, from 1
  uint64_t position;  // in the ring, for error reports
  const OpInfo* op;
  // What other devices' executors must have done before it is executed; null: nothing. Lasts till
  // then.
  const DeviceSeqs* wait_for = nullptr;
  // Of an ENQUEUE record: that of the thread which executes it, and what that has looked up.
  HandleCache* cache = nullptr;
  Stream* stream = nullptr;

  bool wants_reply() const { return !(header.flags & wire::NOREPLY); }

  // The body's struct; false where the record is too short for it.
  template <typename T>
  [[nodiscard]] bool read(T* to) const {
    static_assert(std::is_trivially_copyable_v<T>);
    if (body.size() < sizeof(T)) return false;
    std::memcpy(to, body.data(), sizeof(T));
    return true;
  }
  // What follows the body's struct.
  template <typename T>
  std::span<const std::byte> after() const {
    return body.size() < sizeof(T) ? std::span<const std::byte>{} : body.subspan(sizeof(T));
  }
};

// Begins every body of an ENQUEUE record.
struct EnqueueHead {
  wire::Handle stream;
  uint64_t mark;
};

class ReplyWriter {
 public:
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    put_bytes(&value, sizeof value);
  }
  void put_bytes(const void* data, size_t len_bytes) {
    if (len_bytes > sizeof buffer_ - len_bytes_) {
      overflowed_ = true;
      return;
    }
    if (len_bytes > 0) std::memcpy(buffer_ + len_bytes_, data, len_bytes);  // `data` may be null
    len_bytes_ += static_cast<uint32_t>(len_bytes);
  }
  const void* data() const { return buffer_; }
  uint32_t len_bytes() const { return len_bytes_; }
  bool overflowed() const { return overflowed_; }

 private:
  uint32_t len_bytes_ = 0;
  bool overflowed_ = false;
  alignas(8) std::byte buffer_[wire::MAX_RECORD_BYTES - sizeof(wire::Header) - sizeof(wire::Reply)];
};

}  // namespace kvgpu::worker
