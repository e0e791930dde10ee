// SPDX-License-Identifier: Apache-2.0
// What a record waits for on other devices.
#include <doctest/doctest.h>

#include "device_order.h"
#include "kvgpu/calls.h"
#include "ops.h"

namespace kvgpu::worker {

namespace {

constexpr OpInfo ENQUEUED{"", Route::ENQUEUE, false, nullptr, {}};
constexpr OpInfo BLOCKING{"", Route::BLOCK, false, nullptr, {}};
constexpr wire::Handle EVENT = 7, OTHER_EVENT = 8;
const wire::Handle EVENT_OF_GRAPH = wire::make_handle(wire::Kind::EVENT, 0, 3, 1);

// The records of a session as they are read.
struct Records {
  DeviceSeqs after(uint32_t device, wire::Op op, std::span<const std::byte> body = {},
                   const OpInfo& info = ENQUEUED) {
    Task task{};
    task.header.opcode = static_cast<uint16_t>(op);
    task.body = body;
    task.seq = ++seq;
    task.op = &info;
    return order.place(task, device);
  }
  DeviceSeqs launch(uint32_t device) { return after(device, wire::Op::cuLaunchKernel); }
  DeviceSeqs wait(uint32_t device, wire::Handle event) {
    wire::WaitEvent body{};
    body.event = event;
    return after(device, wire::Op::cuStreamWaitEvent, std::as_bytes(std::span(&body, 1)));
  }
  DeviceSeqs record(uint32_t device, wire::Handle event) {
    wire::RecordEvent body{};
    body.event = event;
    return after(device, wire::Op::cuEventRecord, std::as_bytes(std::span(&body, 1)));
  }
  DeviceSeqs destroy(uint32_t device, wire::Handle event) {
    const wire::EventRef body{.context = 0, .event = event};
    return after(device, wire::Op::cuEventDestroy_v2, std::as_bytes(std::span(&body, 1)));
  }
  DeviceOrder order;
  uint64_t seq = 0;
};

constexpr DeviceSeqs NOTHING{};

}  // namespace

TEST_CASE("a wait, and what blocks, comes after all that other devices were given before") {
  Records records;
  CHECK(records.launch(0) == NOTHING);
  CHECK(records.launch(1) == NOTHING);
  CHECK(records.record(0, EVENT) == NOTHING);
  CHECK(records.wait(1, EVENT) == DeviceSeqs{3, 0});
  CHECK(records.after(2, wire::Op::cuMemFree_v2, {}, BLOCKING) == DeviceSeqs{3, 4, 0});
  CHECK(records.launch(0) == NOTHING);
}

TEST_CASE("an event is not recorded anew before other devices wait for what it was") {
  Records records;
  (void)records.record(0, EVENT);
  (void)records.wait(1, EVENT);  // 2
  (void)records.wait(0, EVENT);  // its own device keeps the order
  (void)records.wait(2, EVENT);  // 4
  (void)records.launch(1);
  CHECK(records.record(0, OTHER_EVENT) == NOTHING);
  CHECK(records.record(0, EVENT) == DeviceSeqs{0, 2, 4});
  CHECK(records.record(0, EVENT) == NOTHING);  // that has been waited for
}

TEST_CASE("nor does a graph record it") {
  Records records;
  (void)records.record(0, EVENT);
  (void)records.wait(1, EVENT);
  struct {
    wire::LaunchGraph head;
    uint64_t names[2];
  } launch{{}, {5, EVENT_OF_GRAPH}};
  (void)records.wait(2, EVENT_OF_GRAPH);
  CHECK(records.after(0, wire::Op::cuGraphLaunch, std::as_bytes(std::span(&launch, 1))) ==
        DeviceSeqs{0, 0, 3});
}

TEST_CASE("of very many events the waits are not told apart") {
  Records records;
  for (wire::Handle event = 0; event < 5'000; ++event) (void)records.wait(1, event);
  const DeviceSeqs after = records.record(0, 1);
  CHECK(after[1] >= 2);
  CHECK(after[1] < 5'000);
  CHECK(records.record(0, 4'999) == DeviceSeqs{0, 5'000});
}

TEST_CASE("an event that is gone is no other one's of its handle") {
  Records records;
  (void)records.record(0, EVENT);
  (void)records.wait(1, EVENT);
  CHECK(records.destroy(0, EVENT) == DeviceSeqs{0, 2});
  CHECK(records.record(0, EVENT) == NOTHING);
}

TEST_CASE("a record that is too short is left to its handler") {
  Records records;
  CHECK(records.after(0, wire::Op::cuEventRecord) == NOTHING);
  CHECK(records.after(1, wire::Op::cuStreamWaitEvent) == DeviceSeqs{1});
}

}  // namespace kvgpu::worker
