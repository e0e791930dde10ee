// SPDX-License-Identifier: Apache-2.0
// A worker's session without threads, and the guest that feeds it.
#pragma once

#include <functional>
#include <string>

#include "input.h"
#include "kvgpu/control.h"

namespace kvgpu::worker {
class Session;
}

namespace kvgpu::fuzz {

struct SessionEnded {
  std::string reason;
};

// Once: the region, the driver, the addresses.
void prepare();

// One session, from its first record until `use` returns or a violation ends it.
void with_session(const std::function<void(worker::Session&)>& use);
// `actions` of a guest that shares its memory with the worker.
void run_session(const std::vector<Action>& actions);

// For the worker's Control.
bool allocate_extent(uint64_t bytes, control::Extent* extent);

// The bytes that a second thread of the guest may rewrite at any time.
struct SharedBytes {
  std::byte* ring;
  std::byte* slab;
  uint64_t* event_credit;
};
SharedBytes shared_bytes();
// Where the worker reads; the rewriting thread aims there.
const uint64_t& ring_position();

constexpr uint64_t N_DEVICES = 2;
constexpr uint64_t REGION_BYTES = 64ull << 20, BLOCK_OFFSET = 2ull << 20;

}  // namespace kvgpu::fuzz
