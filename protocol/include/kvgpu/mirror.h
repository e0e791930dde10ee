// SPDX-License-Identifier: Apache-2.0
// One side's half of a region that two sides hold copies of: finds what has changed here, writes
// what has changed there.
//
// Owns a shadow: each byte as both sides knew it last. Used by one thread; the memory itself is
// written by others at any time, so each line is read once, and what was read is what is sent.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>

#include "kvgpu/barrier.h"
#include "kvgpu/layout.h"
#include "kvgpu/stream_form.h"

namespace kvgpu {

class Mirror {
 public:
  using Line = stream_form::Line;

  Mirror() = default;
  ~Mirror() {
    if (shadow_ != nullptr) munmap(shadow_, region_bytes_);
  }
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  // Region offset o of file `fd` is mapped at `memory` + o wherever something is shared.
  [[nodiscard]] bool open(std::byte* memory, int fd, uint64_t region_bytes) {
    constexpr int FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* const shadow = mmap(nullptr, region_bytes, PROT_READ | PROT_WRITE, FLAGS, -1, 0);
    if (shadow == MAP_FAILED) return false;
    shadow_ = static_cast<std::byte*>(shadow);
    memory_ = memory;
    fd_ = fd;
    region_bytes_ = region_bytes;
    return true;
  }

  // Whole lines inside the region?
  bool is_valid(uint64_t off, uint64_t bytes) const {
    return off % stream_form::LINE_BYTES == 0 && bytes % stream_form::LINE_BYTES == 0 &&
           off <= region_bytes_ && bytes <= region_bytes_ - off;
  }
  bool is_shared(uint64_t off, uint64_t bytes) const {
    const auto after = shared_.upper_bound(off);
    if (after == shared_.begin()) return false;
    const auto& [begin, length] = *std::prev(after);
    return off - begin <= length && bytes <= length - (off - begin);
  }
  bool any_shared() const { return !shared_.empty(); }

  // False: it overlaps what is shared already, is nothing, or one range too many.
  [[nodiscard]] bool share(uint64_t off, uint64_t bytes) {
    if (bytes == 0 || shared_.size() >= stream_form::MAX_RANGES) return false;
    const auto after = shared_.lower_bound(off);
    if (after != shared_.end() && after->first - off < bytes) return false;
    if (after != shared_.begin()) {
      const auto& [begin, length] = *std::prev(after);
      if (off - begin < length) return false;
    }
    shared_[off] = bytes;
    return true;
  }
  // False: no such range.
  [[nodiscard]] bool unshare(uint64_t off) { return shared_.erase(off) == 1; }

  // What changed here since it was last exchanged is forgotten.
  void settle(uint64_t off, uint64_t bytes) {
    if (std::memcmp(memory_ + off, shadow_ + off, bytes) == 0) return;
    std::memcpy(memory_ + off, shadow_ + off, bytes);
  }

  void begin_sweep() {
    range_ = shared_.begin();
    at_ = end_ = 0;
    first_ = true;
  }
  // Fills `lines` with what has changed here, from where the last call ended. Fewer than there is
  // room for: the sweep is over. The ranges must not change during a sweep.
  size_t sweep(std::span<Line> lines) {
    size_t n = 0;
    while (n < lines.size()) {
      if (at_ == end_ && !next_data()) return n;
      const uint64_t stop = std::min(end_, (at_ / PAGE_BYTES + 1) * PAGE_BYTES);
      if (at_ % PAGE_BYTES == 0 && std::memcmp(memory_ + at_, shadow_ + at_, stop - at_) == 0) {
        at_ = stop;
        continue;
      }
      for (; at_ < stop && n < lines.size(); at_ += stream_form::LINE_BYTES) {
        if (take_line(at_, &lines[n])) ++n;
      }
    }
    return n;
  }

  // Writes what has changed on the other side; `line` must be valid.
  void apply(const Line& line) {
    auto* const memory = reinterpret_cast<uint64_t*>(memory_ + line.region_off);
    auto* const shadow = reinterpret_cast<uint64_t*>(shadow_ + line.region_off);
    for (size_t i = 0; i < std::size(line.words); ++i) {
      const auto bytes = static_cast<uint8_t>(line.mask >> i * 8);
      if (bytes == 0) continue;
      if (bytes == 0xff) {
        store_relaxed(memory[i], line.words[i]);
        shadow[i] = line.words[i];
        continue;
      }
      // Not the whole word: its other bytes may be written by somebody here right now.
      for (size_t k = 0; k < 8; ++k) {
        if ((bytes >> k & 1) == 0) continue;
        const auto value = static_cast<std::byte>(line.words[i] >> k * 8);
        reinterpret_cast<volatile std::byte*>(memory + i)[k] = value;
        reinterpret_cast<std::byte*>(shadow + i)[k] = value;
      }
    }
  }

 private:
  // The next piece of a shared range that has pages. What has none reads as zeroes on both sides,
  // and reading it would make some.
  bool next_data() {
    for (; range_ != shared_.end(); ++range_, first_ = true) {
      const uint64_t range_end = range_->first + range_->second;
      const uint64_t from = first_ ? range_->first : end_;
      first_ = false;
      const off_t data = from < range_end ? lseek(fd_, static_cast<off_t>(from), SEEK_DATA) : -1;
      if (data < 0 || static_cast<uint64_t>(data) >= range_end) continue;
      const off_t hole = lseek(fd_, data, SEEK_HOLE);
      at_ = static_cast<uint64_t>(data);
      end_ = hole < 0 ? range_end : std::min(static_cast<uint64_t>(hole), range_end);
      return true;
    }
    return false;
  }

  bool take_line(uint64_t off, Line* line) {
    const auto* const memory = reinterpret_cast<const uint64_t*>(memory_ + off);
    auto* const shadow = reinterpret_cast<uint64_t*>(shadow_ + off);
    copy_words_in(line->words, memory, std::size(line->words));
    line->mask = 0;
    for (size_t i = 0; i < std::size(line->words); ++i) {
      const uint64_t changed = line->words[i] ^ shadow[i];
      for (size_t k = 0; changed != 0 && k < 8; ++k) {
        if ((changed >> k * 8 & 0xff) != 0) line->mask |= 1ull << (i * 8 + k);
      }
      shadow[i] = line->words[i];
    }
    line->region_off = off;
    return line->mask != 0;
  }

  std::byte* memory_ = nullptr;
  std::byte* shadow_ = nullptr;
  int fd_ = -1;
  uint64_t region_bytes_ = 0;
  std::map<uint64_t, uint64_t> shared_;  // offset -> bytes
  std::map<uint64_t, uint64_t>::const_iterator range_;
  uint64_t at_ = 0, end_ = 0;
  bool first_ = true;
};

}  // namespace kvgpu
