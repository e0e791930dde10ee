// SPDX-License-Identifier: Apache-2.0
#include "device_order.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kvgpu/calls.h"
#include "kvgpu/context_calls.h"
#include "ops.h"

namespace kvgpu::worker {

namespace {

// Calls that concern work of more than their own device: waits for events, and what blocks (it may
// free what others use).
bool crosses_devices(const Task& task) {
  switch (static_cast<wire::Op>(task.header.opcode)) {
    case wire::Op::cuStreamWaitEvent:
    case wire::Op::cuCtxWaitEvent:
    case wire::Op::cuEventDestroy_v2:
    case wire::Op::cuEventElapsedTime_v2:
      return true;
    default:
      return task.op->route == Route::BLOCK;
  }
}

template <typename Body>
std::vector<wire::Handle> event_in(const Task& task) {
  Body body;
  if (!task.read(&body)) return {};  // the handler ends the session
  return {body.event};
}

// Those that the graph records.
std::vector<wire::Handle> events_of_launch(const Task& task) {
  const auto names = task.after<wire::LaunchGraph>();
  std::vector<wire::Handle> events(names.size() / sizeof(wire::Handle));
  if (events.empty()) return {};  // memcpy takes no null pointer
  std::memcpy(events.data(), names.data(), events.size() * sizeof(wire::Handle));
  std::erase_if(events, [](uint64_t name) { return !wire::handle_tagged(name); });
  return events;
}

struct EventUse {
  bool is_wait = false;
  std::vector<wire::Handle> events;
};

EventUse use_of(const Task& task) {
  switch (static_cast<wire::Op>(task.header.opcode)) {
    case wire::Op::cuStreamWaitEvent:
      return {true, event_in<wire::WaitEvent>(task)};
    case wire::Op::cuCtxWaitEvent:
      return {true, event_in<wire::ContextEvent>(task)};
    case wire::Op::cuEventRecord:
      return {false, event_in<wire::RecordEvent>(task)};
    case wire::Op::cuCtxRecordEvent:
      return {false, event_in<wire::ContextEvent>(task)};
    case wire::Op::cuEventDestroy_v2:
      return {false, event_in<wire::EventRef>(task)};
    case wire::Op::cuGraphLaunch:
      return {false, events_of_launch(task)};
    default:
      return {};
  }
}

void add(DeviceSeqs* to, const DeviceSeqs& more) {
  for (size_t i = 0; i < to->size(); ++i) (*to)[i] = std::max((*to)[i], more[i]);
}

}  // namespace

void DeviceOrder::note_wait(wire::Handle event, uint32_t device, uint64_t seq) {
  if (waits_.size() >= MOST_EVENTS) {
    for (const auto& [each, waits] : waits_) add(&older_waits_, waits);
    waits_.clear();
  }
  waits_[event][device] = seq;
}

DeviceSeqs DeviceOrder::take_waits(wire::Handle event) {
  DeviceSeqs found = older_waits_;
  if (const auto waits = waits_.extract(event); !waits.empty()) add(&found, waits.mapped());
  return found;
}

DeviceSeqs DeviceOrder::place(const Task& task, uint32_t device) {
  const bool crosses = crosses_devices(task);
  DeviceSeqs wait_for = crosses ? routed_ : DeviceSeqs{};
  const auto [is_wait, events] = use_of(task);
  for (const wire::Handle event : events) {
    if (is_wait) {
      note_wait(event, device, task.seq);
    } else {
      const DeviceSeqs waits = take_waits(event);
      if (!crosses) add(&wait_for, waits);  // else these are among all
    }
  }
  wait_for[device] = 0;  // its own executor keeps the order of the records
  routed_[device] = task.seq;
  return wait_for;
}

}  // namespace kvgpu::worker
