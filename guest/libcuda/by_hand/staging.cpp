// SPDX-License-Identifier: Apache-2.0
#include "staging.h"

#include <algorithm>
#include <iterator>

#include "enqueue.h"
#include "waiter.h"

namespace kvgpu::guest {

Staging& Staging::get() {
  static auto& staging = *new Staging;
  return staging;
}

CUresult Staging::try_allocate(uint64_t bytes, Piece* piece) {
  bytes = (bytes + GRAIN_BYTES - 1) / GRAIN_BYTES * GRAIN_BYTES;
  const std::lock_guard lock(mutex_);
  // Of a byte stream what is shared is compared at each call: the less, the better.
  if (given_back_.size() >= reclaim_at_ || Session::get().is_byte_stream()) reclaim();
  if (!place(bytes, piece)) {
    reclaim();
    if (!place(bytes, piece)) return CUDA_ERROR_NOT_READY;
  }
  const CUresult bad = Session::get().share(address(*piece), bytes);
  if (bad != CUDA_SUCCESS) put_back(*piece);
  return bad;
}

CUresult Staging::allocate(uint64_t bytes, Piece* piece) {
  SpinThenSleep wait;
  for (;;) {
    const CUresult result = try_allocate(bytes, piece);
    if (result != CUDA_ERROR_NOT_READY) return result;
    if (const CUresult bad = mark_lost_pieces()) return bad;
    if (const CUresult bad = Session::get().pending_error()) return bad;
    if (wait.step()) Session::get().look_around();
  }
}

bool Staging::place(uint64_t bytes, Piece* piece) {
  const auto first = grains_.take(bytes / GRAIN_BYTES);
  if (!first) return false;
  *piece = {*first * GRAIN_BYTES, bytes};
  ++n_pieces_;
  return true;
}

void Staging::free(const Piece& piece) {
  (void)Session::get().unshare(address(piece), piece.bytes);
  put_back(piece);
}

void Staging::put_back(const Piece& piece) {
  grains_.give_back(piece.off / GRAIN_BYTES, piece.bytes / GRAIN_BYTES);
  --n_pieces_;
}

void Staging::reclaim() {
  std::erase_if(given_back_, [&](const Piece& piece) {
    const bool is_done = Session::get().reached(piece.word, piece.number);
    if (is_done) free(piece);
    return is_done;
  });
  reclaim_at_ = std::max(FEW, 2 * given_back_.size());
}

// A number that was lost with an error may belong to a copy that the GPU is still to make: the
// piece comes back with the next number of its stream. Where the stream has gone since, there is
// none: if nothing else is to be waited for, all work is.
CUresult Staging::mark_lost_pieces() {
  Session& session = Session::get();
  std::vector<Piece> lost;
  size_t n_pieces;
  {
    const std::lock_guard lock(mutex_);
    n_pieces = n_pieces_;
    std::ranges::copy_if(given_back_, std::back_inserter(lost), [&](const Piece& piece) {
      return session.is_lost(piece.word, piece.number);
    });
  }
  std::erase_if(lost, [](const Piece& piece) {
    Stream* const stream = tables().streams.find(piece.stream);
    uint64_t number;
    if (stream != nullptr) (void)mark_given_work(*stream, &number);
    return stream != nullptr;
  });
  if (lost.empty() || lost.size() < n_pieces) return CUDA_SUCCESS;
  const CUresult bad = session.call(wire::Op::HOST_SYNC, 0, nullptr, part(wire::HostSync{0}));
  if (bad != CUDA_SUCCESS) return bad;
  const std::lock_guard lock(mutex_);
  std::erase_if(given_back_, [&](const Piece& piece) {
    const bool is_done = std::ranges::any_of(lost, [&](const Piece& each) {
      return each.off == piece.off && each.word == piece.word && each.number == piece.number;
    });
    if (is_done) free(piece);
    return is_done;
  });
  return CUDA_SUCCESS;
}

void Staging::release_at(const Piece& piece, const Stream& stream, uint64_t number) {
  const std::lock_guard lock(mutex_);
  given_back_.push_back({piece.off, piece.bytes, stream.word, number, stream.handle});
}

void Staging::release(const Piece& piece) {
  const std::lock_guard lock(mutex_);
  free(piece);
}

}  // namespace kvgpu::guest
