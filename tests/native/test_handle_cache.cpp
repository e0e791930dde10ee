// SPDX-License-Identifier: Apache-2.0
// What an executor has looked up, while others add and remove.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "handle_cache.h"

namespace kvgpu::worker {

namespace {

constexpr uint32_t N_ENTRIES = 256;

wire::Handle stream_handle(uint32_t index, uint32_t generation = 1) {
  return wire::make_handle(wire::Kind::STREAM, 0, index, generation);
}
wire::Handle function_handle(uint32_t index) {
  return wire::make_handle(wire::Kind::FUNCTION, 0, index, 1);
}
CUfunction raw_function(uintptr_t number) { return reinterpret_cast<CUfunction>(number); }

}  // namespace

TEST_CASE("what has gone is not found, nor what had its handle before") {
  HandleTable table;
  HandleCache cache(&table);
  const wire::Handle module = wire::make_handle(wire::Kind::MODULE, 0, 1, 1);
  REQUIRE(table.add(function_handle(1), raw_function(16), module));
  CHECK(cache.function(function_handle(1)) == raw_function(16));
  CHECK(cache.function(function_handle(1)) == raw_function(16));
  table.remove(module);
  CHECK(cache.function(function_handle(1)) == nullptr);
  REQUIRE(table.add(function_handle(1), raw_function(32), module));
  CHECK(cache.function(function_handle(1)) == raw_function(32));

  const auto first = std::make_shared<Stream>(), second = std::make_shared<Stream>();
  const wire::Handle context = wire::make_handle(wire::Kind::CONTEXT, 0, 1, 1);
  first->context_handle = context;
  CHECK(cache.stream(stream_handle(1)) == nullptr);
  REQUIRE(table.add(stream_handle(1), first));
  CHECK(cache.stream(stream_handle(1)) == first.get());
  table.remove_streams_of(context);
  CHECK(cache.stream(stream_handle(1)) == nullptr);
  REQUIRE(table.add(stream_handle(1), second));
  CHECK(cache.stream(stream_handle(1)) == second.get());
  table.remove(stream_handle(1));
  CHECK(cache.stream(stream_handle(1)) == nullptr);
}

TEST_CASE("handles of other kinds, and those that share an entry, are not mistaken") {
  HandleTable table;
  HandleCache cache(&table);
  const auto stream = std::make_shared<Stream>(), other = std::make_shared<Stream>();
  REQUIRE(table.add(stream_handle(1), stream));
  REQUIRE(table.add(stream_handle(1 + N_ENTRIES), other));
  REQUIRE(table.add(function_handle(1), raw_function(16), 0));
  for (int i = 0; i < 2; ++i) {
    CHECK(cache.stream(stream_handle(1)) == stream.get());
    CHECK(cache.stream(stream_handle(1 + N_ENTRIES)) == other.get());
    CHECK(cache.function(stream_handle(1)) == nullptr);
    CHECK(cache.stream(function_handle(1)) == nullptr);
    CHECK(cache.stream(stream_handle(1, 2)) == nullptr);
    CHECK(cache.stream(0) == nullptr);
    CHECK(cache.function(0) == nullptr);
  }
}

TEST_CASE("a stream that goes in another thread lasts as long as it is used") {
  HandleTable table;
  HandleCache cache(&table);
  std::atomic<uint32_t> n_removed{0};
  constexpr uint32_t N = 2000;
  std::thread other([&] {
    for (uint32_t i = 1; i <= N; ++i) {
      auto stream = std::make_shared<Stream>();
      stream->priority = static_cast<int>(i);
      REQUIRE(table.add(stream_handle(1, i), std::move(stream)));
      std::this_thread::yield();
      table.remove(stream_handle(1, i));
      n_removed.store(i, std::memory_order_release);
    }
  });
  for (uint32_t done = 0; done < N; done = n_removed.load(std::memory_order_acquire)) {
    const Stream* const found = cache.stream(stream_handle(1, done + 1));
    if (found != nullptr) CHECK(found->priority == static_cast<int>(done + 1));
    if (done > 0) CHECK(cache.stream(stream_handle(1, done)) == nullptr);
  }
  other.join();
}

}  // namespace kvgpu::worker
