// SPDX-License-Identifier: Apache-2.0
// How long is the image behind a pointer? Fat binary (with or without wrapper), cubin, or PTX text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace kvgpu::guest {

struct ImageBytes {
  const std::byte* data;
  uint64_t bytes;
};

// Nothing: not an image that is known.
std::optional<ImageBytes> measure_image(const void* image);

}  // namespace kvgpu::guest
