// SPDX-License-Identifier: Apache-2.0
// A worker's /dev/shm: a tmpfs that its owner's workers have in common. It is nowhere but in their
// mount namespaces, so it ends with the last of them and nobody has to remove it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "descriptor.h"

namespace kvgpu::worker {

// NVIDIA's driver (580) keeps 80 KiB there for each process that shares events, and the machine
// code that it has compiled from PTX: so the same PTX is compiled once for all of the owner's
// workers.
inline constexpr uint64_t SHM_BYTES = 128ull << 20, SHM_FILES = 8192;
inline constexpr uint64_t COMPUTE_CACHE_BYTES = SHM_BYTES / 2;

// Takes it from the first of `workers`, all of this uid, that has it; one that has only been
// started is waited for. Nothing is found where none of them shows it.
[[nodiscard]] bool find_shared_memory(const std::vector<pid_t>& workers, uid_t uid,
                                      Descriptor* found, std::string* error);

// Mounts what was found, else a new one for this uid.
[[nodiscard]] bool show_shared_memory(const Descriptor& found, uid_t uid, gid_t gid,
                                      const std::filesystem::path& target, std::string* error);

// Before the driver is loaded: by the environment, the only way it takes this. The cache in the
// home folder, which it would choose, is out of a worker's reach.
void keep_compute_cache_there();

}  // namespace kvgpu::worker
