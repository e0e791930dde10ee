// SPDX-License-Identifier: Apache-2.0
// The slab: shared memory through which pageable memory is copied. Pieces are given back by
// progress numbers, in any order, so that a stalled stream does not hold up the others.
#pragma once

#include <mutex>
#include <vector>

#include "session.h"

namespace kvgpu::guest {

class Staging {
 public:
  static constexpr uint64_t CHUNK_BYTES = 1 << 20;

  struct Piece {
    uint64_t off;
    uint64_t bytes;
    uint32_t word = 0;
    uint64_t number = 0;  // 0: in use by its owner
    wire::Handle stream = 0;
  };

  static Staging& get();

  // Waits while the slab is full: nobody who holds a piece without a number may. `bytes` <=
  // CHUNK_BYTES.
  CUresult allocate(uint64_t bytes, Piece* piece);
  // Does not wait: CUDA_ERROR_NOT_READY while the slab is full.
  CUresult try_allocate(uint64_t bytes, Piece* piece);
  // Free once the number is reached.
  void release_at(const Piece& piece, const Stream& stream, uint64_t number);
  void release(const Piece& piece);

  std::byte* data(const Piece& piece) const { return Session::get().slab() + piece.off; }
  uint64_t address(const Piece& piece) const { return Session::get().slab_address() + piece.off; }

 private:
  static constexpr uint64_t GRAIN_BYTES = 4096;

  void reclaim();
  CUresult mark_lost_pieces();
  bool place(uint64_t bytes, Piece* piece);

  std::mutex mutex_;
  std::vector<Piece> used_;  // sorted by offset
};

}  // namespace kvgpu::guest
