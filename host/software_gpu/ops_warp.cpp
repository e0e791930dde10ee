// SPDX-License-Identifier: Apache-2.0
// What the 32 threads of a warp do together: shfl vote match redux activemask bar.warp.
// The scheduler calls these once the threads of the member mask have come.
#include <algorithm>

#include "decoder.h"
#include "map.h"

namespace software_gpu {
namespace {

enum Shuffle : uint8_t { UP, DOWN, BUTTERFLY, INDEX };
enum Vote : uint8_t { ALL, ANY, UNIFORM, BALLOT };
enum Reduce : uint8_t { ADD, MIN, MAX, AND, OR, XOR };

template <class F>
void for_each_bit(uint32_t mask, F f) {
  for (; mask != 0; mask &= mask - 1) f(static_cast<uint32_t>(std::countr_zero(mask)));
}

/// Calls f(first lane of the warp, bits of its active lanes) for each warp that takes part.
template <class F>
void for_each_warp(const Block& block, const Lanes& lanes, F f) {
  uint32_t masks[32] = {};
  for_each(lanes, [&](uint32_t i) { masks[i / 32] |= 1u << i % 32; });
  for (uint32_t warp = 0; warp * 32 < block.n_threads(); ++warp)
    if (masks[warp] != 0) f(warp * 32, masks[warp]);
}

/// The same for each set of lanes that name the same member mask: tiles of a warp are sets apart.
template <class F>
void for_each_set(Block& block, const Instruction& in, const Lanes& lanes, F f) {
  const uint64_t* members = block.row(in.d);
  for_each_warp(block, lanes, [&](uint32_t base, uint32_t mask) {
    while (mask != 0) {
      const auto named =
          static_cast<uint32_t>(members[base + static_cast<uint32_t>(std::countr_zero(mask))]);
      uint32_t set = 0;
      for_each_bit(mask, [&](uint32_t lane) {
        if (static_cast<uint32_t>(members[base + lane]) == named) set |= 1u << lane;
      });
      f(base, set);
      mask &= ~set;
    }
  });
}

void shuffle(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  uint64_t* p = in.dst2 == NO_ROW ? nullptr : block.row(in.dst2);
  const uint64_t *a = block.row(in.a), *b = block.row(in.b), *c = block.row(in.c);
  for_each_set(block, in, lanes, [&](uint32_t base, uint32_t mask) {
    uint32_t source_values[32] = {};
    for (uint32_t i = 0; i < 32 && base + i < block.n_threads(); ++i)
      source_values[i] = static_cast<uint32_t>(a[base + i]);
    for_each_bit(mask, [&](uint32_t lane) {
      const uint32_t distance = static_cast<uint32_t>(b[base + lane]) & 31;
      const uint32_t control = static_cast<uint32_t>(c[base + lane]);
      const uint32_t segment = control >> 8 & 31, clamp = control & 31;
      const uint32_t max_lane = (lane & segment) | (clamp & ~segment), min_lane = lane & segment;
      int64_t j = 0;
      bool inside = false;
      switch (in.mode) {
        case UP:
          j = int64_t{lane} - distance;
          inside = j >= int64_t{max_lane};
          break;
        case DOWN:
          j = int64_t{lane} + distance;
          inside = j <= max_lane;
          break;
        case BUTTERFLY:
          j = lane ^ distance;
          inside = j <= max_lane;
          break;
        default:
          j = min_lane | (distance & ~segment);
          inside = j <= max_lane;
          break;
      }
      if (!inside) j = lane;
      d[base + lane] = source_values[j];
      if (p) p[base + lane] = inside;
    });
  });
}

void vote(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  const uint64_t* a = block.row(in.a);
  for_each_set(block, in, lanes, [&](uint32_t base, uint32_t mask) {
    uint32_t yes = 0;
    for_each_bit(mask, [&](uint32_t lane) {
      yes |= uint32_t{((a[base + lane] & 1) != 0) != in.operand_negated} << lane;
    });
    const uint64_t result = in.mode == ALL       ? yes == mask
                            : in.mode == ANY     ? yes != 0
                            : in.mode == UNIFORM ? yes == mask || yes == 0
                                                 : yes;
    for_each_bit(mask, [&](uint32_t lane) { d[base + lane] = result; });
  });
}

template <class T>
void match(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  uint64_t* p = in.dst2 == NO_ROW ? nullptr : block.row(in.dst2);
  const uint64_t* a = block.row(in.a);
  for_each_set(block, in, lanes, [&](uint32_t base, uint32_t mask) {
    uint32_t results[32] = {};
    for_each_bit(mask, [&](uint32_t lane) {
      for_each_bit(mask, [&](uint32_t other) {
        if (static_cast<T>(a[base + lane]) == static_cast<T>(a[base + other]))
          results[lane] |= 1u << other;
      });
    });
    for_each_bit(mask, [&](uint32_t lane) {
      const bool all = results[lane] == mask;
      d[base + lane] = in.mode == ANY || all ? results[lane] : 0;
      if (p) p[base + lane] = all;
    });
  });
}

template <class T>
void reduce(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  const uint64_t* a = block.row(in.a);
  for_each_set(block, in, lanes, [&](uint32_t base, uint32_t mask) {
    T result = static_cast<T>(a[base + static_cast<uint32_t>(std::countr_zero(mask))]);
    for_each_bit(mask & (mask - 1), [&](uint32_t lane) {
      const T value = static_cast<T>(a[base + lane]);
      switch (in.mode) {
        case ADD:
          result = static_cast<T>(static_cast<uint32_t>(result) + static_cast<uint32_t>(value));
          break;
        case MIN:
          result = std::min(result, value);
          break;
        case MAX:
          result = std::max(result, value);
          break;
        case AND:
          result &= value;
          break;
        case OR:
          result |= value;
          break;
        default:
          result ^= value;
          break;
      }
    });
    for_each_bit(mask, [&](uint32_t lane) { d[base + lane] = static_cast<uint32_t>(result); });
  });
}

void active_mask(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  for_each_warp(block, lanes, [&](uint32_t base, uint32_t mask) {
    for_each_bit(mask, [&](uint32_t lane) { d[base + lane] = mask; });
  });
}

void require_sync(Decoding& d) {
  if (!d.modifiers.take("sync")) d.fail("only the .sync form is supported");
  d.out.control = Control::WARP;
}

void set_second(Decoding& d) {
  if (d.operand(0).second_name.empty()) return;
  ptx::Operand second;
  second.name = d.operand(0).second_name;
  d.out.dst2 = d.decoder.destination(second);
}

void decode_shuffle(Decoding& d) {
  require_sync(d);
  const int kind = d.modifiers.take_one({"up", "down", "bfly", "idx"});
  if (kind < 0) d.fail("unknown kind");
  d.out.mode = static_cast<uint8_t>(kind);
  d.modifiers.take_type();
  d.set_dst();
  set_second(d);
  d.out.a = d.value(1, Type::B32);
  d.out.b = d.value(2, Type::B32);
  d.out.c = d.value(3, Type::B32);
  d.out.d = d.value(4, Type::B32);
  d.out.handler = shuffle;
}

void decode_vote(Decoding& d) {
  require_sync(d);
  const int kind = d.modifiers.take_one({"all", "any", "uni", "ballot"});
  if (kind < 0) d.fail("unknown kind");
  d.out.mode = static_cast<uint8_t>(kind);
  d.modifiers.take_type();
  d.set_dst();
  ptx::Operand source = d.operand(1);
  d.out.operand_negated = source.negated;
  source.negated = false;
  d.out.a = d.decoder.value(source, Type::PRED);
  d.out.d = d.value(2, Type::B32);
  d.out.handler = vote;
}

void decode_match(Decoding& d) {
  require_sync(d);
  const int kind = d.modifiers.take_one({"all", "any"});
  if (kind < 0) d.fail("unknown kind");
  d.out.mode = static_cast<uint8_t>(kind);
  const Type type = d.modifiers.take_type();
  d.set_dst();
  set_second(d);
  d.out.a = d.value(1, type);
  d.out.d = d.value(2, Type::B32);
  d.out.handler = size_bytes(type) == 8 ? match<uint64_t> : match<uint32_t>;
}

void decode_reduce(Decoding& d) {
  require_sync(d);
  const int kind = d.modifiers.take_one({"add", "min", "max", "and", "or", "xor"});
  if (kind < 0) d.fail("unknown operation");
  d.out.mode = static_cast<uint8_t>(kind);
  const Type type = d.modifiers.take_type();
  d.set_dst();
  d.out.a = d.value(1, type);
  d.out.d = d.value(2, Type::B32);
  if (is_float(type) || size_bytes(type) != 4) d.fail("this type is not supported");
  d.out.handler = type == Type::S32 ? reduce<int32_t> : reduce<uint32_t>;
}

void decode_active_mask(Decoding& d) {
  d.modifiers.take_type();
  d.set_dst();
  d.out.handler = active_mask;
}

}  // namespace

void add_warp_operations(OperationTable* table) {
  (*table)["shfl"] = decode_shuffle;
  (*table)["vote"] = decode_vote;
  (*table)["match"] = decode_match;
  (*table)["redux"] = decode_reduce;
  (*table)["activemask"] = decode_active_mask;
}

}  // namespace software_gpu
