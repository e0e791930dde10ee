// SPDX-License-Identifier: Apache-2.0
// What can be told about an image without the driver.
#pragma once

#include <cstddef>
#include <span>

#include "printers.h"

namespace kvgpu::worker {

// All, where it cannot be told (an unknown compression).
Printers printers_of(std::span<const std::byte> image);

// Is it a fat binary without its wrapper?
bool is_fatbin(std::span<const std::byte> image);

// Do the sizes and offsets inside a fat binary or an ELF image stay inside it?
bool is_whole(std::span<const std::byte> image);

}  // namespace kvgpu::worker
