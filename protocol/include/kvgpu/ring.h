// SPDX-License-Identifier: Apache-2.0
// One direction of a session's record stream in shared memory: single producer, single consumer,
// two processes.
//
// Owns nothing: a view on ring bytes, on the word in which the consumer publishes its position
// ("credit"), and private positions. Trusts its own positions only. A producer used by several
// threads is locked by its owner.
//
// Pairs: commit word (release by Producer::commit, acquire by Consumer::peek); credit word (release
// by Consumer::publish, acquire by Producer::refresh_credit).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kvgpu/barrier.h"
#include "kvgpu/records.h"

namespace kvgpu {

enum class RingError { NONE, BAD_CREDIT, BAD_LENGTH, BAD_POSITION };

constexpr const char* to_string(RingError e) {
  switch (e) {
    case RingError::NONE:
      return "none";
    case RingError::BAD_CREDIT:
      return "credit outside of what was sent";
    case RingError::BAD_LENGTH:
      return "record length out of range";
    case RingError::BAD_POSITION:
      return "record crosses the end of the ring";
  }
  return "?";
}

// A piece of a record's body.
struct Part {
  const void* data;
  uint32_t len_bytes;
};
template <typename T>
Part part(const T& body) {
  return {&body, sizeof(T)};
}

class Producer {
 public:
  Producer() = default;
  Producer(std::byte* ring, uint64_t ring_bytes, const uint64_t* credit_word)
      : ring_(ring), ring_bytes_(ring_bytes), credit_word_(credit_word), end_(ring_bytes) {}

  // The ring's memory is write-combining.
  void set_weakly_ordered() { weakly_ordered_ = true; }

  uint64_t position() const { return position_; }
  RingError error() const { return error_; }
  // What reserve() has counted with, and what the consumer says now: for who waits for room
  // without the owner's lock.
  uint64_t credit() const { return credit_; }
  // acquire: pairs with the release in Consumer::publish()
  uint64_t credit_now() const { return load_acquire(*credit_word_); }
  // Of several who wait for room each takes some: after so many bytes there is none until
  // end_share().
  void begin_share(uint64_t bytes) {
    is_shared_ = true;
    end_ = std::min(end_, position_ + bytes);
  }
  void end_share() { is_shared_ = false; }
  bool is_shared() const { return is_shared_; }

  // Room for a record of `len_bytes` (with header)? Emits the PAD record that the end of the ring
  // may need. False: not yet, or error() is set. After true, write() may be called once.
  [[gnu::always_inline]] bool reserve(uint32_t len_bytes) {
    const uint64_t need = wire::padded(len_bytes);
    const uint64_t to_end = ring_bytes_ - (position_ & (ring_bytes_ - 1));
    // One line more than the record: the next commit word is cleared before this record is
    // committed.
    const uint64_t total = (need > to_end ? to_end : 0) + need + wire::RECORD_ALIGN_BYTES;
    if (position_ + total > end_ && !refresh_credit(total)) return false;
    if (need > to_end) [[unlikely]]
      pad(static_cast<uint32_t>(to_end));
    return true;
  }

  // Header fields except `commit` and `len_bytes` come from `header`; `parts` follow one another as
  // the body. Straight into the ring: before the commit nobody uses what is there.
  template <typename... Parts>
  [[gnu::always_inline]] void write(const wire::Header& header, const Parts&... parts) {
    const uint32_t len_bytes = (uint32_t{sizeof header} + ... + parts.len_bytes);
    std::byte* const to = begin(wire::padded(len_bytes));
    std::byte* end = to + sizeof header;
    const auto append = [&end](const Part& part) {
      const uint32_t part_bytes = part.len_bytes;
      if (part_bytes > 0) std::memcpy(end, part.data, part_bytes);
      end += part_bytes;
    };
    (append(parts), ...);
    write_header(to, header, len_bytes);
    commit(to, wire::padded(len_bytes));
  }

  // By who is about to write a record, as early as it knows, without the owner's lock. The consumer
  // has read these lines a lap ago, and, waiting, looks at the first of them again and again:
  // writing there would wait for them.
  void expect_record() const {
    const uint64_t position = load_relaxed(position_);
    for (uint64_t off = 0; off < EXPECTED_BYTES; off += wire::RECORD_ALIGN_BYTES) {
      prefetch_to_write(ring_ + ((position + off) & (ring_bytes_ - 1)));
    }
  }

 private:
  uint64_t* word_at(uint64_t position) const {
    return reinterpret_cast<uint64_t*>(ring_ + (position & (ring_bytes_ - 1)));
  }

  // Where the next record is to be written. Stores are seen in order: were the word behind it
  // cleared last, its line would be waited for while the consumer, looking, takes the record's.
  std::byte* begin(uint32_t padded_bytes) {
    store_relaxed(*word_at(position_ + padded_bytes), 0);  // no stale lap is taken for a record
    return reinterpret_cast<std::byte*>(word_at(position_));
  }

  // All but the commit word, each field by itself: the caller has just stored them so.
  static void write_header(std::byte* to, const wire::Header& header, uint32_t len_bytes) {
    const auto put = [to](size_t offset, const auto& field) {
      std::memcpy(to + offset, &field, sizeof field);
    };
    put(offsetof(wire::Header, len_bytes), len_bytes);
    put(offsetof(wire::Header, opcode), header.opcode);
    put(offsetof(wire::Header, flags), header.flags);
    put(offsetof(wire::Header, call_id), header.call_id);
    put(offsetof(wire::Header, target), header.target);
    put(offsetof(wire::Header, reserved), header.reserved);
  }

  void commit(std::byte* record, uint32_t padded_bytes) {
    const uint64_t position = position_;
    store_relaxed(position_, position + padded_bytes);  // for expect_record()
    if (weakly_ordered_) [[unlikely]]
      store_fence();
    // release: pairs with the acquire of the commit word in Consumer::peek()
    store_release(*reinterpret_cast<uint64_t*>(record), position + 1);
    if (weakly_ordered_) [[unlikely]]
      store_fence();  // out of the processor's buffers now
  }

  [[gnu::noinline]] void pad(uint32_t len_bytes) {
    wire::Header header{};
    header.flags = wire::PAD | wire::NOREPLY;
    std::byte* const to = begin(len_bytes);
    write_header(to, header, len_bytes);
    commit(to, len_bytes);
  }

  [[gnu::noinline]] bool refresh_credit(uint64_t total) {
    if (is_shared_) return false;
    // acquire: pairs with the release in Consumer::publish(); what was read there may now be
    // overwritten
    const uint64_t credit = load_acquire(*credit_word_);
    if (credit < credit_ || credit > position_) {
      error_ = RingError::BAD_CREDIT;
      return false;
    }
    credit_ = credit;
    end_ = credit + ring_bytes_;
    return position_ + total <= end_;
  }

  // Two launches, and the word behind them: the second one is not expected early enough where they
  // come without a pause. Of longer records the processor finds the lines itself.
  static constexpr uint64_t EXPECTED_BYTES = 5 * wire::RECORD_ALIGN_BYTES;

  std::byte* ring_ = nullptr;
  uint64_t ring_bytes_ = 0;
  const uint64_t* credit_word_ = nullptr;
  uint64_t position_ = 0;
  uint64_t credit_ = 0;
  uint64_t end_ = 0;  // of the room that is known of
  bool is_shared_ = false;
  bool weakly_ordered_ = false;
  RingError error_ = RingError::NONE;
};

class Consumer {
 public:
  Consumer() = default;
  Consumer(const std::byte* ring, uint64_t ring_bytes, uint64_t* credit_word)
      : ring_(ring), ring_bytes_(ring_bytes), credit_word_(credit_word) {}

  void set_weakly_ordered() { weakly_ordered_ = true; }

  uint64_t position() const { return position_; }
  RingError error() const { return error_; }

  // The header of the next record, copied once and checked. False: none yet, or error() is set.
  bool peek(wire::Header* header) {
    for (;;) {
      const uint64_t* const at = word_at(position_);
      // acquire: pairs with the release in Producer::commit()
      if (load_acquire(*at) != position_ + 1) {
        caught_up_ = position_;
        return false;
      }
      if (weakly_ordered_) load_fence();
      copy_header(at, header);
      if (!check(*header)) return false;
      if (!(header->flags & wire::PAD)) return true;
      advance(header->len_bytes);
    }
  }

  // The whole record of a peeked header: `to` has room for padded(len) bytes. The header is the
  // checked copy, not read again.
  void take(const wire::Header& header, void* to) {
    std::memcpy(to, &header, sizeof header);
    take_body(header, static_cast<std::byte*>(to) + sizeof header);
  }
  // What follows the header, likewise, half a line at a time: a record ends with a line.
  void take_body(const wire::Header& header, std::byte* to) {
    constexpr size_t STEP = sizeof header;
    const auto* const from = reinterpret_cast<const std::byte*>(word_at(position_));
    for (size_t at = STEP; at < header.len_bytes; at += STEP, to += STEP) {
      std::memcpy(to, from + at, STEP);
    }
    compiler_fence();  // from here on the copy is what is used
    advance(header.len_bytes);
  }

  // So many bytes have been taken since there was nothing: likely as many more are there.
  bool is_far_behind(uint64_t bytes) const { return position_ - caught_up_ >= bytes; }

  // Before what was just taken, so many bytes, is executed: as much of what follows comes
  // meanwhile. Not where the producer may be about to write it, who would have to fetch it back.
  void prefetch(uint64_t len_bytes) const {
    if (!is_far_behind(8 * len_bytes)) return;
    for (uint64_t at = position_; at < position_ + len_bytes; at += wire::RECORD_ALIGN_BYTES) {
      prefetch_to_read(word_at(at));
    }
  }

  // Give space back. Done by itself every eighth of the ring; call it when idle.
  void publish() {
    published_ = position_;
    // release: pairs with the acquire in Producer::refresh_credit()
    store_release(*credit_word_, position_);
    if (weakly_ordered_) store_fence();
  }
  bool unpublished() const { return published_ != position_; }

 private:
  const uint64_t* word_at(uint64_t position) const {
    return reinterpret_cast<const uint64_t*>(ring_ + (position & (ring_bytes_ - 1)));
  }

  // Each word by itself, as it was loaded: a wider load would wait for the stores.
  void copy_header(const uint64_t* at, wire::Header* header) const {
    auto* const to = reinterpret_cast<std::byte*>(header);
    const auto put = [to](size_t i, uint64_t word) { std::memcpy(to + 8 * i, &word, sizeof word); };
    put(0, position_ + 1);
    for (size_t i = 1; i < sizeof *header / 8; ++i) put(i, load_relaxed(at[i]));
  }

  bool check(const wire::Header& header) {
    const uint64_t to_end = ring_bytes_ - (position_ & (ring_bytes_ - 1));
    const bool is_pad = (header.flags & wire::PAD) != 0;
    if (header.len_bytes < sizeof(wire::Header) || header.len_bytes > wire::MAX_RECORD_BYTES) {
      error_ = RingError::BAD_LENGTH;
    } else if (wire::padded(header.len_bytes) > to_end || (is_pad && header.len_bytes != to_end)) {
      error_ = RingError::BAD_POSITION;
    }
    return error_ == RingError::NONE;
  }

  void advance(uint32_t len_bytes) {
    position_ += wire::padded(len_bytes);
    if (position_ - published_ >= ring_bytes_ / 8) publish();
  }

  const std::byte* ring_ = nullptr;
  uint64_t ring_bytes_ = 0;
  uint64_t* credit_word_ = nullptr;
  uint64_t position_ = 0;
  uint64_t published_ = 0;
  uint64_t caught_up_ = 0;  // where there was nothing last
  bool weakly_ordered_ = false;
  RingError error_ = RingError::NONE;
};

}  // namespace kvgpu
