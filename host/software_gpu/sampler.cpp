// SPDX-License-Identifier: Apache-2.0
// CUDA C++ Programming Guide, "Texture Fetching", says what is computed here.
#include "sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "half.h"

namespace software_gpu {
namespace {

constexpr int64_t WEIGHT_ONE = 256;  // a filter's weights have 8 bits of fraction
constexpr double MAX_COORDINATE = 1e9;

/// A number that can be an index: NaN counts as 0.
double bounded(double x) {
  return std::isnan(x) ? 0 : std::clamp(x, -MAX_COORDINATE, MAX_COORDINATE);
}

int64_t modulo(int64_t a, int64_t n) { return (a % n + n) % n; }

/// The index that is read in place of `i`; -1: the border.
int64_t address(CUaddress_mode mode, int64_t i, int64_t n) {
  switch (mode) {
    case CU_TR_ADDRESS_MODE_WRAP:
      return modulo(i, n);
    case CU_TR_ADDRESS_MODE_MIRROR: {
      const int64_t in_pair = modulo(i, 2 * n);
      return in_pair < n ? in_pair : 2 * n - 1 - in_pair;
    }
    case CU_TR_ADDRESS_MODE_BORDER:
      return i >= 0 && i < n ? i : -1;
    default:
      return std::clamp<int64_t>(i, 0, n - 1);
  }
}

float from_srgb(float value) {
  return value <= 0.04045f ? value / 12.92f : std::pow((value + 0.055f) / 1.055f, 2.4f);
}

float value_of(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

template <class T>
T read(const char* from) {
  T value;
  memcpy(&value, from, sizeof value);
  return value;
}

/// An integer channel, extended to 32 bits.
int64_t integer(const char* from, uint32_t n_bytes, bool is_signed) {
  if (n_bytes == 1) return is_signed ? read<int8_t>(from) : read<uint8_t>(from);
  if (n_bytes == 2) return is_signed ? read<int16_t>(from) : read<uint16_t>(from);
  return is_signed ? read<int32_t>(from) : read<uint32_t>(from);
}

}  // namespace

BoundImage::BoundImage(const Image& image, const Snapshot& memory) : image_(image) {
  for (const Level& level : image.levels) {
    const Allocation* const there = memory.find(level.address);
    const bool is_same = there && (level.buffer_id == 0 || level.buffer_id == there->buffer_id);
    n_bytes_.push_back(is_same ? there->size_bytes - (level.address - there->base) : 0);
  }
}

Texel BoundImage::convert(const char* element) const {
  using Channel = Format::Channel;
  const Format& format = image_.format;
  const bool is_signed = format.channel == Channel::SIGNED || format.channel == Channel::SNORM;
  const Sampler& s = image_.sampler;
  Texel texel = {0, 0, 0, s.as_integer ? 1 : bits_of(1.0f)};
  for (uint32_t i = 0; i < format.n_channels; ++i) {
    const char* const from = element + i * format.channel_bytes;
    if (format.channel == Channel::FLOAT) {
      texel[i] =
          format.channel_bytes == 4 ? read<uint32_t>(from) : bits_of(Half{read<uint16_t>(from)});
      continue;
    }
    const int64_t value = integer(from, format.channel_bytes, is_signed);
    if (s.as_integer) {
      texel[i] = static_cast<uint32_t>(value);
      continue;
    }
    const double most = std::ldexp(1.0, 8 * format.channel_bytes - (is_signed ? 1 : 0)) - 1;
    float normalized = static_cast<float>(std::max(static_cast<double>(value) / most, -1.0));
    if (s.srgb && i < 3) normalized = from_srgb(normalized);
    texel[i] = bits_of(normalized);
  }
  return texel;
}

/// CUDA 13.0, cuTexRefSetBorderColor: integers are there as bits, too.
Texel BoundImage::border() const {
  Texel texel;
  std::ranges::transform(image_.sampler.border, texel.begin(), bits_of);
  return texel;
}

char* BoundImage::bytes(uint64_t x_bytes, uint64_t y, uint64_t slice, uint32_t n_bytes) const {
  const Level& level = image_.levels.front();
  const uint64_t offset = slice * level.slice_bytes + y * level.pitch_bytes + x_bytes;
  if (offset > n_bytes_.front() || n_bytes > n_bytes_.front() - offset) return nullptr;
  return reinterpret_cast<char*>(level.address + offset);
}

std::optional<Texel> BoundImage::texel(size_t which, const int64_t (&index)[3],
                                       uint32_t n_dimensions, uint32_t slice) {
  const Level& level = image_.levels[which];
  const uint32_t lengths[3] = {level.width, level.height, level.depth};
  uint64_t at[3] = {};
  for (uint32_t d = 0; d < n_dimensions; ++d) {
    const int64_t i = address(image_.sampler.address[d], index[d], lengths[d]);
    if (i < 0) return std::nullopt;
    at[d] = static_cast<uint64_t>(i);
  }
  const uint32_t element_bytes = image_.format.element_bytes();
  const uint64_t offset =
      (at[2] + slice) * level.slice_bytes + at[1] * level.pitch_bytes + at[0] * element_bytes;
  if (offset > n_bytes_[which] || element_bytes > n_bytes_[which] - offset) {
    is_gone_ = true;
    return std::nullopt;
  }
  return convert(reinterpret_cast<const char*>(level.address + offset));
}

BoundImage::Footprint BoundImage::footprint(const Position& p, size_t which, bool linear) const {
  const Level& level = image_.levels[which];
  const uint32_t lengths[3] = {level.width, level.height, level.depth};
  Footprint result;
  for (uint32_t d = 0; d < p.n_dimensions; ++d) {
    double x = p.at[d];
    if (image_.sampler.normalized || image_.is_cubemap) x *= lengths[d];
    x = bounded(x);
    if (!linear) {
      result.first[d] = static_cast<int64_t>(std::floor(x));
      continue;
    }
    const auto fixed = static_cast<int64_t>(std::floor((x - 0.5) * WEIGHT_ONE + 0.5));
    result.first[d] = fixed >> 8;
    result.fraction[d] = static_cast<uint32_t>(fixed & (WEIGHT_ONE - 1));
  }
  result.slice = std::min(p.layer, image_.n_layers - 1);
  return result;
}

std::optional<Texel> BoundImage::sample_level(const Position& p, size_t level) {
  const bool linear = image_.sampler.linear;
  const Footprint f = footprint(p, level, linear);
  const auto read_at = [&](const int64_t (&index)[3]) {
    const auto there = texel(level, index, p.n_dimensions, f.slice);
    return there ? *there : border();
  };
  if (!linear) {
    const Texel result = read_at(f.first);
    return is_gone_ ? std::nullopt : std::optional(result);
  }
  double sums[4] = {};
  for (uint32_t corner = 0; corner < 1u << p.n_dimensions; ++corner) {
    int64_t index[3] = {f.first[0], f.first[1], f.first[2]};
    double weight = 1;
    for (uint32_t d = 0; d < p.n_dimensions; ++d) {
      const bool next = corner >> d & 1;
      index[d] += next;
      weight *= static_cast<double>(next ? f.fraction[d] : WEIGHT_ONE - f.fraction[d]) / WEIGHT_ONE;
    }
    if (weight == 0) continue;
    const Texel there = read_at(index);
    for (size_t i = 0; i < 4; ++i) sums[i] += weight * static_cast<double>(value_of(there[i]));
  }
  Texel result;
  for (size_t i = 0; i < 4; ++i) result[i] = bits_of(static_cast<float>(sums[i]));
  return is_gone_ ? std::nullopt : std::optional(result);
}

std::optional<Texel> BoundImage::sample(const Position& position) {
  is_gone_ = false;
  const Sampler& s = image_.sampler;
  const Position p = position.is_direction ? on_face(position) : position;
  const size_t last = image_.levels.size() - 1;
  if (last == 0) return sample_level(p, 0);
  const double clamped = std::min<double>(
      std::max<double>(bounded(double{p.level} + double{s.bias}), s.min_level), s.max_level);
  const double level = std::clamp(clamped, 0.0, static_cast<double>(last));
  if (!s.linear_between_levels) return sample_level(p, static_cast<size_t>(level + 0.5));
  const auto fixed = static_cast<uint64_t>(level * WEIGHT_ONE + 0.5);
  const size_t first = fixed / WEIGHT_ONE;
  const double weight = static_cast<double>(fixed % WEIGHT_ONE) / WEIGHT_ONE;
  const auto near = sample_level(p, first);
  if (!near || weight == 0) return near;
  const auto far = sample_level(p, first + 1);
  if (!far) return far;
  Texel result;
  for (size_t i = 0; i < 4; ++i)
    result[i] =
        bits_of(static_cast<float>((1 - weight) * static_cast<double>(value_of((*near)[i])) +
                                   weight * static_cast<double>(value_of((*far)[i]))));
  return result;
}

std::optional<Texel> BoundImage::fetch(int32_t index) {
  is_gone_ = false;
  if (image_.is_table && (index < 0 || static_cast<uint32_t>(index) >= image_.levels[0].width))
    return Texel{};
  const int64_t at[3] = {index, 0, 0};
  const auto there = texel(0, at, 1, 0);
  if (is_gone_) return std::nullopt;
  return there ? *there : border();
}

std::optional<Texel> BoundImage::gather(const Position& p, unsigned channel) {
  is_gone_ = false;
  const Footprint f = footprint(p, 0, true);
  constexpr int CORNERS[4][2] = {{0, 1}, {1, 1}, {1, 0}, {0, 0}};
  Texel result;
  for (size_t i = 0; i < 4; ++i) {
    const int64_t at[3] = {f.first[0] + CORNERS[i][0], f.first[1] + CORNERS[i][1], 0};
    const auto there = texel(0, at, p.n_dimensions, f.slice);
    result[i] = (there ? *there : border())[channel];
  }
  return is_gone_ ? std::nullopt : std::optional(result);
}

/// The guide's table of faces, in the order of CUarray_cubemap_face.
Position BoundImage::on_face(const Position& direction) const {
  const auto [x, y, z] = direction.at;
  const float ax = std::fabs(x), ay = std::fabs(y), az = std::fabs(z);
  uint32_t face;
  float s, t, m;
  if (ax >= ay && ax >= az) {
    face = x < 0 ? 1 : 0;
    m = ax, s = x < 0 ? z : -z, t = -y;
  } else if (ay >= az) {
    face = y < 0 ? 3 : 2;
    m = ay, s = x, t = y < 0 ? -z : z;
  } else {
    face = z < 0 ? 5 : 4;
    m = az, s = z < 0 ? -x : x, t = -y;
  }
  Position p = direction;
  p.n_dimensions = 2;
  p.at[0] = (s / m + 1) / 2;
  p.at[1] = (t / m + 1) / 2;
  p.at[2] = 0;
  p.layer = std::min(direction.layer, image_.n_layers / 6 - 1) * 6 + face;
  return p;
}

}  // namespace software_gpu
