// SPDX-License-Identifier: Apache-2.0
#include "driver_waits.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "enqueue.h"

namespace kvgpu::guest {

DriverWaits& DriverWaits::of(Due due) {
  static auto& of_output = *new DriverWaits(Due::OUTPUT);
  static auto& of_memory = *new DriverWaits(Due::MEMORY);
  return due == Due::OUTPUT ? of_output : of_memory;
}

void DriverWaits::add(Stream& stream) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(stream.is_due[static_cast<size_t>(due_)], true)) return;
  entries_.push_back({stream.handle, stream.context, stream.word, 0});
  is_any_.store(true, std::memory_order_relaxed);
}

void DriverWaits::leave(Stream& stream, uint64_t last) {
  for (DriverWaits* waits : {&output(), &memory()}) {
    const std::lock_guard lock(waits->mutex_);
    stream.is_due[static_cast<size_t>(waits->due_)] = false;
    for (Entry& entry : waits->entries_) {
      if (entry.stream == stream.handle) entry = {0, entry.context, entry.word, last};
    }
  }
}

bool DriverWaits::is_still_due(const Entry& entry) {
  Session& session = Session::get();
  if (entry.stream == 0) {
    return !session.reached(entry.word, entry.last) && !session.is_lost(entry.word, entry.last);
  }
  // leave() comes before it goes, if no other thread gives it work meanwhile.
  Stream* const stream = tables().streams.find(entry.stream);
  if (stream == nullptr) return false;
  uint64_t number;
  bool& is_due = stream->is_due[static_cast<size_t>(due_)];
  is_due = !is_over(*stream, &number);
  return is_due;
}

CUresult DriverWaits::tell() {
  const std::lock_guard one_at_a_time(telling_);
  std::vector<Entry> over;
  std::vector<Entry> due;
  {
    const std::lock_guard lock(mutex_);
    const auto is_due = [&](const Entry& entry) { return is_still_due(entry); };
    std::ranges::partition_copy(entries_, std::back_inserter(due), std::back_inserter(over),
                                is_due);
    entries_ = due;
  }
  const CUresult result = tell_host(over, due);
  const std::lock_guard lock(mutex_);
  is_any_.store(!entries_.empty(), std::memory_order_relaxed);
  return result;
}

// What is due may have printed, too: the wait may have been for a part of it.
CUresult DriverWaits::tell_host(const std::vector<Entry>& over, const std::vector<Entry>& due) {
  if (!Session::get().speaks(wire::Op::WAITED)) return tell_older_host(over);
  std::vector<Context*> contexts;
  for (const auto* entries : {&over, &due}) {
    for (const Entry& entry : *entries) {
      const bool is_known = std::ranges::find(contexts, entry.context) != contexts.end();
      const bool is_active = entry.context->active.load(std::memory_order_acquire);
      if (!is_known && is_active) contexts.push_back(entry.context);
    }
  }
  for (const Context* context : contexts) {
    if (const CUresult bad = tell_of_wait(*context)) return bad;
  }
  return CUDA_SUCCESS;
}

// It knows real waits only, and pools that keep what they have.
CUresult DriverWaits::tell_older_host(const std::vector<Entry>& over) {
  for (const Entry& entry : over) {
    if (due_ != Due::OUTPUT || entry.stream == 0) continue;
    const wire::StreamRef body{entry.stream};
    const CUresult result =
        Session::get().call(wire::Op::STREAM_SYNC, entry.context->device, nullptr, part(body));
    const bool has_gone = result == CUDA_ERROR_INVALID_HANDLE;
    if (result != CUDA_SUCCESS && !has_gone) return result;
  }
  return CUDA_SUCCESS;
}

CUresult tell_of_wait(const Context& context) {
  Session& session = Session::get();
  if (!session.speaks(wire::Op::WAITED)) return CUDA_SUCCESS;
  const wire::HostSync body{context.handle};
  return session.call(wire::Op::WAITED, context.device, nullptr, part(body));
}

}  // namespace kvgpu::guest
