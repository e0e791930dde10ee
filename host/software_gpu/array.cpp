// SPDX-License-Identifier: Apache-2.0
#include "array.h"

#include <bit>

#include "context.h"

namespace software_gpu {
namespace {

struct Limit {
  CUdevice_attribute id;
  int value;
};

// CUDA C++ Programming Guide, technical specifications of compute capability 9.0.
constexpr Limit LIMITS[] = {{CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
                            {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
                            {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
                            {CU_DEVICE_ATTRIBUTE_CAN_TEX2D_GATHER, 1},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 131072},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH, 1 << 28},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH, 32768},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH, 32768},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS, 2048},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 131072},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, 65536},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH, 131072},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT, 65000},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH, 2097120},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH, 32768},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT, 32768},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH, 32768},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT, 32768},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH, 32768},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT, 32768},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS, 2048},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, 16384},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, 16384},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, 16384},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE, 8192},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE, 8192},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE, 32768},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH, 32768},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH, 32768},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS, 2046},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH, 32768},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH, 32768},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS, 2048},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH, 131072},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT, 65536},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH, 32768},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT, 32768},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS, 2048},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH, 16384},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT, 16384},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH, 16384},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH, 32768},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH, 32768},
                            {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS, 2046}};

constexpr unsigned ARRAY_FLAGS = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST |
                                 CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER |
                                 CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
constexpr unsigned FLAGS_NOT_DONE =
    CUDA_ARRAY3D_DEPTH_TEXTURE | CUDA_ARRAY3D_COLOR_ATTACHMENT | CUDA_ARRAY3D_VIDEO_ENCODE_DECODE;
constexpr unsigned MAPPED_LATER = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
// Driver 580 makes no array with one of these and CUDA_ARRAY3D_SPARSE.
constexpr unsigned NOT_SPARSE = CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_SURFACE_LDST |
                                CUDA_ARRAY3D_DEPTH_TEXTURE | CUDA_ARRAY3D_COLOR_ATTACHMENT |
                                CUDA_ARRAY3D_DEFERRED_MAPPING;

/// The attributes that say how long an array may be; 0: that dimension has none.
struct Bounds {
  int width, height, depth;
};

#define BOUND(name) CU_DEVICE_ATTRIBUTE_MAXIMUM_##name

/// CUDA 13.0, cuArray3DCreate and cuMipmappedArrayCreate, the tables of valid extents.
Bounds bounds(const CUDA_ARRAY3D_DESCRIPTOR& d, bool is_mipmapped) {
  const bool layered = d.Flags & CUDA_ARRAY3D_LAYERED;
  const bool surface = d.Flags & CUDA_ARRAY3D_SURFACE_LDST;
  if (d.Flags & CUDA_ARRAY3D_CUBEMAP) {
    if (layered && surface)
      return {BOUND(SURFACECUBEMAP_LAYERED_WIDTH), BOUND(SURFACECUBEMAP_LAYERED_WIDTH),
              BOUND(SURFACECUBEMAP_LAYERED_LAYERS)};
    if (layered)
      return {BOUND(TEXTURECUBEMAP_LAYERED_WIDTH), BOUND(TEXTURECUBEMAP_LAYERED_WIDTH),
              BOUND(TEXTURECUBEMAP_LAYERED_LAYERS)};
    const int width = surface ? BOUND(SURFACECUBEMAP_WIDTH) : BOUND(TEXTURECUBEMAP_WIDTH);
    return {width, width, 0};
  }
  if (layered && d.Height == 0)
    return surface ? Bounds{BOUND(SURFACE1D_LAYERED_WIDTH), 0, BOUND(SURFACE1D_LAYERED_LAYERS)}
                   : Bounds{BOUND(TEXTURE1D_LAYERED_WIDTH), 0, BOUND(TEXTURE1D_LAYERED_LAYERS)};
  if (layered)
    return surface ? Bounds{BOUND(SURFACE2D_LAYERED_WIDTH), BOUND(SURFACE2D_LAYERED_HEIGHT),
                            BOUND(SURFACE2D_LAYERED_LAYERS)}
                   : Bounds{BOUND(TEXTURE2D_LAYERED_WIDTH), BOUND(TEXTURE2D_LAYERED_HEIGHT),
                            BOUND(TEXTURE2D_LAYERED_LAYERS)};
  if (d.Depth != 0)
    return surface
               ? Bounds{BOUND(SURFACE3D_WIDTH), BOUND(SURFACE3D_HEIGHT), BOUND(SURFACE3D_DEPTH)}
               : Bounds{BOUND(TEXTURE3D_WIDTH), BOUND(TEXTURE3D_HEIGHT), BOUND(TEXTURE3D_DEPTH)};
  if (d.Height == 0) {
    if (surface) return {BOUND(SURFACE1D_WIDTH), 0, 0};
    return {is_mipmapped ? BOUND(TEXTURE1D_MIPMAPPED_WIDTH) : BOUND(TEXTURE1D_WIDTH), 0, 0};
  }
  if (d.Flags & CUDA_ARRAY3D_TEXTURE_GATHER)
    return {BOUND(TEXTURE2D_GATHER_WIDTH), BOUND(TEXTURE2D_GATHER_HEIGHT), 0};
  if (surface) return {BOUND(SURFACE2D_WIDTH), BOUND(SURFACE2D_HEIGHT), 0};
  return is_mipmapped
             ? Bounds{BOUND(TEXTURE2D_MIPMAPPED_WIDTH), BOUND(TEXTURE2D_MIPMAPPED_HEIGHT), 0}
             : Bounds{BOUND(TEXTURE2D_WIDTH), BOUND(TEXTURE2D_HEIGHT), 0};
}

bool is_within(const CUDA_ARRAY3D_DESCRIPTOR& d, const Bounds& b) {
  const auto fits = [](size_t length, int id) {
    return id == 0 ||
           length <= static_cast<size_t>(image_limit(static_cast<CUdevice_attribute>(id)));
  };
  return fits(d.Width, b.width) && fits(d.Height, b.height) && fits(d.Depth, b.depth);
}

constexpr Bounds ALTERNATE_3D = {BOUND(TEXTURE3D_WIDTH_ALTERNATE),
                                 BOUND(TEXTURE3D_HEIGHT_ALTERNATE),
                                 BOUND(TEXTURE3D_DEPTH_ALTERNATE)};
#undef BOUND

/// Is this one of the kinds of array that there are?
bool is_shape(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  const bool layered = d.Flags & CUDA_ARRAY3D_LAYERED;
  if (d.Width == 0 || (layered && d.Depth == 0)) return false;
  if (d.Flags & CUDA_ARRAY3D_SPARSE && d.Height == 0) return false;
  if (d.Flags & CUDA_ARRAY3D_CUBEMAP)
    return d.Width == d.Height && d.Depth != 0 && (layered ? d.Depth % 6 == 0 : d.Depth == 6);
  if (d.Flags & CUDA_ARRAY3D_TEXTURE_GATHER) return d.Height != 0 && d.Depth == 0;
  return layered || d.Depth == 0 || d.Height != 0;
}

CUresult check(const CUDA_ARRAY3D_DESCRIPTOR& d, bool is_mipmapped, Format* format) {
  if (d.Flags & ~(ARRAY_FLAGS | FLAGS_NOT_DONE)) return CUDA_ERROR_INVALID_VALUE;
  if (d.Flags & CUDA_ARRAY3D_SPARSE && d.Flags & NOT_SPARSE) return CUDA_ERROR_INVALID_VALUE;
  if (d.Flags & FLAGS_NOT_DONE) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult result = find_format(d.Format, d.NumChannels, format); result != CUDA_SUCCESS)
    return result;
  if (!is_shape(d)) return CUDA_ERROR_INVALID_VALUE;
  const bool is_3d = d.Depth != 0 && !has_layers(d);
  const bool has_alternate = is_3d && !(d.Flags & CUDA_ARRAY3D_SURFACE_LDST);
  if (is_within(d, bounds(d, is_mipmapped)) || (has_alternate && is_within(d, ALTERNATE_3D)))
    return CUDA_SUCCESS;
  return CUDA_ERROR_INVALID_VALUE;
}

/// The memory of an array. What is mapped later is charged to nobody: its tiles are.
struct Room {
  Layout layout;
  uint64_t address = 0, buffer_id = 0;
  std::shared_ptr<Tiles> tiles;
};

CUresult make_room(Memory& memory, const CUDA_ARRAY3D_DESCRIPTOR& d, const Format& format,
                   unsigned n_levels, Room* room) {
  room->layout = lay_out(d, format, n_levels);
  const bool is_later = d.Flags & MAPPED_LATER;
  const MemoryKind kind = is_later ? MemoryKind::TILES : MemoryKind::ARRAY;
  if (const CUresult result = memory.allocate(room->layout.size_bytes, kind, 0, &room->address);
      result != CUDA_SUCCESS)
    return result;
  auto range = memory.find(room->address);
  room->buffer_id = range->buffer_id;
  if (is_later)
    room->tiles = std::make_shared<Tiles>(std::move(range), room->layout,
                                          (d.Flags & CUDA_ARRAY3D_SPARSE) != 0);
  return CUDA_SUCCESS;
}

std::shared_ptr<Array> array_in(Context& context, const Room& room, const Format& format,
                                unsigned level, bool is_level) {
  const auto& [offset_bytes, tiling, descriptor] = room.layout.levels[level];
  return std::make_shared<Array>(Array{context, descriptor, format, room.address + offset_bytes,
                                       room.buffer_id, tiling, room.tiles, is_level});
}

}  // namespace

int image_limit(CUdevice_attribute id) {
  const auto found = std::ranges::find(LIMITS, id, &Limit::id);
  return found == std::end(LIMITS) ? 0 : found->value;
}

CUresult find_format(CUarray_format format, unsigned n_channels, Format* out) {
  using Channel = Format::Channel;
  const auto is = [&](Channel channel, int n_bytes) {
    *out = {channel, static_cast<uint8_t>(n_bytes), static_cast<uint8_t>(n_channels)};
    return n_channels == 1 || n_channels == 2 || n_channels == 4 ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_INVALID_VALUE;
  };
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
      return is(Channel::UNSIGNED, 1);
    case CU_AD_FORMAT_UNSIGNED_INT16:
      return is(Channel::UNSIGNED, 2);
    case CU_AD_FORMAT_UNSIGNED_INT32:
      return is(Channel::UNSIGNED, 4);
    case CU_AD_FORMAT_SIGNED_INT8:
      return is(Channel::SIGNED, 1);
    case CU_AD_FORMAT_SIGNED_INT16:
      return is(Channel::SIGNED, 2);
    case CU_AD_FORMAT_SIGNED_INT32:
      return is(Channel::SIGNED, 4);
    case CU_AD_FORMAT_HALF:
      return is(Channel::FLOAT, 2);
    case CU_AD_FORMAT_FLOAT:
      return is(Channel::FLOAT, 4);
    default:
      break;
  }
  if (format >= CU_AD_FORMAT_UNORM_INT8X1 && format <= CU_AD_FORMAT_SNORM_INT16X4) {
    // Three numbers of channels, 8 and 16 bits, without and with sign.
    const unsigned i = format - CU_AD_FORMAT_UNORM_INT8X1;
    if (n_channels != 1u << i % 3) return CUDA_ERROR_INVALID_VALUE;
    return is(i < 6 ? Channel::UNORM : Channel::SNORM, i / 3 % 2 == 0 ? 1 : 2);
  }
  const bool is_known = format == CU_AD_FORMAT_UNORM_INT_101010_2 ||
                        (format >= CU_AD_FORMAT_BC1_UNORM && format <= CU_AD_FORMAT_Y410) ||
                        (format >= CU_AD_FORMAT_NV12 && format <= 0xb5);
  return is_known ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

CUresult create_array(Context& context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor,
                      std::shared_ptr<Array>* out) {
  Format format;
  if (const CUresult result = check(descriptor, false, &format); result != CUDA_SUCCESS)
    return result;
  Room room;
  if (const CUresult result = make_room(context.device.memory, descriptor, format, 1, &room);
      result != CUDA_SUCCESS)
    return result;
  *out = array_in(context, room, format, 0, false);
  return CUDA_SUCCESS;
}

CUresult create_mipmapped_array(Context& context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor,
                                unsigned n_levels, std::shared_ptr<MipmappedArray>* out) {
  Format format;
  if (const CUresult result = check(descriptor, true, &format); result != CUDA_SUCCESS)
    return result;
  const size_t depth = has_layers(descriptor) ? 0 : descriptor.Depth;
  const size_t longest = std::max({descriptor.Width, descriptor.Height, depth});
  n_levels = std::clamp(n_levels, 1u, static_cast<unsigned>(std::bit_width(longest)));
  Room room;
  if (const CUresult result = make_room(context.device.memory, descriptor, format, n_levels, &room);
      result != CUDA_SUCCESS)
    return result;
  *out = std::make_shared<MipmappedArray>(
      MipmappedArray{context, descriptor, room.address, room.tiles, {}});
  for (unsigned level = 0; level < n_levels; ++level)
    (*out)->levels.push_back(array_in(context, room, format, level, true));
  return CUDA_SUCCESS;
}

void forget_arrays(const Context& context) {
  Driver& driver = Driver::instance();
  for (const auto& array : driver.arrays.all())
    if (&array->context == &context) driver.arrays.take(array.get());
  for (const auto& array : driver.mipmapped_arrays.all())
    if (&array->context == &context) driver.mipmapped_arrays.take(array.get());
  driver.images.forget(context);
}

}  // namespace software_gpu
