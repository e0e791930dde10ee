// SPDX-License-Identifier: Apache-2.0
#include "driver_waits.h"

#include <algorithm>

#include "enqueue.h"

namespace kvgpu::guest {

DriverWaits& DriverWaits::of(Due due) {
  static auto& of_output = *new DriverWaits(Due::OUTPUT);
  static auto& of_memory = *new DriverWaits(Due::MEMORY);
  return due == Due::OUTPUT ? of_output : of_memory;
}

void DriverWaits::add(Stream& stream) {
  // The stream was made dirty before: pairs with is_still_due(), where it is the other way round.
  if (stream.is_due[static_cast<size_t>(due_)].exchange(true)) return;
  const std::lock_guard lock(mutex_);
  entries_.push_back({stream.handle, stream.context});
  is_any_.store(true, std::memory_order_relaxed);
}

bool DriverWaits::is_still_due(const Entry& entry) const {
  Stream* const stream = tables().streams.find(entry.stream);
  if (stream == nullptr) return false;
  std::atomic<bool>& is_due = stream->is_due[static_cast<size_t>(due_)];
  is_due.store(false);
  uint64_t number;
  return !is_over(*stream, &number) && !is_due.exchange(true);
}

CUresult DriverWaits::tell() {
  std::vector<Context*> contexts;
  {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_) {
      const bool is_known = std::ranges::find(contexts, entry.context) != contexts.end();
      if (!is_known) contexts.push_back(entry.context);
    }
    std::erase_if(entries_, [&](const Entry& entry) { return !is_still_due(entry); });
    is_any_.store(!entries_.empty(), std::memory_order_relaxed);
  }
  for (const Context* context : contexts) {
    if (!context->active.load(std::memory_order_acquire)) continue;
    if (const CUresult bad = tell_of_wait(*context)) return bad;
  }
  return CUDA_SUCCESS;
}

CUresult tell_of_wait(const Context& context) {
  Session& session = Session::get();
  // An older host waits for all that the session has given the GPU.
  const auto op = session.speaks(wire::Op::WAITED) ? wire::Op::WAITED : wire::Op::HOST_SYNC;
  return session.call(op, context.device, nullptr, part(wire::HostSync{context.handle}));
}

}  // namespace kvgpu::guest
