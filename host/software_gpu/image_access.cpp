// SPDX-License-Identifier: Apache-2.0
#include "image_access.h"

namespace software_gpu {

BoundImage* ImageAccess::find(uint32_t lane, uint64_t handle) {
  if (bound_ && handle == handle_) return bound_.get();
  for (const auto& table : block_.launch().images) {
    const auto found = table->find(handle);
    if (found == table->end()) continue;
    if (found->second->image.is_surface != is_surface_) break;
    handle_ = handle;
    bound_ = std::make_unique<BoundImage>(found->second->image, *block_.launch().memory);
    return bound_.get();
  }
  fail(lane, is_surface_ ? "no surface has this handle" : "no texture has this handle");
  return nullptr;
}

void ImageAccess::fail(uint32_t lane, const char* what) const {
  block_.fault(in_, lane, CUDA_ERROR_ILLEGAL_ADDRESS, what);
}

uint8_t take_geometry(Decoding& d) {
  for (size_t i = 0; i < std::size(GEOMETRIES); ++i)
    if (d.modifiers.take(GEOMETRIES[i].name)) return static_cast<uint8_t>(i);
  d.fail("no dimensions");
}

Row image_handle(Decoding& d, const ptx::Operand& operand) {
  using Kind = ptx::Operand::Kind;
  if ((operand.kind != Kind::TEXEL && operand.kind != Kind::ADDRESS) || operand.name.empty() ||
      operand.value != 0)
    d.fail("operand is no texture or surface");
  ptx::Operand handle;
  handle.name = operand.name;
  return d.decoder.value(handle, Type::U64);
}

std::vector<Row> coordinates(Decoding& d, const ptx::Operand& operand, const Geometry& geometry,
                             Type type) {
  if (operand.elements.size() != geometry.n_operands) d.fail("wrong number of coordinates");
  std::vector<Row> rows;
  const uint32_t n = geometry.n_dimensions + (geometry.is_layered ? 1 : 0);
  for (uint32_t i = 0; i < n; ++i) {
    const bool is_layer = geometry.is_layered && i == 0;
    rows.push_back(d.decoder.value(operand.elements[i], is_layer ? Type::U32 : type));
  }
  return rows;
}

}  // namespace software_gpu
