// SPDX-License-Identifier: Apache-2.0
// suld, sust and sured: bytes of a surface. The first coordinate counts bytes. An instruction's
// vector holds the rows of its coordinates and then those of its values.
#include <algorithm>
#include <type_traits>

#include "image_access.h"
#include "map.h"

namespace software_gpu {
namespace {

enum Outside { TRAP, CLAMP, ZERO };

/// Where a lane's access goes; null: nowhere.
char* resolve(Block& block, const Instruction& in, ImageAccess& images, uint32_t lane) {
  BoundImage* const bound = images.find(lane, block.row(in.a)[lane]);
  if (!bound) return nullptr;
  const Geometry& geometry = GEOMETRIES[in.mode];
  const Image& image = bound->image();
  const Level& level = image.levels.front();
  const Row* row = block.vector(in).data();
  const int64_t n_bytes = in.access_bytes;
  const int64_t width_bytes = int64_t{level.width} * image.format.element_bytes();
  int64_t at[4] = {};  // x, y, z, layer
  const int64_t last[4] = {width_bytes - n_bytes, int64_t{level.height} - 1,
                           int64_t{level.depth} - 1, int64_t{image.n_layers} - 1};
  if (geometry.is_layered) at[3] = from_slot<int32_t>(block.row(*row++)[lane]);
  for (uint32_t d = 0; d < geometry.n_dimensions; ++d)
    at[d] = from_slot<int32_t>(block.row(row[d])[lane]);
  for (size_t d = 0; d < 4; ++d) {
    if (at[d] >= 0 && at[d] <= last[d]) continue;
    if (in.imm == TRAP) images.fail(lane, "outside of the surface");
    if (in.imm != CLAMP || last[d] < 0) return nullptr;
    at[d] = std::clamp<int64_t>(at[d], 0, last[d]);
  }
  if (at[0] % n_bytes != 0) {
    images.fail(lane, "misaligned access to a surface");
    return nullptr;
  }
  char* const there =
      bound->bytes(static_cast<uint64_t>(at[0]), static_cast<uint64_t>(at[1]),
                   static_cast<uint64_t>(at[2] + at[3]), static_cast<uint32_t>(n_bytes));
  if (!there) images.fail(lane, "the memory of a surface is gone");
  return there && bound->is_hole(there) ? nullptr : there;
}

const Row* values(Block& block, const Instruction& in) {
  return block.vector(in).data() + block.vector(in).size() - in.n_vector;
}

template <class T>
void load(Block& block, const Instruction& in, const Lanes& lanes) {
  ImageAccess images(block, in, true);
  const Row* const rows = values(block, in);
  for_each(lanes, [&](uint32_t i) {
    const T* const from = reinterpret_cast<const T*>(resolve(block, in, images, i));
    for (uint32_t k = 0; k < in.n_vector; ++k)
      block.row(rows[k])[i] = from ? __atomic_load_n(from + k, __ATOMIC_RELAXED) : 0;
  });
}

template <class T>
void store(Block& block, const Instruction& in, const Lanes& lanes) {
  ImageAccess images(block, in, true);
  const Row* const rows = values(block, in);
  for_each(lanes, [&](uint32_t i) {
    T* const to = reinterpret_cast<T*>(resolve(block, in, images, i));
    for (uint32_t k = 0; to && k < in.n_vector; ++k)
      __atomic_store_n(to + k, static_cast<T>(block.row(rows[k])[i]), __ATOMIC_RELAXED);
  });
}

enum Reduction { ADD, MIN, MAX, AND, OR };

template <class T>
T reduced(int operation, T a, T b) {
  using U = std::make_unsigned_t<T>;
  switch (operation) {
    case ADD:
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    case MIN:
      return std::min(a, b);
    case MAX:
      return std::max(a, b);
    case AND:
      return a & b;
    default:
      return a | b;
  }
}

/// `target` is the kind of reduction.
template <class T>
void reduce(Block& block, const Instruction& in, const Lanes& lanes) {
  ImageAccess images(block, in, true);
  const Row* const row = values(block, in);
  for_each(lanes, [&](uint32_t i) {
    T* const at = reinterpret_cast<T*>(resolve(block, in, images, i));
    if (!at) return;
    const T value = from_slot<T>(block.row(*row)[i]);
    T old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(at, &old,
                                        reduced<T>(static_cast<int>(in.target), old, value), true,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
  });
}

template <template <class> class Handlers>
Handler by_size(uint32_t n_bytes) {
  switch (n_bytes) {
    case 1:
      return Handlers<uint8_t>::run;
    case 2:
      return Handlers<uint16_t>::run;
    case 4:
      return Handlers<uint32_t>::run;
    default:
      return Handlers<uint64_t>::run;
  }
}

template <class T>
struct Load {
  static constexpr Handler run = load<T>;
};
template <class T>
struct Store {
  static constexpr Handler run = store<T>;
};

/// All but the handler: the operand with the place is `place`, the one with the values `value`.
Type decode_access(Decoding& d, size_t place, size_t value, bool is_load) {
  d.modifiers.ignore({"b"});
  d.out.mode = take_geometry(d);
  d.out.imm = d.modifiers.take_one({"trap", "clamp", "zero"});
  d.out.n_vector = d.modifiers.take_vector();
  const Type type = d.modifiers.take_type();
  d.out.access_bytes = static_cast<uint8_t>(size_bytes(type) * d.out.n_vector);
  d.out.a = image_handle(d, d.operand(place));
  std::vector<Row> rows = coordinates(d, d.operand(place), GEOMETRIES[d.out.mode], Type::S32);
  const ptx::Operand& operand = d.operand(value);
  const std::vector<ptx::Operand> elements =
      operand.kind == ptx::Operand::Kind::VECTOR ? operand.elements : std::vector{operand};
  if (elements.size() != d.out.n_vector) d.fail("wrong number of elements");
  for (const ptx::Operand& element : elements)
    rows.push_back(is_load ? d.decoder.destination(element) : d.decoder.value(element, type));
  d.out.extra = d.decoder.add_vector(std::move(rows));
  return type;
}

void decode_suld(Decoding& d) {
  d.out.handler = by_size<Load>(size_bytes(decode_access(d, 1, 0, true)));
}

void decode_sust(Decoding& d) {
  d.out.handler = by_size<Store>(size_bytes(decode_access(d, 0, 1, false)));
}

void decode_sured(Decoding& d) {
  d.out.target = static_cast<uint32_t>(d.modifiers.take_one({"add", "min", "max", "and", "or"}));
  switch (decode_access(d, 0, 1, false)) {
    case Type::S32:
      d.out.handler = reduce<int32_t>;
      break;
    case Type::S64:
      d.out.handler = reduce<int64_t>;
      break;
    case Type::U64:
      d.out.handler = reduce<uint64_t>;
      break;
    default:
      d.out.handler = reduce<uint32_t>;
  }
}

}  // namespace

void add_surface_operations(OperationTable* table) {
  (*table)["suld"] = decode_suld;
  (*table)["sust"] = decode_sust;
  (*table)["sured"] = decode_sured;
}

}  // namespace software_gpu
