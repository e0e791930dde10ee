// SPDX-License-Identifier: Apache-2.0
#include "driver_waits.h"

#include <algorithm>
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
  Stream& stream = *tables().streams.find(entry.stream);  // leave() comes before it goes
  uint64_t number;
  stream.is_due[static_cast<size_t>(due_)] = !is_over(stream, &number);
  return stream.is_due[static_cast<size_t>(due_)];
}

CUresult DriverWaits::tell() {
  const std::lock_guard one_at_a_time(telling_);
  std::vector<Entry> entries;
  {
    const std::lock_guard lock(mutex_);
    entries = entries_;
    std::erase_if(entries_, [&](const Entry& entry) { return !is_still_due(entry); });
  }
  const CUresult result = tell_host(entries);
  const std::lock_guard lock(mutex_);
  is_any_.store(!entries_.empty(), std::memory_order_relaxed);
  return result;
}

CUresult DriverWaits::tell_host(const std::vector<Entry>& entries) {
  Session& session = Session::get();
  std::vector<Context*> told;
  for (const Entry& entry : entries) {
    if (!entry.context->active.load(std::memory_order_acquire)) continue;
    CUresult result = CUDA_SUCCESS;
    if (session.speaks(wire::Op::WAITED)) {
      if (std::ranges::find(told, entry.context) != told.end()) continue;
      told.push_back(entry.context);
      result = tell_of_wait(*entry.context);
    } else if (due_ == Due::OUTPUT && entry.stream != 0) {  // as the older host does it
      const wire::StreamRef body{entry.stream};
      result = session.call(wire::Op::STREAM_SYNC, entry.context->device, nullptr, part(body));
      if (result == CUDA_ERROR_INVALID_HANDLE) result = CUDA_SUCCESS;  // it has gone meanwhile
    }
    if (result != CUDA_SUCCESS) return result;
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
