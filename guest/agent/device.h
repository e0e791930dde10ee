// SPDX-License-Identifier: Apache-2.0
// Finds what the host gave this VM: the shared region (ivshmem BAR 2) and the virtio-serial port.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "unique_fd.h"

namespace kvgpu::agent {

struct Region {
  UniqueFd fd;  // read-write; clients get a copy of it
  // BAR 0 with the doorbell register, for clients, too. None where that page has another device's
  // registers as well.
  UniqueFd registers;
  uint64_t size_bytes = 0;
  std::string path;
};

// Opens the BAR 2 that begins with kvgpu's superblock, of the PCI devices in the folder DEVICES, or
// PATH if it is not empty. Write-combining where the processor does not cache it, which is measured
// unless KVGPU_MEMORY_TYPE=wb|wc|uc says it. Without one, `problem` says why and what to do.
std::optional<Region> open_region(const std::string& path, const std::string& devices,
                                  std::string* problem);

// Whether the file at `path` still is the one that `fd` is open on: devices are unplugged, and
// others may get their names.
bool is_same_file(int fd, const std::string& path);

// Also if it is not kvgpu's, or cannot be read.
bool has_ivshmem_device(const std::string& devices);

struct WorkerState {
  uint64_t beat = 0;
  bool ended = false;
};

// What a session's worker says of itself in the block at `block_offset`; empty: cannot be read.
std::optional<WorkerState> read_worker_state(const Region& region, uint64_t block_offset);

// The device file of the port named org.kvgpu.0; empty if there is none.
std::string find_port();

}  // namespace kvgpu::agent
