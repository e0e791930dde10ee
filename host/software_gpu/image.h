// SPDX-License-Identifier: Apache-2.0
// Images: what texture and surface instructions see of memory. A handle that a kernel uses names
// one; a launch has tables of those that it may use, as it has a snapshot of memory.
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "array.h"

namespace software_gpu {

struct Level {
  uint64_t address = 0;
  Tiling tiling;
  uint32_t width = 1, height = 1, depth = 1;  // of what has layers: of one of them
  uint64_t buffer_id = 0;                     // of an array's memory; 0: what is at the address
  std::weak_ptr<const Tiles> mapped_later{};  // where nothing is to be read before
};

struct Sampler {
  CUaddress_mode address[3] = {};
  bool linear = false, linear_between_levels = false;
  bool normalized = false;  // coordinates
  bool as_integer = false;  // else values are floats
  bool srgb = false;
  bool seamless = false;  // cubemap: a filter's neighbours may be on another face
  float bias = 0, min_level = 0, max_level = 0;
  float border[4] = {};
};

struct Image {
  bool is_surface = false;
  bool is_table = false;  // linear memory: 0 beyond its ends
  Format format;
  uint32_t n_layers = 1;  // a cubemap's faces are layers, too
  bool is_layered = false, is_cubemap = false;
  std::vector<Level> levels;
  Sampler sampler;
};

/// A texture or surface object, or what a reference was bound to when a kernel was launched.
struct ImageObject {
  Context& context;
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC texture{};
  CUDA_RESOURCE_VIEW_DESC view{};
  bool has_view = false;
  Image image{};
};

[[nodiscard]] CUresult make_texture(const CUDA_RESOURCE_DESC& resource,
                                    const CUDA_TEXTURE_DESC& texture,
                                    const CUDA_RESOURCE_VIEW_DESC* view, Image* out);
[[nodiscard]] CUresult make_surface(const CUDA_RESOURCE_DESC& resource, Image* out);

/// By the value that kernels get.
using ImageTable = std::map<uint64_t, std::shared_ptr<const ImageObject>>;

/// The objects of the process. Thread-safe.
class Images {
 public:
  uint64_t add(std::shared_ptr<const ImageObject> object);
  std::shared_ptr<const ImageObject> find(uint64_t handle) const;
  bool remove(uint64_t handle);
  void forget(const Context& context);
  /// Those that there are now; never changes.
  std::shared_ptr<const ImageTable> all() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const ImageTable> table_ = std::make_shared<ImageTable>();
  uint64_t next_ = 1;
};

}  // namespace software_gpu
