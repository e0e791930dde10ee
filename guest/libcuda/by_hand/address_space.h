// SPDX-License-Identifier: Apache-2.0
// Keeps the addresses of device and session memory free in this process (PROTOCOL.md §2.2), so that
// each device address is unique here, as UVA promises.
#pragma once

#include <cstdint>

namespace kvgpu::guest {

// Done once, when the library is loaded. Returns the window, 0 where no candidate is free.
uint64_t reserve_address_space();

// Is the range inside of what was reserved for device memory?
bool is_reserved_for_devices(uint64_t address, uint64_t len_bytes);

// Maps `len_bytes` of the region at window + offset. False with errno set.
bool map_region(int fd, uint64_t region_off, uint64_t len_bytes);

}  // namespace kvgpu::guest
