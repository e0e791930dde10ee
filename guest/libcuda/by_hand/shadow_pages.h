// SPDX-License-Identifier: Apache-2.0
// Pages of this process at the addresses of managed memory. The program finds them protected while
// the GPU has what belongs there; the library reaches them at a second address, always.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kvgpu/layout.h"

namespace kvgpu::guest {

enum class PageState : uint8_t {
  ON_GPU,   // not accessible
  READ,     // the same here and there; not writable
  WRITTEN,  // what is here counts
};

// Some blocks of pages one after another, by their numbers.
struct BlockRun {
  size_t first;
  size_t n;
};

class ShadowPages {
 public:
  // [begin, begin + bytes): whole pages that are reserved in this process and used by nobody.
  // Nothing: no memory for them.
  static std::optional<ShadowPages> map(uint64_t begin, uint64_t bytes, PageState state);
  ShadowPages(ShadowPages&& other) noexcept;
  ~ShadowPages();  // reserved again
  ShadowPages(const ShadowPages&) = delete;
  ShadowPages& operator=(const ShadowPages&) = delete;
  ShadowPages& operator=(ShadowPages&&) = delete;

  uint64_t begin() const { return begin_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t end() const { return begin_ + bytes_; }
  std::byte* data(uint64_t address) const { return alias_ + (address - begin_); }

  size_t n_blocks() const { return states_.size(); }
  size_t block_at(uint64_t address) const { return (address - begin_) / block_bytes_; }
  uint64_t address_of(size_t block) const;  // of n_blocks(): the end
  PageState state(size_t block) const { return states_[block]; }
  // From `block` on: the longer, the more came before it in this or a later state; all in `state`.
  BlockRun ahead(size_t block, PageState state, PageState wanted) const;

  // What the program may do from now on.
  void set(const BlockRun& run, PageState state);
  // Nothing, until the next set(): the states stay.
  void protect(const BlockRun& run) const;
  // Forgets what is in the pages of blocks that the GPU has.
  void drop(const BlockRun& run) const;

  // Calls visit(BlockRun) for each run of blocks that are in one of the states in which the program
  // has them.
  template <typename Visit>
  void each_run_here(Visit visit) const {
    for (size_t block = 0; block < states_.size(); ++block) {
      BlockRun run{block, 0};
      while (block < states_.size() && states_[block] == states_[run.first]) ++block, ++run.n;
      --block;
      if (states_[run.first] != PageState::ON_GPU) visit(run);
    }
  }
  // The next piece of [address, end) that was ever touched here; empty: none.
  struct Piece {
    uint64_t begin = 0, bytes = 0;
  };
  Piece touched(uint64_t address, uint64_t end) const;

 private:
  ShadowPages(uint64_t begin, uint64_t bytes, uint64_t file_off, std::byte* alias, PageState state);

  uint64_t begin_, bytes_, file_off_, block_bytes_;
  std::byte* alias_;
  std::vector<PageState> states_;
};

}  // namespace kvgpu::guest
