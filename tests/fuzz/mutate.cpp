// SPDX-License-Identifier: Apache-2.0
#include "mutate.h"

#include <algorithm>
#include <cstring>

#include "guest.h"
#include "input.h"
#include "kvgpu/layout.h"
#include "kvgpu/records.h"
#include "ops.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace kvgpu::fuzz {

namespace {

constexpr uint32_t MAX_KIND = 15, MAX_INDEX = 3, MAX_BODY_WORDS = 16;
constexpr uint64_t DEVICE_BEGIN = WINDOWS[0] - DEVICE_WINDOW_BYTES;
constexpr uint64_t BLOCK_BEGIN = WINDOWS[0] + BLOCK_OFFSET;

template <typename T, size_t N>
T pick(const T (&from)[N], Random& random) {
  return from[random() % N];
}

uint64_t handle(Random& random) {
  const auto kind = static_cast<wire::Kind>(random() % 2 ? 1 + random() % 8 : random() % MAX_KIND);
  return wire::make_handle(kind, 0, random() % MAX_INDEX, 1);
}

uint64_t address(Random& random) {
  const uint64_t bases[] = {DEVICE_BEGIN,
                            DEVICE_BEGIN + 2 * MIB,
                            DEVICE_BEGIN + 4 * MIB,
                            BLOCK_BEGIN + SLAB_OFF,
                            BLOCK_BEGIN + SLAB_OFF,
                            BLOCK_BEGIN + BLOCK_BYTES,
                            BLOCK_BEGIN,
                            BLOCK_BEGIN + COMMAND_RING_OFF,
                            BLOCK_BEGIN + PROGRESS_OFF,
                            WINDOWS[0],
                            LOW_RANGES[0].begin,
                            0};
  const uint64_t offsets[] = {0, 0, 0, 64, 4096, MIB, ~0ull, ~63ull};
  return pick(bases, random) + pick(offsets, random);
}

uint64_t number(Random& random) {
  const uint64_t edges[] = {0,          1,         2,         7,         8,          64,
                            512,        4096,      65536,     MIB,       2 * MIB,    SLAB_BYTES,
                            GIB,        TIB,       ~0ull,     ~7ull,     1ull << 31, 1ull << 32,
                            1ull << 63, INT64_MAX, INT32_MAX, UINT32_MAX};
  switch (random() % 4) {
    case 0:
      return random() % 16;
    case 1:
      return random() % 16 | uint64_t{random() % 16} << 32;  // two small ones
    case 2:
      return random();
    default:
      return pick(edges, random);
  }
}

void set_word(Action* action, Random& random) {
  if (action->bytes.size() < 4) action->bytes.resize(8);
  if (random() % 3 == 0) {
    const auto half = static_cast<uint32_t>(number(random));
    const size_t at = random() % (action->bytes.size() / 4) * 4;
    std::memcpy(action->bytes.data() + at, &half, sizeof half);
  } else if (action->bytes.size() >= 8) {
    const uint64_t word = plausible_word(random);
    const size_t at = random() % (action->bytes.size() / 8) * 8;
    std::memcpy(action->bytes.data() + at, &word, sizeof word);
  }
}

Action new_record(const std::vector<uint16_t>& known_opcodes, Random& random) {
  Action action{};
  action.opcode = known_opcodes[random() % known_opcodes.size()];
  action.flags = random() % 4 == 0 ? wire::NOREPLY : 0;
  action.target = random() % 8 == 0 ? 1 << 4 : 0;
  action.bytes.resize((1 + random() % MAX_BODY_WORDS) * 8);
  for (size_t at = 0; at < action.bytes.size(); at += 8) {
    const uint64_t word = plausible_word(random);
    std::memcpy(action.bytes.data() + at, &word, sizeof word);
  }
  return action;
}

void change_head(Action* action, const std::vector<uint16_t>& known_opcodes, Random& random) {
  switch (random() % 6) {
    case 0:
      action->opcode = known_opcodes[random() % known_opcodes.size()];
      break;
    case 1:
      action->flags ^= wire::NOREPLY;
      break;
    case 2:
      action->target ^= 1 << 4;
      break;
    case 3:
      action->value = static_cast<uint32_t>(number(random));
      break;
    case 4:
      action->what = static_cast<Do>(random() % static_cast<uint32_t>(Do::COUNT));
      break;
    default:
      action->bytes.resize(random() % 2 ? random() % 160 : action->bytes.size() / 2);
  }
}

// Changes one thing.
void mutate(std::vector<Action>* actions, const std::vector<uint16_t>& known_opcodes,
            Random& random) {
  const auto somewhere = [&] { return actions->begin() + random() % actions->size(); };
  if (actions->empty() || random() % 4 == 0) {
    const auto at = actions->begin() + random() % (actions->size() + 1);
    actions->insert(at, new_record(known_opcodes, random));
    return;
  }
  switch (random() % 8) {
    case 0:
      actions->erase(somewhere());
      break;
    case 1: {
      const Action copy = *somewhere();
      actions->insert(somewhere(), copy);
      break;
    }
    case 2:
      std::iter_swap(somewhere(), somewhere());
      break;
    case 3:
      change_head(&*somewhere(), known_opcodes, random);
      break;
    default:
      set_word(&*somewhere(), random);
  }
}

std::vector<uint16_t> known_opcodes() {
  std::vector<uint16_t> known;
  for (uint32_t opcode = 0; opcode <= worker::MAX_OPCODE; ++opcode) {
    if (worker::find_op(static_cast<uint16_t>(opcode)) != nullptr) {
      known.push_back(static_cast<uint16_t>(opcode));
    }
  }
  return known;
}

}  // namespace

uint64_t plausible_word(Random& random) {
  const uint32_t which = random() % 8;
  if (which < 4) return handle(random);
  return which < 6 ? address(random) : number(random);
}

size_t mutate_input(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const std::vector<uint16_t> KNOWN = known_opcodes();
  Random random(seed + 1);
  if (random() % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::vector<Action> actions = parse({data, size});
  for (uint32_t n = 1 + random() % 4; n > 0; --n) mutate(&actions, KNOWN, random);
  const std::vector<uint8_t> output = serialize(actions);
  if (output.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::copy(output.begin(), output.end(), data);
  return output.size();
}

}  // namespace kvgpu::fuzz
