// SPDX-License-Identifier: Apache-2.0
// The libnvidia-ml.so.1 that the loader finds, whoever's it is.
#pragma once

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <string>

namespace kvgpu::smi {

class Nvml {
 public:
  // Loads and initialises it; else says why not, and what to do.
  [[nodiscard]] bool start(std::string* problem);
  ~Nvml();

  template <typename... Args>
  nvmlReturn_t call(const char* name, Args... args) const {
    const auto function = reinterpret_cast<nvmlReturn_t (*)(Args...)>(find(name));
    return function == nullptr ? NVML_ERROR_FUNCTION_NOT_FOUND : function(args...);
  }

 private:
  void* find(const char* name) const;

  void* library_ = nullptr;
  bool started_ = false;
};

}  // namespace kvgpu::smi
