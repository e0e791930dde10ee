// SPDX-License-Identifier: Apache-2.0
#include "objects.h"

#include "managed_memory.h"
#include "memory_map.h"
#include "session.h"

namespace kvgpu::guest {

void DeviceExecs::add(uint64_t device_handle, wire::Handle handle) {
  const std::lock_guard lock(mutex_);
  handles_[device_handle] = handle;
}
void DeviceExecs::remove(uint64_t device_handle) {
  const std::lock_guard lock(mutex_);
  handles_.erase(device_handle);
}
wire::Handle DeviceExecs::find(uint64_t device_handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = handles_.find(device_handle);
  return found == handles_.end() ? 0 : found->second;
}

void forget(wire::Handle handle) {
  switch (wire::handle_kind(handle)) {
    case wire::Kind::MODULE: {
      // What it names goes with it, and the module that cuLibraryGetModule gave.
      Module* module = tables().modules.find(handle);
      if (module == nullptr) return;
      {
        const std::lock_guard lock(module->mutex);
        for (const auto& [name, function] : module->functions) tables().functions.remove(function);
        for (const auto& [name, texture] : module->textures) forget(texture);
        for (const auto& [name, surface] : module->surfaces) forget(surface);
      }
      if (module->module_of_library != 0) forget(module->module_of_library);
      memory_map().forget_module(handle);
      ManagedMemory::get().forget_module(handle);
      tables().modules.remove(handle);
      return;
    }
    case wire::Kind::GRAPH: {
      const Graph* const graph = tables().graphs.find(handle);
      if (graph == nullptr) return;
      for (const uint64_t function : graph->functions) Session::get().release_function(function);
      for (const wire::Handle child : graph->children) forget(child);
      tables().graphs.remove(handle);
      return;
    }
    case wire::Kind::GRAPH_EXEC: {
      const GraphExec* const exec = tables().graph_execs.find(handle);
      if (exec == nullptr) return;
      for (const auto& node : exec->host_nodes) Session::get().release_function(node.function);
      if (exec->device_handle != 0) tables().device_execs.remove(exec->device_handle);
      tables().graph_execs.remove(handle);
      return;
    }
    case wire::Kind::USER_OBJECT:
      tables().user_objects.remove(handle);
      return;
    case wire::Kind::MEM_POOL:
      tables().mem_pools.remove(handle);
      return;
    case wire::Kind::ARRAY: {
      Array* const array = tables().arrays.find(handle);
      if (array == nullptr) return;
      {
        const std::lock_guard lock(array->mutex);
        for (const auto& [index, part] : array->parts) forget(part);
      }
      tables().arrays.remove(handle);
      return;
    }
    case wire::Kind::REFERENCE:
      tables().references.remove(handle);
      return;
    default:
      return;
  }
}

}  // namespace kvgpu::guest
