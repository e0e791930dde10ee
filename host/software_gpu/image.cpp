// SPDX-License-Identifier: Apache-2.0
#include "image.h"

#include "context.h"

namespace software_gpu {
namespace {

constexpr unsigned SAMPLING_FLAGS = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES |
                                    CU_TRSF_SRGB | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION |
                                    CU_TRSF_SEAMLESS_CUBEMAP;

bool exceeds(size_t length, CUdevice_attribute limit) {
  return length > static_cast<size_t>(image_limit(limit));
}

bool is_aligned(size_t value, CUdevice_attribute alignment) {
  return value % static_cast<size_t>(image_limit(alignment)) == 0;
}

Level level_of(const Array& array) {
  const CUDA_ARRAY3D_DESCRIPTOR& d = array.descriptor;
  return {array.address,
          array.tiling,
          static_cast<uint32_t>(d.Width),
          static_cast<uint32_t>(array.n_rows()),
          has_layers(d) ? 1 : static_cast<uint32_t>(array.n_slices()),
          array.buffer_id,
          array.tiles};
}

void add_shape(const Array& array, Image* image) {
  const unsigned flags = array.descriptor.Flags;
  image->format = array.format;
  image->is_layered = flags & CUDA_ARRAY3D_LAYERED;
  image->is_cubemap = flags & CUDA_ARRAY3D_CUBEMAP;
  if (image->is_layered || image->is_cubemap)
    image->n_layers = static_cast<uint32_t>(array.n_slices());
}

CUresult of_linear(const CUDA_RESOURCE_DESC& resource, Image* out) {
  const auto& r = resource.res.linear;
  const CUresult result = find_format(r.format, r.numChannels, &out->format);
  if (result != CUDA_SUCCESS) return result;
  const size_t n_elements = r.sizeInBytes / out->format.element_bytes();
  if (r.devPtr == 0 || !is_aligned(r.devPtr, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT) ||
      n_elements == 0 || exceeds(n_elements, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH))
    return CUDA_ERROR_INVALID_VALUE;
  out->is_table = true;
  out->levels = {{r.devPtr, linear(r.sizeInBytes, 1), static_cast<uint32_t>(n_elements)}};
  return CUDA_SUCCESS;
}

CUresult of_rows(const CUDA_RESOURCE_DESC& resource, Image* out) {
  const auto& r = resource.res.pitch2D;
  const CUresult result = find_format(r.format, r.numChannels, &out->format);
  if (result != CUDA_SUCCESS) return result;
  if (r.devPtr == 0 || !is_aligned(r.devPtr, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT) ||
      r.width == 0 || r.height == 0 ||
      !is_aligned(r.pitchInBytes, CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT) ||
      exceeds(r.width, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH) ||
      exceeds(r.height, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT) ||
      exceeds(r.pitchInBytes, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH) ||
      r.pitchInBytes < r.width * out->format.element_bytes())
    return CUDA_ERROR_INVALID_VALUE;
  out->levels = {{r.devPtr, linear(r.pitchInBytes, r.height), static_cast<uint32_t>(r.width),
                  static_cast<uint32_t>(r.height)}};
  return CUDA_SUCCESS;
}

/// `*whole` stays as it is for linear memory.
CUresult of_resource(const CUDA_RESOURCE_DESC& resource, Image* out,
                     CUDA_ARRAY3D_DESCRIPTOR* whole) {
  if (resource.flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Driver& driver = Driver::instance();
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY: {
      const auto array = driver.arrays.find(resource.res.array.hArray);
      if (!array) return CUDA_ERROR_INVALID_VALUE;
      *whole = array->descriptor;
      add_shape(*array, out);
      out->levels = {level_of(*array)};
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
      const auto mipmap = driver.mipmapped_arrays.find(resource.res.mipmap.hMipmappedArray);
      if (!mipmap) return CUDA_ERROR_INVALID_VALUE;
      *whole = mipmap->descriptor;
      add_shape(*mipmap->levels.front(), out);
      for (const auto& level : mipmap->levels) out->levels.push_back(level_of(*level));
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_LINEAR:
      return of_linear(resource, out);
    case CU_RESOURCE_TYPE_PITCH2D:
      return of_rows(resource, out);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult find_view_format(CUresourceViewFormat format, Format* out) {
  using Channel = Format::Channel;
  // In the order of the enumeration, each with one, two and four channels.
  constexpr Format KINDS[] = {{Channel::UNSIGNED, 1, 0}, {Channel::SIGNED, 1, 0},
                              {Channel::UNSIGNED, 2, 0}, {Channel::SIGNED, 2, 0},
                              {Channel::UNSIGNED, 4, 0}, {Channel::SIGNED, 4, 0},
                              {Channel::FLOAT, 2, 0},    {Channel::FLOAT, 4, 0}};
  if (format < CU_RES_VIEW_FORMAT_UINT_1X8) return CUDA_ERROR_INVALID_VALUE;
  const unsigned i = format - CU_RES_VIEW_FORMAT_UINT_1X8;
  if (i >= 3 * std::size(KINDS)) return CUDA_ERROR_NOT_SUPPORTED;
  *out = KINDS[i / 3];
  out->n_channels = static_cast<uint8_t>(1u << i % 3);
  return CUDA_SUCCESS;
}

CUresult apply_view(const CUDA_RESOURCE_VIEW_DESC& view, const CUDA_ARRAY3D_DESCRIPTOR& whole,
                    Image* out) {
  if (whole.Width == 0) return CUDA_ERROR_INVALID_VALUE;  // linear memory has no views
  if (view.format != CU_RES_VIEW_FORMAT_NONE) {
    Format format;
    const CUresult result = find_view_format(view.format, &format);
    if (result != CUDA_SUCCESS) return result;
    if (format.element_bytes() != out->format.element_bytes()) return CUDA_ERROR_INVALID_VALUE;
    out->format = format;
  }
  const bool is_of_layers = out->is_layered || out->is_cubemap;
  if (view.width != whole.Width || view.height != whole.Height || view.depth != whole.Depth ||
      view.firstMipmapLevel > view.lastMipmapLevel || view.firstLayer > view.lastLayer ||
      view.lastMipmapLevel >= out->levels.size() ||
      view.lastLayer >= (is_of_layers ? out->n_layers : 1))
    return CUDA_ERROR_INVALID_VALUE;
  out->levels = {out->levels.begin() + view.firstMipmapLevel,
                 out->levels.begin() + view.lastMipmapLevel + 1};
  for (Level& level : out->levels) level.address += view.firstLayer * level.tiling.layer_bytes();
  if (is_of_layers) out->n_layers = view.lastLayer - view.firstLayer + 1;
  if (out->is_cubemap && out->n_layers % 6 != 0) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult apply_sampler(const CUDA_TEXTURE_DESC& t, bool is_mipmapped, Image* out) {
  using Channel = Format::Channel;
  if (t.flags & ~SAMPLING_FLAGS) return CUDA_ERROR_INVALID_VALUE;
  if (t.maxAnisotropy > 1) return CUDA_ERROR_NOT_SUPPORTED;
  Sampler& s = out->sampler;
  s.normalized = t.flags & CU_TRSF_NORMALIZED_COORDINATES;
  s.seamless = t.flags & CU_TRSF_SEAMLESS_CUBEMAP;
  if (s.seamless && !out->is_cubemap) return CUDA_ERROR_INVALID_VALUE;
  // A driver makes such objects; what they read is not written down.
  if (is_mipmapped && !s.normalized) return CUDA_ERROR_NOT_SUPPORTED;
  for (int i = 0; i < 3; ++i) {
    if (t.addressMode[i] > CU_TR_ADDRESS_MODE_BORDER) return CUDA_ERROR_INVALID_VALUE;
    // The other two have a meaning for normalised coordinates only; seamless cubemaps have none.
    const bool is_free = s.normalized || t.addressMode[i] == CU_TR_ADDRESS_MODE_BORDER;
    s.address[i] = is_free && !s.seamless ? t.addressMode[i] : CU_TR_ADDRESS_MODE_CLAMP;
  }
  if (t.filterMode > CU_TR_FILTER_MODE_LINEAR || t.mipmapFilterMode > CU_TR_FILTER_MODE_LINEAR)
    return CUDA_ERROR_INVALID_VALUE;
  const bool is_integer =
      out->format.channel == Channel::UNSIGNED || out->format.channel == Channel::SIGNED;
  s.as_integer =
      is_integer && (out->format.channel_bytes == 4 || (t.flags & CU_TRSF_READ_AS_INTEGER));
  s.linear = t.filterMode == CU_TR_FILTER_MODE_LINEAR && !out->is_table;
  if (s.linear && s.as_integer) return CUDA_ERROR_INVALID_VALUE;
  s.linear_between_levels = t.mipmapFilterMode == CU_TR_FILTER_MODE_LINEAR && !s.as_integer;
  s.srgb = t.flags & CU_TRSF_SRGB;
  const bool has_srgb =
      out->format.channel_bytes == 1 &&
      (out->format.channel == Channel::UNSIGNED || out->format.channel == Channel::UNORM);
  if (s.srgb && (s.as_integer || !has_srgb)) return CUDA_ERROR_NOT_SUPPORTED;
  s.bias = t.mipmapLevelBias;
  s.min_level = t.minMipmapLevelClamp;
  s.max_level = t.maxMipmapLevelClamp;
  std::copy_n(t.borderColor, 4, s.border);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult make_texture(const CUDA_RESOURCE_DESC& resource, const CUDA_TEXTURE_DESC& texture,
                      const CUDA_RESOURCE_VIEW_DESC* view, Image* out) {
  CUDA_ARRAY3D_DESCRIPTOR whole{};
  CUresult result = of_resource(resource, out, &whole);
  if (result == CUDA_SUCCESS && view) result = apply_view(*view, whole, out);
  if (result != CUDA_SUCCESS) return result;
  return apply_sampler(texture, resource.resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY, out);
}

CUresult make_surface(const CUDA_RESOURCE_DESC& resource, Image* out) {
  CUDA_ARRAY3D_DESCRIPTOR whole{};
  if (resource.resType != CU_RESOURCE_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = of_resource(resource, out, &whole);
  if (result != CUDA_SUCCESS) return result;
  out->is_surface = true;  // whether or not the array has CUDA_ARRAY3D_SURFACE_LDST (driver 580)
  return CUDA_SUCCESS;
}

uint64_t Images::add(std::shared_ptr<const ImageObject> object) {
  std::lock_guard lock(mutex_);
  auto fresh = std::make_shared<ImageTable>(*table_);
  fresh->emplace(next_, std::move(object));
  table_ = std::move(fresh);
  return next_++;
}

std::shared_ptr<const ImageObject> Images::find(uint64_t handle) const {
  const auto table = all();
  const auto found = table->find(handle);
  return found == table->end() ? nullptr : found->second;
}

bool Images::remove(uint64_t handle) {
  std::lock_guard lock(mutex_);
  auto fresh = std::make_shared<ImageTable>(*table_);
  const bool was_there = fresh->erase(handle) != 0;
  table_ = std::move(fresh);
  return was_there;
}

void Images::forget(const Context& context) {
  std::lock_guard lock(mutex_);
  auto fresh = std::make_shared<ImageTable>(*table_);
  std::erase_if(*fresh, [&](const auto& item) { return &item.second->context == &context; });
  table_ = std::move(fresh);
}

std::shared_ptr<const ImageTable> Images::all() const {
  std::lock_guard lock(mutex_);
  return table_;
}

}  // namespace software_gpu
