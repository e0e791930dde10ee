// SPDX-License-Identifier: Apache-2.0
// Nodes that allocate and free, and what graphs have of a device's memory.
#include <cstring>

#include "address_space.h"
#include "generated/api.gen.h"
#include "graphs.h"
#include "log.h"
#include "memory_map.h"
#include "pools.h"

namespace kvgpu::guest {

namespace {

struct AllocFound {
  wire::GraphNodeFound head;
  wire::MemAllocFound body;
  wire::MemAccess access[wire::MAX_MEM_ACCESS];
};
struct FreeFound {
  wire::GraphNodeFound head;
  wire::MemFreeNode body;
};

template <typename T>
CUresult ask(CUgraphNode node, CUgraphNodeType type, T* found) {
  const GraphCall call;
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (!is_live(wire::Kind::GRAPH_NODE, node)) return CUDA_ERROR_INVALID_VALUE;
  const wire::GraphNodeParams body{
      call.context(), to_wire(node), 0, 0, static_cast<uint32_t>(type), 0};
  return call.sync(wire::Op::GRAPH_NODE_PARAMS, body, found);
}

}  // namespace

CUresult NodeBody::alloc(const CUDA_MEM_ALLOC_NODE_PARAMS* p) {
  if (p == nullptr || p->bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
  const CUmemPoolProps& pool = p->poolProps;
  if (const CUresult bad = check_location(&pool.location, pool.allocType)) return bad;
  if (pool.handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_INVALID_VALUE;
  const size_t n = p->accessDescCount;
  if (n > wire::MAX_MEM_ACCESS || (n != 0 && p->accessDescs == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (current_context() == nullptr) {
    context_ = Session::get().devices()[static_cast<size_t>(pool.location.id)].primary;
  }
  memory_bytes_ = p->bytesize;
  put(CU_GRAPH_NODE_TYPE_MEM_ALLOC,
      wire::MemAllocNode{p->bytesize, pool.maxSize, static_cast<uint32_t>(pool.location.id),
                         pool.usage, static_cast<uint32_t>(n), 0});
  for (size_t i = 0; i < n; ++i) {
    const CUmemAccessDesc& access = p->accessDescs[i];
    if (access.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        Session::get().find_device(access.location.id) == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    put(CU_GRAPH_NODE_TYPE_MEM_ALLOC, wire::MemAccess{static_cast<uint32_t>(access.location.id),
                                                      static_cast<uint32_t>(access.flags)});
  }
  return CUDA_SUCCESS;
}

CUresult NodeBody::free(CUdeviceptr dptr) {
  const auto range = memory_map().find(dptr);
  if (!range || range->begin != dptr) return CUDA_ERROR_INVALID_VALUE;
  put(CU_GRAPH_NODE_TYPE_MEM_FREE, wire::MemFreeNode{dptr});
  return CUDA_SUCCESS;
}

CUresult NodeBody::adopt(uint64_t dptr, Context* context) {
  if (!keep_for_devices(dptr, memory_bytes_)) {
    log(Level::WARNING,
        "the device address 0x%llx is not free in this process: the node, which stays in its "
        "graph, is refused",
        static_cast<unsigned long long>(dptr));
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  memory_map().add({dptr, memory_bytes_, MemoryKind::GRAPH, context});
  address_ = dptr;
  return CUDA_SUCCESS;
}

CUresult graph_mem_alloc_node_get_params(CUgraphNode hNode,
                                         CUDA_MEM_ALLOC_NODE_PARAMS* params_out) {
  if (params_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  AllocFound found;
  if (const CUresult bad = ask(hNode, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &found)) return bad;
  Graph* const graph = tables().graphs.find(found.head.graph);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const wire::MemAllocNode& p = found.body.params;
  std::vector<CUmemAccessDesc>& access = graph->memory_access[to_wire(hNode)];
  access.clear();
  for (uint32_t i = 0; i < std::min(p.n_access, wire::MAX_MEM_ACCESS); ++i) {
    CUmemAccessDesc& each = access.emplace_back();
    each.location = {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(found.access[i].device)};
    each.flags = static_cast<CUmemAccess_flags>(found.access[i].flags);
  }
  *params_out = {};
  params_out->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params_out->poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(p.device)};
  params_out->poolProps.maxSize = p.max_bytes;
  params_out->poolProps.usage = static_cast<unsigned short>(p.usage);
  params_out->accessDescs = access.empty() ? nullptr : access.data();
  params_out->accessDescCount = access.size();
  params_out->bytesize = p.bytes;
  params_out->dptr = found.body.dptr;
  return CUDA_SUCCESS;
}

CUresult graph_mem_free_node_get_params(CUgraphNode hNode, CUdeviceptr* dptr_out) {
  if (dptr_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FreeFound found;
  if (const CUresult bad = ask(hNode, CU_GRAPH_NODE_TYPE_MEM_FREE, &found)) return bad;
  *dptr_out = found.body.dptr;
  return CUDA_SUCCESS;
}

CUresult device_get_graph_mem_attribute(CUdevice device, CUgraphMem_attribute attr, void* value) {
  const GraphCall call;
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (Session::get().find_device(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const wire::GraphMemAttribute body{static_cast<uint32_t>(device), static_cast<uint32_t>(attr), 0};
  wire::Value64 out;
  const CUresult result = call.sync(wire::Op::cuDeviceGetGraphMemAttribute, body, &out);
  if (result == CUDA_SUCCESS) std::memcpy(value, &out.value, sizeof out.value);
  return result;
}

CUresult device_set_graph_mem_attribute(CUdevice device, CUgraphMem_attribute attr, void* value) {
  const GraphCall call;
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (Session::get().find_device(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  wire::GraphMemAttribute body{static_cast<uint32_t>(device), static_cast<uint32_t>(attr), 0};
  std::memcpy(&body.value, value, sizeof body.value);
  return call.sync(wire::Op::cuDeviceSetGraphMemAttribute, body);
}

}  // namespace kvgpu::guest
