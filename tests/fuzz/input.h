// SPDX-License-Identifier: Apache-2.0
// What the fuzzer's bytes mean: a list of things that a guest does. Any bytes are some list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvgpu::fuzz {

enum class Do : uint8_t {
  RECORD,        // body, as the record of `opcode`
  BAD_LENGTH,    // the same with the first four bytes of the body as its length
  BAD_COMMIT,    // the same with the first eight bytes of the body as its commit word
  RAW,           // the bytes at `value` in the ring, no record
  SLAB,          // the bytes at `value` in the slab: what a copy or an upload finds there
  EVENT_CREDIT,  // the first eight bytes as the position up to which replies have been read
  FAULTS,        // from here on the driver's calls fail at random
  COUNT,
};

struct Action {
  Do what;
  uint8_t target;  // endpoint (low four bits), device
  uint16_t opcode;
  uint16_t flags;
  uint32_t value;
  std::vector<std::byte> bytes;
};

inline constexpr size_t MAX_ACTIONS = 64;

std::vector<Action> parse(std::span<const uint8_t> input);
std::vector<uint8_t> serialize(const std::vector<Action>& actions);

}  // namespace kvgpu::fuzz
