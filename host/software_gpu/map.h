// SPDX-License-Identifier: Apache-2.0
// From a scalar function to a handler that applies it to all active threads.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "block.h"

namespace software_gpu {

template <size_t N>
struct UnsignedOf;
template <>
struct UnsignedOf<1> {
  using type = uint8_t;
};
template <>
struct UnsignedOf<2> {
  using type = uint16_t;
};
template <>
struct UnsignedOf<4> {
  using type = uint32_t;
};
template <>
struct UnsignedOf<8> {
  using type = uint64_t;
};

/// The value of type T in a row's slot. bool is a predicate.
template <class T>
inline T from_slot(uint64_t slot) {
  if constexpr (std::is_same_v<T, bool>)
    return (slot & 1) != 0;
  else
    return std::bit_cast<T>(static_cast<typename UnsignedOf<sizeof(T)>::type>(slot));
}

template <class T>
inline uint64_t to_slot(T value) {
  if constexpr (std::is_same_v<T, bool>)
    return value;
  else
    return std::bit_cast<typename UnsignedOf<sizeof(T)>::type>(value);
}

template <auto F>
struct Map;

template <class R, class A, R (*F)(A)>
struct Map<F> {
  static void run(Block& block, const Instruction& in, const Lanes& lanes) {
    uint64_t* d = block.row(in.dst);
    const uint64_t* a = block.row(in.a);
    for_each(lanes, [=](uint32_t i) { d[i] = to_slot<R>(F(from_slot<A>(a[i]))); });
  }
};

template <class R, class A, class B, R (*F)(A, B)>
struct Map<F> {
  static void run(Block& block, const Instruction& in, const Lanes& lanes) {
    uint64_t* d = block.row(in.dst);
    const uint64_t* a = block.row(in.a);
    const uint64_t* b = block.row(in.b);
    for_each(lanes,
             [=](uint32_t i) { d[i] = to_slot<R>(F(from_slot<A>(a[i]), from_slot<B>(b[i]))); });
  }
};

template <class R, class A, class B, class C, R (*F)(A, B, C)>
struct Map<F> {
  static void run(Block& block, const Instruction& in, const Lanes& lanes) {
    uint64_t* d = block.row(in.dst);
    const uint64_t* a = block.row(in.a);
    const uint64_t* b = block.row(in.b);
    const uint64_t* c = block.row(in.c);
    for_each(lanes, [=](uint32_t i) {
      d[i] = to_slot<R>(F(from_slot<A>(a[i]), from_slot<B>(b[i]), from_slot<C>(c[i])));
    });
  }
};

template <class R, class A, class B, class C, class D, R (*F)(A, B, C, D)>
struct Map<F> {
  static void run(Block& block, const Instruction& in, const Lanes& lanes) {
    uint64_t* d = block.row(in.dst);
    const uint64_t* a = block.row(in.a);
    const uint64_t* b = block.row(in.b);
    const uint64_t* c = block.row(in.c);
    const uint64_t* e = block.row(in.d);
    for_each(lanes, [=](uint32_t i) {
      d[i] = to_slot<R>(
          F(from_slot<A>(a[i]), from_slot<B>(b[i]), from_slot<C>(c[i]), from_slot<D>(e[i])));
    });
  }
};

/// Pick Op<T>::apply by an integer type; null for another type.
template <template <class> class Op>
Handler for_integer(Type type) {
  switch (type) {
    case Type::U16:
    case Type::B16:
      return Map<Op<uint16_t>::apply>::run;
    case Type::U32:
    case Type::B32:
      return Map<Op<uint32_t>::apply>::run;
    case Type::U64:
    case Type::B64:
      return Map<Op<uint64_t>::apply>::run;
    case Type::S16:
      return Map<Op<int16_t>::apply>::run;
    case Type::S32:
      return Map<Op<int32_t>::apply>::run;
    case Type::S64:
      return Map<Op<int64_t>::apply>::run;
    default:
      return nullptr;
  }
}

/// The same where signedness does not matter.
template <template <class> class Op>
Handler for_bits(Type type) {
  if (is_float(type) || type == Type::PRED) return nullptr;
  switch (size_bytes(type)) {
    case 2:
      return Map<Op<uint16_t>::apply>::run;
    case 4:
      return Map<Op<uint32_t>::apply>::run;
    case 8:
      return Map<Op<uint64_t>::apply>::run;
    default:
      return nullptr;
  }
}

}  // namespace software_gpu
