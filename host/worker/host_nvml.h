// SPDX-License-Identifier: Apache-2.0
// The host's NVML, loaded when it is asked for.
#pragma once

#include <dlfcn.h>

#include <string>

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

namespace kvgpu::worker {

// Functions of the loaded library, by name: one that is missing reads as not supported.
class Nvml {
 public:
  [[nodiscard]] bool load(const std::string& path) {
    library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    return library_ != nullptr;
  }
  template <typename... Args>
  nvmlReturn_t call(const char* name, Args... args) const {
    const auto function = reinterpret_cast<nvmlReturn_t (*)(Args...)>(dlsym(library_, name));
    return function == nullptr ? NVML_ERROR_FUNCTION_NOT_FOUND : function(args...);
  }

 private:
  void* library_ = nullptr;
};

}  // namespace kvgpu::worker
