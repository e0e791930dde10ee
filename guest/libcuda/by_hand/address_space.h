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

// The same of memory that the driver has just allocated. Where it has left those ranges, as it does
// with the fifth pool of a process (280 GiB of addresses each on an H200): keeps the addresses free
// here from now on, for the driver gives them again. False: something else is there.
[[nodiscard]] bool keep_for_devices(uint64_t address, uint64_t len_bytes);

// The driver may reserve addresses for the program elsewhere: keeps them free here, too. False:
// something else is there.
[[nodiscard]] bool reserve_for_devices(uint64_t address, uint64_t len_bytes);
void unreserve_for_devices(uint64_t address, uint64_t len_bytes);

// Maps `len_bytes` of the region at window + offset. False with errno set.
bool map_region(int fd, uint64_t region_off, uint64_t len_bytes);

// Maps what lies at session address `heap` a second time, over whatever is at `address`.
bool map_region_at(uint64_t address, int fd, uint64_t heap, uint64_t len_bytes);
// Keeps the addresses of such a mapping free again.
void hide_region_at(uint64_t address, uint64_t len_bytes);

}  // namespace kvgpu::guest
