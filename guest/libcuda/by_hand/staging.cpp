// SPDX-License-Identifier: Apache-2.0
#include "staging.h"

#include <algorithm>

#include "waiter.h"

namespace kvgpu::guest {

Staging& Staging::get() {
  static auto& staging = *new Staging;
  return staging;
}

CUresult Staging::allocate(uint64_t bytes, Piece* piece) {
  bytes = (bytes + GRAIN_BYTES - 1) / GRAIN_BYTES * GRAIN_BYTES;
  SpinThenSleep wait;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      // What is shared is compared at each call: the less, the better.
      if (Session::get().is_byte_stream()) reclaim();
      bool placed = place(bytes, piece);
      if (!placed) {
        reclaim();
        placed = place(bytes, piece);
      }
      if (placed) return Session::get().share(address(*piece), piece->bytes);
    }
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
    const bool is_done = piece.number != 0 && (session.reached(piece.word, piece.number) ||
                                               session.is_lost(piece.word, piece.number));
    if (is_done) session.unshare(address(piece), piece.bytes);
    return is_done;
  });
}

void Staging::release_at(const Piece& piece, uint32_t word, uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto at =
      std::find_if(used_.begin(), used_.end(), [&](const Piece& p) { return p.off == piece.off; });
  at->word = word;
  at->number = number;
}

void Staging::release(const Piece& piece) {
  const std::lock_guard lock(mutex_);
  Session::get().unshare(address(piece), piece.bytes);
  std::erase_if(used_, [&](const Piece& p) { return p.off == piece.off; });
}

}  // namespace kvgpu::guest
