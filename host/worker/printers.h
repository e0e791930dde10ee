// SPDX-License-Identifier: Apache-2.0
// Which kernels of an image may print (printf). Where it cannot be told, they all do.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <unordered_set>

namespace kvgpu::worker {

class Printers {
 public:
  [[nodiscard]] bool any() const { return all_ || !names_.empty(); }
  [[nodiscard]] bool has(const std::string& kernel) const {
    return all_ || names_.contains(kernel);
  }

  // Those of a cubin, or of code that cannot print. False: it cannot be told.
  [[nodiscard]] bool add_code(std::span<const std::byte> code);
  void add_all() { all_ = true; }

 private:
  [[nodiscard]] bool add_cubin(std::span<const std::byte> image);

  bool all_ = false;
  std::unordered_set<std::string> names_;
};

}  // namespace kvgpu::worker
