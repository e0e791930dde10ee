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
  // What is shared is compared at each call: the less, the better.
  if (Session::get().is_byte_stream()) reclaim();
  if (!place(bytes, piece)) {
    reclaim();
    if (!place(bytes, piece)) return CUDA_ERROR_NOT_READY;
  }
  return Session::get().share(address(*piece), piece->bytes);
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
  uint64_t off = 0;
  auto at = used_.begin();
  for (; at != used_.end(); ++at) {
    if (at->off - off >= bytes) break;
    off = at->off + at->bytes;
  }
  if (at == used_.end() && SLAB_BYTES - off < bytes) return false;
  *piece = {off, bytes};
  used_.insert(at, *piece);
  return true;
}

void Staging::reclaim() {
  Session& session = Session::get();
  std::erase_if(used_, [&](const Piece& piece) {
    const bool is_done = piece.number != 0 && session.reached(piece.word, piece.number);
    if (is_done) session.unshare(address(piece), piece.bytes);
    return is_done;
  });
}

// A number that was lost with an error may belong to a copy that the GPU is still to make: the
// piece comes back with the next number of its stream. Where the stream has gone since, there is
// none: if nothing else is to be waited for, all work is.
CUresult Staging::mark_lost_pieces() {
  Session& session = Session::get();
  std::vector<Piece> lost;
  size_t n_used;
  {
    const std::lock_guard lock(mutex_);
    n_used = used_.size();
    std::ranges::copy_if(used_, std::back_inserter(lost), [&](const Piece& piece) {
      return piece.number != 0 && session.is_lost(piece.word, piece.number);
    });
  }
  std::erase_if(lost, [](const Piece& piece) {
    Stream* const stream = tables().streams.find(piece.stream);
    uint64_t number;
    if (stream != nullptr) (void)mark_given_work(*stream, &number);
    return stream != nullptr;
  });
  if (lost.empty() || lost.size() < n_used) return CUDA_SUCCESS;
  const CUresult bad = session.call(wire::Op::HOST_SYNC, 0, nullptr, part(wire::HostSync{0}));
  if (bad != CUDA_SUCCESS) return bad;
  const std::lock_guard lock(mutex_);
  std::erase_if(used_, [&](const Piece& piece) {
    const bool is_done = std::ranges::any_of(lost, [&](const Piece& each) {
      return each.off == piece.off && each.word == piece.word && each.number == piece.number;
    });
    if (is_done) session.unshare(address(piece), piece.bytes);
    return is_done;
  });
  return CUDA_SUCCESS;
}

void Staging::release_at(const Piece& piece, const Stream& stream, uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto at =
      std::find_if(used_.begin(), used_.end(), [&](const Piece& p) { return p.off == piece.off; });
  at->word = stream.word;
  at->number = number;
  at->stream = stream.handle;
}

void Staging::release(const Piece& piece) {
  const std::lock_guard lock(mutex_);
  Session::get().unshare(address(piece), piece.bytes);
  std::erase_if(used_, [&](const Piece& p) { return p.off == piece.off; });
}

}  // namespace kvgpu::guest
