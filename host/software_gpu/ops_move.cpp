// SPDX-License-Identifier: Apache-2.0
// mov: of one value, apart and together, and of the clocks.
#include <ctime>

#include "decoder.h"
#include "map.h"

namespace software_gpu {
namespace {

template <class T>
struct Move {
  static T apply(T a) { return a; }
};

bool pred_move(bool a) { return a; }

void pack(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  const std::vector<Row>& parts = block.vector(in);
  const uint32_t n_bits = 8 * size_bytes(in.type) / static_cast<uint32_t>(parts.size());
  for_each(lanes, [&](uint32_t i) {
    uint64_t result = 0;
    for (size_t k = 0; k < parts.size(); ++k)
      result |= (block.row(parts[k])[i] & ((1ull << n_bits) - 1)) << (k * n_bits);
    d[i] = result;
  });
}

void unpack(Block& block, const Instruction& in, const Lanes& lanes) {
  const uint64_t* a = block.row(in.a);
  const std::vector<Row>& parts = block.vector(in);
  const uint32_t n_bits = 8 * size_bytes(in.type) / static_cast<uint32_t>(parts.size());
  for_each(lanes, [&](uint32_t i) {
    const uint64_t value = a[i];
    for (size_t k = 0; k < parts.size(); ++k)
      block.row(parts[k])[i] = value >> (k * n_bits) & ((1ull << n_bits) - 1);
  });
}

uint64_t read_clock() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(now.tv_nsec);
}

void clock_value(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  const uint64_t now = read_clock() >> in.imm;
  for_each(lanes, [=](uint32_t i) { d[i] = now; });
}

/// The parts that a mov takes apart or puts together.
uint32_t parts(Decoding& d, size_t i, Type type, bool is_destination) {
  const size_t n = d.operand(i).elements.size();
  if ((n != 2 && n != 4 && n != 8) || n > size_bytes(type)) d.fail("wrong number of elements");
  return d.decoder.add_vector(d.operand(i), type, is_destination);
}

void decode_mov(Decoding& d) {
  using Kind = ptx::Operand::Kind;
  const Type type = d.modifiers.take_type();
  d.out.type = type;
  const std::string_view name = d.operand(1).name;
  if (d.operand(1).kind == Kind::VECTOR) {
    d.set_dst();
    d.out.extra = parts(d, 1, type, false);
    d.out.handler = pack;
  } else if (d.operand(0).kind == Kind::VECTOR) {
    d.out.a = d.value(1, type);
    d.out.extra = parts(d, 0, type, true);
    d.out.handler = unpack;
  } else if (name == "%clock" || name == "%clock64" || name == "%clock_hi" ||
             name == "%globaltimer" || name == "%globaltimer_lo" || name == "%globaltimer_hi") {
    d.set_dst();
    d.out.imm = name.ends_with("_hi") ? 32 : 0;
    d.out.handler = clock_value;
  } else {
    d.set_dst();
    d.out.a = d.value(1, type);
    if (type == Type::PRED)
      d.out.handler = Map<pred_move>::run;
    else if (size_bytes(type) == 8)
      d.out.handler = Map<Move<uint64_t>::apply>::run;
    else if (size_bytes(type) == 4)
      d.out.handler = Map<Move<uint32_t>::apply>::run;
    else if (size_bytes(type) == 2)
      d.out.handler = Map<Move<uint16_t>::apply>::run;
  }
}

}  // namespace

void add_move_operations(OperationTable* table) { (*table)["mov"] = decode_mov; }

}  // namespace software_gpu
