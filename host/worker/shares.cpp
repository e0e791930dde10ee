// SPDX-License-Identifier: Apache-2.0
#include "shares.h"

#include <sys/random.h>

#include <cstring>

#include "log.h"

namespace kvgpu::worker {

Shares::Key Shares::key_of(const wire::Token& token) {
  Key key;
  std::memcpy(key.data(), &token, sizeof token);
  return key;
}

std::optional<wire::Token> Shares::add(Share share, uint64_t object) {
  wire::Token token{session_id_, {}};
  const std::lock_guard lock(mutex_);
  if (entries_.size() >= MAX_SHARES) {
    log("%zu things are shared with other processes: no more", entries_.size());
    return std::nullopt;
  }
  if (getrandom(token.random, sizeof token.random, 0) != sizeof token.random) return std::nullopt;
  if (object != 0) by_object_[{share.kind, object}] = token;
  entries_[key_of(token)] = {std::move(share), object};
  return token;
}

std::optional<wire::Token> Shares::find(ShareKind kind, uint64_t object) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_object_.find({kind, object});
  if (found == by_object_.end()) return std::nullopt;
  return found->second;
}

Share Shares::get(const wire::Token& token) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key_of(token));
  if (found == entries_.end()) return {};
  const Share& share = found->second.share;
  return {share.kind, share.content, share.descriptor.duplicate()};
}

Share Shares::remove(const wire::Token& token) {
  const std::lock_guard lock(mutex_);
  auto gone = entries_.extract(key_of(token));
  if (gone.empty()) return {};
  by_object_.erase({gone.mapped().share.kind, gone.mapped().object});
  return std::move(gone.mapped().share);
}

void Shares::remove(ShareKind kind, uint64_t object) {
  const std::lock_guard lock(mutex_);
  const auto gone = by_object_.extract({kind, object});
  if (!gone.empty()) entries_.erase(key_of(gone.mapped()));
}

}  // namespace kvgpu::worker
