// SPDX-License-Identifier: Apache-2.0
// Images (fat binary, cubin, PTX) as a program hands them over: a pointer without a length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvgpu::guest {

struct ImageBytes {
  const std::byte* data;
  uint64_t bytes;
};

// What nvcc leaves in a program around a fat binary.
bool is_wrapper(const void* image);

// Nothing: no image, or one that says of itself what cannot be.
std::optional<ImageBytes> measure_image(const void* image);

// The fat binaries that a wrapper's own was linked of: for GPUs that it has no code for. Empty:
// none are listed.
std::vector<ImageBytes> prelinked_images(const void* wrapper);

// What of an image has to be sent for devices of these compute capabilities (majors): of a fat
// binary not the machine code for others, which is most of a library's. Parts that follow one
// another; the first is `head`, where it had to be made anew.
struct LoadableImage {
  std::vector<std::byte> head;
  std::vector<ImageBytes> parts;
};
LoadableImage loadable_parts(const ImageBytes& image, std::span<const int> majors);

// Copies what a program's pointer names, without trusting it: an image that was cut short may claim
// to be longer than what is mapped. False: it is.
bool copy_from_program(void* to, const void* from, size_t bytes);

}  // namespace kvgpu::guest
