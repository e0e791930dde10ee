// SPDX-License-Identifier: Apache-2.0
// CUDA C++ Programming Guide, "Texture Fetching", says what is computed here.
#include "sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cube.h"
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
    const auto tiles = level.mapped_later.lock();
    const bool is_there = !tiles || tiles->is_sparse() || tiles->is_mapped(level.address);
    n_bytes_.push_back(is_same && is_there ? there->size_bytes - (level.address - there->base) : 0);
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
  const uint64_t offset = level.tiling.offset(x_bytes, y, slice);
  if (offset > n_bytes_.front() || n_bytes > n_bytes_.front() - offset) return nullptr;
  return reinterpret_cast<char*>(level.address + offset);
}

bool BoundImage::is_hole(const char* bytes) const {
  const auto tiles = image_.levels.front().mapped_later.lock();
  return tiles && tiles->is_sparse() && !tiles->is_mapped(reinterpret_cast<uint64_t>(bytes));
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
  const uint64_t offset = level.tiling.offset(at[0] * element_bytes, at[1], at[2] + slice);
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

int BoundImage::n_beyond_edges(const int64_t (&index)[3], size_t which) const {
  const int64_t n = image_.levels[which].width;
  const auto is_beyond = [n](int64_t i) { return i < 0 || i >= n ? 1 : 0; };
  return is_beyond(index[0]) + is_beyond(index[1]);
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
  double sums[4] = {}, total = 0;
  for (uint32_t corner = 0; corner < 1u << p.n_dimensions; ++corner) {
    int64_t index[3] = {f.first[0], f.first[1], f.first[2]};
    double weight = 1;
    for (uint32_t d = 0; d < p.n_dimensions; ++d) {
      const bool next = corner >> d & 1;
      index[d] += next;
      weight *= static_cast<double>(next ? f.fraction[d] : WEIGHT_ONE - f.fraction[d]) / WEIGHT_ONE;
    }
    if (weight == 0) continue;
    const int n_beyond = image_.sampler.seamless ? n_beyond_edges(index, level) : 0;
    if (n_beyond == 2) continue;  // no face has a corner's fourth element
    total += weight;
    const Texel there = n_beyond == 1 ? across_edge(level, index, f.slice) : read_at(index);
    for (size_t i = 0; i < 4; ++i) sums[i] += weight * static_cast<double>(value_of(there[i]));
  }
  Texel result;
  for (size_t i = 0; i < 4; ++i) result[i] = bits_of(static_cast<float>(sums[i] / total));
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
  if (!s.linear_between_levels) return sample_level(p, static_cast<size_t>(std::lround(level)));
  const auto fixed = static_cast<uint64_t>(std::lround(level * WEIGHT_ONE));
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

Position BoundImage::on_face(const Position& direction) const {
  const FacePoint point = on_cube({direction.at[0], direction.at[1], direction.at[2]});
  Position p = direction;
  p.n_dimensions = 2;
  p.at[0] = static_cast<float>((point.s + 1) / 2);
  p.at[1] = static_cast<float>((point.t + 1) / 2);
  p.at[2] = 0;
  p.layer = std::min(direction.layer, image_.n_layers / 6 - 1) * 6 + point.face;
  return p;
}

float BoundImage::level_of(const Position& p, const Gradient& by_x, const Gradient& by_y) const {
  const Level& level = image_.levels.front();
  const double lengths[3] = {1.0 * level.width, 1.0 * level.height, 1.0 * level.depth};
  const auto in_texels = [&](const Gradient& step) {
    if (p.is_direction) {
      const FacePoint move =
          slope({p.at[0], p.at[1], p.at[2]}, {step.along[0], step.along[1], step.along[2]});
      return std::hypot(move.s, move.t) / 2 * lengths[0];
    }
    double squares = 0;
    for (uint32_t d = 0; d < p.n_dimensions; ++d) {
      const double n = double{step.along[d]} * (image_.sampler.normalized ? lengths[d] : 1);
      squares += n * n;
    }
    return std::sqrt(squares);
  };
  return static_cast<float>(std::log2(std::max(in_texels(by_x), in_texels(by_y))));
}

/// What a seamless cubemap has beyond one edge of a face: an element of another one.
Texel BoundImage::across_edge(size_t which, const int64_t (&index)[3], uint32_t slice) {
  const double n = image_.levels[which].width;
  const auto from_index = [n](int64_t i) { return (2 * static_cast<double>(i) + 1) / n - 1; };
  const FacePoint point =
      on_cube(direction_of({slice % 6, from_index(index[0]), from_index(index[1])}));
  const auto to_index = [n](double x) { return static_cast<int64_t>((x + 1) / 2 * n); };
  const int64_t there[3] = {to_index(point.s), to_index(point.t), 0};
  return texel(which, there, 2, slice / 6 * 6 + point.face).value_or(Texel{});
}

}  // namespace software_gpu
