// SPDX-License-Identifier: Apache-2.0
// Texture and surface references: images that a module names and a program binds to memory.
#pragma once

#include <cuda.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "image.h"

namespace software_gpu {

struct LoadedModule;

/// What CUtexref points to.
struct TextureReference {
  Context& context;
  const uint64_t address = 0;  // of the variable: what kernels get; 0: of no module
  std::mutex mutex{};          // of what follows
  bool is_bound = false;
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC texture{};
  CUarray_format format = CU_AD_FORMAT_FLOAT;
  unsigned n_channels = 1;
};

/// What CUsurfref points to.
struct SurfaceReference {
  Context& context;
  const uint64_t address = 0;
  std::atomic<CUarray> array = nullptr;
};

/// Make the handles of the references of a module that has just been loaded, or forget them.
void add_references(LoadedModule& module);
void forget_references(const LoadedModule& module);

/// The images that a launch of the module's kernel may use: what its references are bound to now,
/// and the objects that there are now.
std::vector<std::shared_ptr<const ImageTable>> images_of(const LoadedModule& module);

}  // namespace software_gpu
