// SPDX-License-Identifier: Apache-2.0
#include "objects.h"

#include "memory_map.h"

namespace kvgpu::guest {

Tables& tables() {
  static auto& all = *new Tables;
  return all;
}

void forget(wire::Handle handle) {
  switch (wire::handle_kind(handle)) {
    case wire::Kind::MODULE: {
      // Its functions go with it, and the module that cuLibraryGetModule gave.
      Module* module = tables().modules.find(handle);
      if (module == nullptr) return;
      {
        const std::lock_guard lock(module->mutex);
        for (const auto& [name, function] : module->functions) tables().functions.remove(function);
      }
      if (module->module_of_library != 0) forget(module->module_of_library);
      memory_map().forget_module(handle);
      tables().modules.remove(handle);
      return;
    }
    case wire::Kind::GRAPH:
      tables().graphs.remove(handle);
      return;
    case wire::Kind::GRAPH_EXEC:
      tables().graph_execs.remove(handle);
      return;
    case wire::Kind::MEM_POOL:
      tables().mem_pools.remove(handle);
      return;
    default:
      return;
  }
}

}  // namespace kvgpu::guest
