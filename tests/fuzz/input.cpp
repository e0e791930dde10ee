// SPDX-License-Identifier: Apache-2.0
#include "input.h"

#include <algorithm>
#include <cstring>

#include "kvgpu/records.h"

namespace kvgpu::fuzz {

namespace {

struct Head {
  uint8_t what;
  uint8_t target;
  uint16_t opcode;
  uint16_t flags;
  uint16_t len_bytes;
  uint32_t value;
};
static_assert(sizeof(Head) == 12);

constexpr size_t MAX_BYTES = wire::MAX_RECORD_BYTES - sizeof(wire::Header);

}  // namespace

std::vector<Action> parse(std::span<const uint8_t> input) {
  std::vector<Action> actions;
  while (input.size() >= sizeof(Head) && actions.size() < MAX_ACTIONS) {
    Head head;
    std::memcpy(&head, input.data(), sizeof head);
    input = input.subspan(sizeof head);
    const size_t n = std::min({size_t{head.len_bytes}, input.size(), MAX_BYTES});
    const auto* begin = reinterpret_cast<const std::byte*>(input.data());
    actions.push_back({static_cast<Do>(head.what % static_cast<uint8_t>(Do::COUNT)),
                       head.target,
                       head.opcode,
                       head.flags,
                       head.value,
                       {begin, begin + n}});
    input = input.subspan(n);
  }
  return actions;
}

std::vector<uint8_t> serialize(const std::vector<Action>& actions) {
  std::vector<uint8_t> output;
  for (const Action& action : actions) {
    const Head head{
        static_cast<uint8_t>(action.what),          action.target, action.opcode, action.flags,
        static_cast<uint16_t>(action.bytes.size()), action.value};
    const auto* bytes = reinterpret_cast<const uint8_t*>(&head);
    output.insert(output.end(), bytes, bytes + sizeof head);
    const auto* body = reinterpret_cast<const uint8_t*>(action.bytes.data());
    output.insert(output.end(), body, body + action.bytes.size());
  }
  return output;
}

}  // namespace kvgpu::fuzz
