// SPDX-License-Identifier: Apache-2.0
// What can be told about an image without the driver.
#pragma once

#include <cstddef>
#include <span>

namespace kvgpu::worker {

// May code of this image print (printf, assert)? Where it cannot be told (an unknown compression),
// yes.
bool may_print(std::span<const std::byte> image);

// Is it a fat binary without its wrapper?
bool is_fatbin(std::span<const std::byte> image);

// Do the sizes and offsets inside a fat binary or an ELF image stay inside it?
bool is_whole(std::span<const std::byte> image);

}  // namespace kvgpu::worker
