// SPDX-License-Identifier: Apache-2.0
// atom and red: read, compute, compare-and-swap until it holds.
#include "decoder.h"
#include "half.h"
#include "map.h"

namespace software_gpu {
namespace {

enum Kind { ADD, MIN, MAX, INC, DEC, AND, OR, XOR, EXCHANGE, CAS };

template <int K, class T>
T combine(T old, T b, T c) {
  if constexpr (K == ADD && std::is_integral_v<T>)
    return static_cast<T>(uint64_t(old) + uint64_t(b));
  else if constexpr (K == ADD)
    return canonical(old + b);
  else if constexpr (K == MIN)
    return b < old ? b : old;
  else if constexpr (K == MAX)
    return b > old ? b : old;
  else if constexpr (K == INC)
    return old >= b ? T{0} : static_cast<T>(old + 1);
  else if constexpr (K == DEC)
    return old == 0 || old > b ? b : static_cast<T>(old - 1);
  else if constexpr (K == EXCHANGE)
    return b;
  else if constexpr (K == CAS)
    return old == b ? c : old;
  else if constexpr (K == AND)
    return static_cast<T>(old & b);
  else if constexpr (K == OR)
    return static_cast<T>(old | b);
  else
    return static_cast<T>(old ^ b);
}

uint32_t add_pair(uint32_t old, uint32_t b) {
  uint32_t result = 0;
  for (int k = 0; k < 32; k += 16) {
    const float sum =
        float{Half{static_cast<uint16_t>(old >> k)}} + float{Half{static_cast<uint16_t>(b >> k)}};
    result |= uint32_t{Half::from(sum).bits} << k;
  }
  return result;
}

/// F computes the new word from its address, the old one and the operands, all as raw bits.
template <class U, class F>
void update(Block& block, const Instruction& in, const Lanes& lanes, F compute) {
  uint64_t* d = block.row(in.dst);
  const uint64_t* a = block.row(in.a);
  const uint64_t* b = block.row(in.b);
  const uint64_t* c = block.row(in.c == NO_ROW ? in.b : in.c);
  bool changed = false;
  for_each(lanes, [&](uint32_t i) {
    char* at = block.resolve(in, i, a[i] + static_cast<uint64_t>(in.imm), sizeof(U), sizeof(U));
    if (!at) return;
    U* word = reinterpret_cast<U*>(at);
    U old = __atomic_load_n(word, __ATOMIC_RELAXED), now;
    do {
      now = compute(at, old, static_cast<U>(b[i]), static_cast<U>(c[i]));
    } while (
        !__atomic_compare_exchange_n(word, &old, now, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    changed |= now != old;
    d[i] = old;
  });
  if (!changed) block.poll();
}

template <int K, class T>
void atomic(Block& block, const Instruction& in, const Lanes& lanes) {
  using U = typename UnsignedOf<sizeof(T)>::type;
  update<U>(block, in, lanes, [](const char*, U old, U b, U c) {
    return std::bit_cast<U>(
        combine<K, T>(std::bit_cast<T>(old), std::bit_cast<T>(b), std::bit_cast<T>(c)));
  });
}

void atomic_add_pair(Block& block, const Instruction& in, const Lanes& lanes) {
  update<uint32_t>(block, in, lanes, [](const char*, uint32_t old, uint32_t b, uint32_t) {
    return add_pair(old, b);
  });
}

void atomic_add_half(Block& block, const Instruction& in, const Lanes& lanes) {
  update<uint16_t>(block, in, lanes, [](const char*, uint16_t old, uint16_t b, uint16_t) {
    return Half::from(double{Half{old}} + double{Half{b}}).bits;
  });
}

float flushed(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}

/// In shared memory subnormal numbers count, elsewhere they are flushed.
void atomic_add_float(Block& block, const Instruction& in, const Lanes& lanes) {
  update<uint32_t>(block, in, lanes, [&](const char* at, uint32_t old, uint32_t b, uint32_t) {
    const float x = std::bit_cast<float>(old), y = std::bit_cast<float>(b);
    const uint64_t offset = reinterpret_cast<uint64_t>(at) - block.shared_base();
    const bool shared = offset < block.shared_bytes();
    return std::bit_cast<uint32_t>(canonical(shared ? x + y : flushed(flushed(x) + flushed(y))));
  });
}

template <class T>
Handler pick_integer(int kind) {
  constexpr Handler TABLE[] = {atomic<ADD, T>,      atomic<MIN, T>, atomic<MAX, T>, atomic<INC, T>,
                               atomic<DEC, T>,      atomic<AND, T>, atomic<OR, T>,  atomic<XOR, T>,
                               atomic<EXCHANGE, T>, atomic<CAS, T>};
  return TABLE[kind];
}

Handler pick(int kind, Type type) {
  switch (type) {
    case Type::U32:
    case Type::B32:
      return pick_integer<uint32_t>(kind);
    case Type::U64:
    case Type::B64:
      return pick_integer<uint64_t>(kind);
    case Type::S32:
      return pick_integer<int32_t>(kind);
    case Type::S64:
      return pick_integer<int64_t>(kind);
    case Type::B16:
    case Type::U16:
      return kind == CAS        ? atomic<CAS, uint16_t>
             : kind == EXCHANGE ? atomic<EXCHANGE, uint16_t>
                                : nullptr;
    case Type::F32:
      return kind == ADD ? atomic_add_float : kind == EXCHANGE ? atomic<EXCHANGE, float> : nullptr;
    case Type::F64:
      return kind == ADD ? atomic<ADD, double> : nullptr;
    case Type::F16:
      return kind == ADD ? atomic_add_half : nullptr;
    case Type::F16X2:
      return kind == ADD ? atomic_add_pair : nullptr;
    default:
      return nullptr;
  }
}

void decode_atomic(Decoding& d) {
  const bool reduction = d.source.opcode.front() == "red";
  d.out.releases = d.modifiers.take("release") || d.modifiers.take("acq_rel");
  d.modifiers.ignore({"global", "relaxed", "acquire", "cta", "gpu", "sys", "noftz"});
  if (d.modifiers.take("shared")) d.out.space = Space::SHARED;
  const int kind =
      d.modifiers.take_one({"add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"});
  if (kind < 0) d.fail("unknown operation");
  const Type type = d.modifiers.take_type();
  const size_t first = reduction ? 0 : 1;
  d.out.dst = reduction ? d.decoder.scratch() : d.decoder.destination(d.operand(0));
  d.decoder.address(d.operand(first), &d.out);
  d.out.b = d.value(first + 1, type);
  if (kind == CAS) d.out.c = d.value(first + 2, type);
  d.out.handler = pick(kind, type);
  d.out.access = Access::UPDATE;
  d.out.access_bytes = static_cast<uint8_t>(size_bytes(type));
  d.out.strong = true;
}

}  // namespace

void add_atomic_operations(OperationTable* table) {
  (*table)["atom"] = (*table)["red"] = decode_atomic;
}

}  // namespace software_gpu
