// SPDX-License-Identifier: Apache-2.0
#include "staging.h"

#include <algorithm>

#include "enqueue.h"
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
      if (place(bytes, piece)) return CUDA_SUCCESS;
      std::erase_if(used_, [this](const Piece& used) { return is_free(used); });
      if (place(bytes, piece)) return CUDA_SUCCESS;
    }
    mark_lost_pieces();
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

bool Staging::is_free(const Piece& piece) const {
  return piece.number != 0 && Session::get().reached(piece.word, piece.number);
}

// A number that was lost with an error may belong to a copy that the GPU is still to make: the
// piece comes back with the next number of its stream.
void Staging::mark_lost_pieces() {
  std::vector<wire::Handle> streams;
  {
    const std::lock_guard lock(mutex_);
    for (const Piece& piece : used_) {
      if (piece.number != 0 && Session::get().is_lost(piece.word, piece.number)) {
        streams.push_back(piece.stream);
      }
    }
  }
  for (const wire::Handle handle : streams) {
    uint64_t number;
    if (Stream* const stream = tables().streams.find(handle)) (void)mark_stream(*stream, &number);
  }
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
  std::erase_if(used_, [&](const Piece& p) { return p.off == piece.off; });
}

}  // namespace kvgpu::guest
