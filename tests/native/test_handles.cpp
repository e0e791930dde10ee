// SPDX-License-Identifier: Apache-2.0
// The worker's table of handles, and of images on their way.
#include <doctest/doctest.h>

#include <array>

#include "blobs.h"
#include "handles.h"

namespace kvgpu::worker {

namespace {

wire::Handle handle(wire::Kind kind, uint32_t index) {
  return wire::make_handle(kind, 0, index, 1);
}
CUevent raw_event(uintptr_t number) { return reinterpret_cast<CUevent>(number); }

constexpr std::array<std::byte, 100> CHUNK{};

Blobs::Written begin(Blobs& blobs, uint32_t index) {
  return blobs.write(handle(wire::Kind::BLOB, index), 2 * CHUNK.size(), 0, CHUNK);
}
Blobs::Written finish(Blobs& blobs, uint32_t index) {
  return blobs.write(handle(wire::Kind::BLOB, index), 2 * CHUNK.size(), CHUNK.size(), CHUNK);
}

}  // namespace

TEST_CASE("what has left its owner does not go with it, though its handle is in use again") {
  HandleTable table;
  const wire::Handle first = handle(wire::Kind::CONTEXT, 1),
                     second = handle(wire::Kind::CONTEXT, 2);
  const wire::Handle event = handle(wire::Kind::EVENT, 1);
  REQUIRE(table.add(event, raw_event(16), first));
  table.remove(event);
  REQUIRE(table.add(event, raw_event(32), second));
  table.remove(first);
  CUevent found = nullptr;
  CHECK(table.get(event, &found));
  CHECK(found == raw_event(32));
  table.remove(second);
  CHECK_FALSE(table.get(event, &found));
}

TEST_CASE("an owner takes along what it owns, and what that owns") {
  HandleTable table;
  const wire::Handle context = handle(wire::Kind::CONTEXT, 1);
  const wire::Handle module = handle(wire::Kind::MODULE, 1), f = handle(wire::Kind::FUNCTION, 1);
  REQUIRE(table.add(module, reinterpret_cast<CUmodule>(16), context));
  REQUIRE(table.add(f, reinterpret_cast<CUfunction>(32), module));
  table.remove(context);
  CUfunction found = nullptr;
  CHECK_FALSE(table.get(f, &found));
  CHECK(table.add(f, reinterpret_cast<CUfunction>(48), 0));
}

TEST_CASE("images that nobody loads make room for others, the oldest first") {
  Blobs blobs;
  constexpr uint32_t N = 5000;
  for (uint32_t i = 1; i <= N; ++i) REQUIRE(begin(blobs, i) == Blobs::Written::YES);
  CHECK(finish(blobs, 1) == Blobs::Written::GONE);
  CHECK(blobs.take(handle(wire::Kind::BLOB, 1)).empty());
  CHECK(finish(blobs, N) == Blobs::Written::YES);
  CHECK(blobs.take(handle(wire::Kind::BLOB, N)).size() == 2 * CHUNK.size() + 1);
}

TEST_CASE("an image that breaks the protocol is told from one that had to make room") {
  Blobs blobs;
  REQUIRE(begin(blobs, 1) == Blobs::Written::YES);
  const wire::Handle blob = handle(wire::Kind::BLOB, 1);
  CHECK(blobs.write(blob, 300, 150, CHUNK) == Blobs::Written::NEVER);  // a hole
  CHECK(blobs.write(blob, 150, 100, CHUNK) == Blobs::Written::NEVER);  // beyond its end
  CHECK(blobs.write(blob, wire::MAX_IMAGE_BYTES + 1, 0, CHUNK) == Blobs::Written::NEVER);
}

}  // namespace kvgpu::worker
