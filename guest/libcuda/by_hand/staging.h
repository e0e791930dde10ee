// SPDX-License-Identifier: Apache-2.0
// The slab: shared memory through which pageable memory is copied. Pieces are given back by
// progress numbers, in any order, so that a stalled stream does not hold up the others. A small
// copy's piece costs no search among those of others.
#pragma once

#include <mutex>
#include <vector>

#include "grains.h"
#include "session.h"

namespace kvgpu::guest {

class Staging {
 public:
  static constexpr uint64_t CHUNK_BYTES = 1 << 20;

  struct Piece {
    uint64_t off;
    uint64_t bytes;
    uint32_t word = 0;
    uint64_t number = 0;
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
  static constexpr size_t FEW = 32;

  bool place(uint64_t bytes, Piece* piece);
  void free(const Piece& piece);
  void put_back(const Piece& piece);  // one that is not shared
  void reclaim();
  CUresult mark_lost_pieces();

  std::mutex mutex_;
  Grains<SLAB_BYTES / GRAIN_BYTES> grains_;
  size_t n_pieces_ = 0;
  std::vector<Piece> given_back_;  // of n_pieces_, those that are free with a number
  size_t reclaim_at_ = FEW;        // of them: so that each is looked at twice or so
};

}  // namespace kvgpu::guest
