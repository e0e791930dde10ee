// SPDX-License-Identifier: Apache-2.0
// What a record waits for on other devices than its own, whose executor runs beside its own.
#pragma once

#include <unordered_map>

#include "task.h"

namespace kvgpu::worker {

// Of the thread that reads the records.
class DeviceOrder {
 public:
  // What the other devices must have done before the record, which goes to `device` next.
  DeviceSeqs place(const Task& task, uint32_t device);

 private:
  // The guest chooses them, and some are never heard of again.
  static constexpr size_t MOST_EVENTS = 4096;

  void note_wait(wire::Handle event, uint32_t device, uint64_t seq);
  // For when the event is recorded anew, or gone.
  DeviceSeqs take_waits(wire::Handle event);

  DeviceSeqs routed_{};  // the last record that each device has been given
  // Events that are waited for: when last on each device. What waits for an event waits for the
  // record of it that came before, never for a later one, which may be another stream's.
  std::unordered_map<wire::Handle, DeviceSeqs> waits_;
  DeviceSeqs older_waits_{};  // of any event
};

}  // namespace kvgpu::worker
