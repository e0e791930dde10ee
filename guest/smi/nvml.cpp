// SPDX-License-Identifier: Apache-2.0
#include "nvml.h"

#include <dlfcn.h>

namespace kvgpu::smi {

bool Nvml::start(std::string* problem) {
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) {
    const char* const why = dlerror();
    *problem = std::string("cannot load libnvidia-ml.so.1: ") + (why != nullptr ? why : "") +
               ". It is in the package kvgpu-guest; in a VM `ldconfig -p` lists it";
    return false;
  }
  const nvmlReturn_t bad = call("nvmlInit_v2");
  started_ = bad == NVML_SUCCESS;
  if (started_) return true;
  const auto text = reinterpret_cast<const char* (*)(nvmlReturn_t)>(find("nvmlErrorString"));
  *problem = std::string("libnvidia-ml.so.1 does not start: ") +
             (text != nullptr ? text(bad) : "unknown error") +
             ". kvgpu-check says which part of the way to the host is broken";
  return false;
}

Nvml::~Nvml() {
  if (started_) (void)call("nvmlShutdown");
}

void* Nvml::find(const char* name) const { return dlsym(library_, name); }

}  // namespace kvgpu::smi
