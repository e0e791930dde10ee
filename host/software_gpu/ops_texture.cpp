// SPDX-License-Identifier: Apache-2.0
// tex, tld4 and txq. An instruction's vector holds the rows of its results, of its coordinates, and
// of its gradients, one behind the other.
#include <algorithm>

#include "image_access.h"
#include "map.h"

namespace software_gpu {
namespace {

constexpr size_t N_RESULTS = 4;

/// Whence the level of detail comes.
enum class Detail { NONE, LEVEL, GRADIENT };

void write(Block& block, const Instruction& in, uint32_t lane, const Texel& texel) {
  const std::vector<Row>& rows = block.vector(in);
  for (size_t k = 0; k < N_RESULTS; ++k) block.row(rows[k])[lane] = texel[k];
  if (in.dst2 != NO_ROW) block.row(in.dst2)[lane] = 1;  // resident
}

float coordinate(Block& block, Row row, uint32_t lane) {
  return from_slot<float>(block.row(row)[lane]);
}

Position position(Block& block, const Instruction& in, uint32_t lane) {
  const Geometry& geometry = GEOMETRIES[in.mode];
  const Row* row = block.vector(in).data() + N_RESULTS;
  Position p;
  p.n_dimensions = geometry.n_dimensions;
  p.is_direction = geometry.is_direction;
  if (geometry.is_layered) p.layer = static_cast<uint32_t>(block.row(*row++)[lane]);
  for (uint32_t d = 0; d < geometry.n_dimensions; ++d) p.at[d] = coordinate(block, row[d], lane);
  return p;
}

/// The first or second gradient.
Gradient gradient(Block& block, const Instruction& in, uint32_t lane, uint32_t which) {
  const Geometry& geometry = GEOMETRIES[in.mode];
  const Row* const row = block.vector(in).data() + N_RESULTS + (geometry.is_layered ? 1 : 0) +
                         geometry.n_dimensions * (1 + which);
  Gradient result;
  for (uint32_t d = 0; d < geometry.n_dimensions; ++d)
    result.along[d] = coordinate(block, row[d], lane);
  return result;
}

template <Detail DETAIL>
void sample(Block& block, const Instruction& in, const Lanes& lanes) {
  ImageAccess images(block, in, false);
  for_each(lanes, [&](uint32_t i) {
    BoundImage* const bound = images.find(i, block.row(in.a)[i]);
    if (!bound) return;
    Position p = position(block, in, i);
    if constexpr (DETAIL == Detail::LEVEL) p.level = coordinate(block, in.b, i);
    if constexpr (DETAIL == Detail::GRADIENT)
      p.level = bound->level_of(p, gradient(block, in, i, 0), gradient(block, in, i, 1));
    const auto texel = bound->sample(p);
    if (!texel) return images.fail(i, "the memory of a texture is gone");
    write(block, in, i, *texel);
  });
}

void fetch(Block& block, const Instruction& in, const Lanes& lanes) {
  ImageAccess images(block, in, false);
  for_each(lanes, [&](uint32_t i) {
    BoundImage* const bound = images.find(i, block.row(in.a)[i]);
    if (!bound) return;
    const auto texel = bound->fetch(from_slot<int32_t>(block.row(block.vector(in)[N_RESULTS])[i]));
    if (!texel) return images.fail(i, "the memory of a texture is gone");
    write(block, in, i, *texel);
  });
}

/// `imm` is the channel.
void gather(Block& block, const Instruction& in, const Lanes& lanes) {
  ImageAccess images(block, in, false);
  for_each(lanes, [&](uint32_t i) {
    BoundImage* const bound = images.find(i, block.row(in.a)[i]);
    if (!bound) return;
    const auto texel = bound->gather(position(block, in, i), static_cast<unsigned>(in.imm));
    if (!texel) return images.fail(i, "the memory of a texture is gone");
    write(block, in, i, *texel);
  });
}

enum Query { WIDTH, HEIGHT, DEPTH, ARRAY_SIZE, N_LEVELS, NORMALIZED };

uint32_t answer(const Image& image, int query, uint32_t which) {
  const Level& level = image.levels[std::min<size_t>(which, image.levels.size() - 1)];
  switch (query) {
    case WIDTH:
      return level.width;
    case HEIGHT:
      return level.height;
    case DEPTH:
      return level.depth;
    case ARRAY_SIZE:
      return image.n_layers;
    case N_LEVELS:
      return static_cast<uint32_t>(image.levels.size());
    default:
      return image.sampler.normalized;
  }
}

template <bool IS_SURFACE>
void query(Block& block, const Instruction& in, const Lanes& lanes) {
  ImageAccess images(block, in, IS_SURFACE);
  for_each(lanes, [&](uint32_t i) {
    BoundImage* const bound = images.find(i, block.row(in.a)[i]);
    if (!bound) return;
    const uint32_t level = in.b == NO_ROW ? 0 : static_cast<uint32_t>(block.row(in.b)[i]);
    block.row(in.dst)[i] = answer(bound->image(), in.mode, level);
  });
}

void append(std::vector<Row>* to, const std::vector<Row>& rows) {
  to->insert(to->end(), rows.begin(), rows.end());
}

/// The destinations: four values and, perhaps, whether memory is behind them.
std::vector<Row> results(Decoding& d) {
  const ptx::Operand& to = d.operand(0);
  if (d.modifiers.take_vector() != N_RESULTS || to.elements.size() != N_RESULTS)
    d.fail("wrong number of elements");
  std::vector<Row> rows;
  for (const ptx::Operand& element : to.elements) rows.push_back(d.decoder.destination(element));
  if (!to.second_name.empty()) {
    ptx::Operand resident;
    resident.name = to.second_name;
    d.out.dst2 = d.decoder.destination(resident);
  }
  return rows;
}

std::vector<Row> gradient_rows(Decoding& d, size_t i, const Geometry& geometry) {
  const ptx::Operand& operand = d.operand(i);
  if (operand.elements.size() < geometry.n_dimensions) d.fail("wrong number of gradients");
  std::vector<Row> rows;
  for (uint32_t k = 0; k < geometry.n_dimensions; ++k)
    rows.push_back(d.decoder.value(operand.elements[k], Type::F32));
  return rows;
}

void require_operands(Decoding& d, size_t n) {
  if (d.n_operands() != n) d.fail("offsets and depth comparison are not supported");
}

void decode_tex(Decoding& d) {
  const bool has_level = d.modifiers.take("level"), has_gradient = d.modifiers.take("grad");
  d.out.mode = take_geometry(d);
  const Geometry& geometry = GEOMETRIES[d.out.mode];
  std::vector<Row> rows = results(d);
  d.out.type = d.modifiers.take_type();
  const Type type = d.modifiers.take_type();
  d.out.a = image_handle(d, d.operand(1));
  append(&rows, coordinates(d, d.operand(1), geometry, type));
  require_operands(d, has_gradient ? 4 : has_level ? 3 : 2);
  d.out.handler = type == Type::S32 ? fetch : sample<Detail::NONE>;
  if (has_level) {
    d.out.b = d.value(2, Type::F32);
    d.out.handler = sample<Detail::LEVEL>;
  } else if (has_gradient) {
    append(&rows, gradient_rows(d, 2, geometry));
    append(&rows, gradient_rows(d, 3, geometry));
    d.out.handler = sample<Detail::GRADIENT>;
  }
  d.out.extra = d.decoder.add_vector(std::move(rows));
}

void decode_tld4(Decoding& d) {
  d.out.imm = d.modifiers.take_one({"r", "g", "b", "a"});
  d.out.mode = take_geometry(d);
  std::vector<Row> rows = results(d);
  d.out.type = d.modifiers.take_type();
  const Type type = d.modifiers.take_type();
  d.out.a = image_handle(d, d.operand(1));
  append(&rows, coordinates(d, d.operand(1), GEOMETRIES[d.out.mode], type));
  require_operands(d, 2);
  d.out.handler = gather;
  d.out.extra = d.decoder.add_vector(std::move(rows));
}

template <bool IS_SURFACE>
void decode_query(Decoding& d) {
  const bool has_level = d.modifiers.take("level");
  d.out.mode = static_cast<uint8_t>(d.modifiers.take_one(
      {"width", "height", "depth", "array_size", "num_mipmap_levels", "normalized_coords"}));
  d.out.type = d.modifiers.take_type();
  d.set_dst();
  d.out.a = image_handle(d, d.operand(1));
  if (has_level) d.out.b = d.value(2, Type::U32);
  d.out.handler = query<IS_SURFACE>;
}

}  // namespace

void add_texture_operations(OperationTable* table) {
  (*table)["tex"] = decode_tex;
  (*table)["tld4"] = decode_tld4;
  (*table)["txq"] = decode_query<false>;
  (*table)["suq"] = decode_query<true>;
}

}  // namespace software_gpu
