// SPDX-License-Identifier: Apache-2.0
// Records between two threads of a worker.
#include <doctest/doctest.h>

#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "kvgpu/barrier.h"
#include "ops.h"
#include "task_queue.h"

namespace kvgpu::worker {

namespace {

constexpr OpInfo OP{"", Route::ENQUEUE, false, nullptr, {}};
constexpr uint32_t HEADER_BYTES = sizeof(wire::Header);

uint32_t length_of(uint64_t seq) {
  std::minstd_rand random(static_cast<uint32_t>(seq));
  return HEADER_BYTES + static_cast<uint32_t>(random() % 400);
}

std::byte byte_of(uint64_t seq) { return static_cast<std::byte>(seq * 31); }

Task put(TaskQueue* queue, uint64_t seq, const DeviceSeqs* waits = nullptr) {
  Task task{};
  task.header.len_bytes = length_of(seq);
  task.seq = seq;
  task.position = 100 * seq;
  task.op = &OP;
  task.wait_for = waits;
  std::byte* const record = queue->reserve(wire::padded(task.header.len_bytes));
  std::memcpy(record, &task.header, HEADER_BYTES);
  std::fill(record + HEADER_BYTES, record + task.header.len_bytes, byte_of(seq));
  return task;
}

bool is_right(const Task& task, uint64_t seq) {
  const bool is_whole =
      std::ranges::all_of(task.body, [&](std::byte each) { return each == byte_of(task.seq); });
  return task.seq == seq && task.position == 100 * seq && task.op == &OP &&
         task.header.len_bytes == length_of(seq) &&
         task.body.size() == length_of(seq) - HEADER_BYTES && is_whole;
}

// How many of them are as they were put; so many are looked at before they go.
uint64_t take(TaskQueue* queue, uint64_t n, size_t at_once = 1) {
  uint64_t n_right = 0;
  for (uint64_t seq = 1; seq <= n;) {
    std::vector<Task> tasks(1);
    if (!queue->peek(&tasks[0])) {
      queue->wait();
      continue;
    }
    for (Task next; tasks.size() < at_once && queue->peek_on(&next);) tasks.push_back(next);
    queue->prefetch(tasks.size());
    for (const Task& task : tasks) n_right += is_right(task, seq++);
    // One of several stays, and is looked at again.
    seq -= tasks.size() > 2;
    n_right -= tasks.size() > 2;
    queue->pop(tasks.size() - (tasks.size() > 2));
  }
  return n_right;
}

}  // namespace

TEST_CASE("each record comes once, whole, in order, whoever is faster") {
  constexpr uint64_t N = 200'000;  // some times through the queue
  constexpr uint64_t TELLS_EVERY = 16;
  const std::pair<uint64_t, size_t> ways[] = {{0, 1}, {100 * TELLS_EVERY, 1}, {0, 8}};
  for (const auto& [pauses_every, at_once] : ways) {
    TaskQueue queue(TaskQueue::Waits::NEVER);
    uint64_t n_right = 0;
    std::thread consumer(
        [&queue, &n_right, at_once = at_once] { n_right = take(&queue, N, at_once); });
    for (uint64_t seq = 1; seq <= N; ++seq) {
      queue.publish(put(&queue, seq));
      if (seq % TELLS_EVERY != 0) continue;
      fence_full();
      queue.wake_if_asleep();
      if (pauses_every != 0 && seq % pauses_every == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the consumer sleeps by then
      }
    }
    consumer.join();
    CHECK(n_right == N);
  }
}

TEST_CASE("who sleeps is woken by a commit") {
  constexpr uint64_t N = 200;
  TaskQueue queue(TaskQueue::Waits::FOR_DEVICES);
  uint64_t n_right = 0;
  std::thread consumer([&] { n_right = take(&queue, N); });
  for (uint64_t seq = 1; seq <= N; ++seq) {
    const DeviceSeqs waits{seq};
    queue.commit(put(&queue, seq, &waits));
    std::this_thread::sleep_for(std::chrono::milliseconds(seq % 10 == 0 ? 3 : 0));
  }
  consumer.join();
  CHECK(n_right == N);
}

TEST_CASE("what a record waits for comes with it; there is room until it is full") {
  TaskQueue queue(TaskQueue::Waits::FOR_DEVICES);
  const DeviceSeqs waits{3, 1, 4, 1, 5};
  uint64_t n = 0;
  while (queue.has_room(512)) queue.commit(put(&queue, ++n, &waits));
  CHECK(n > 1000);
  Task task;
  REQUIRE(queue.peek(&task));
  REQUIRE(task.wait_for != nullptr);
  CHECK(*task.wait_for == waits);
  queue.pop(1);
  for (uint64_t i = 1; i < n; ++i) {
    REQUIRE(queue.peek(&task));
    queue.pop(1);
  }
  CHECK(!queue.peek(&task));
  CHECK(queue.has_room(512));
}

}  // namespace kvgpu::worker
