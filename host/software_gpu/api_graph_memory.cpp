// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "api.h"

namespace software_gpu {

GraphMemory::~GraphMemory() {
  static_cast<void>(memory.release(address, MemoryKind::DEVICE, MemoryKind::DEVICE));
}

CUresult GraphMemories::create(uint64_t n_bytes, std::shared_ptr<GraphMemory>* created) {
  uint64_t address = 0;
  RETURN_IF_FAILED(memory_.allocate(n_bytes, MemoryKind::DEVICE, 0, &address));
  *created = std::make_shared<GraphMemory>(memory_, address, n_bytes);
  std::lock_guard lock(mutex_);
  known_[address] = *created;
  reserved_high_ = std::max(reserved_high_, reserved());
  return CUDA_SUCCESS;
}

std::shared_ptr<GraphMemory> GraphMemories::find(uint64_t address) const {
  std::lock_guard lock(mutex_);
  const auto found = known_.find(address);
  return found == known_.end() ? nullptr : found->second.lock();
}

bool GraphMemories::is_allocated(const GraphMemory& memory) const {
  std::lock_guard lock(mutex_);
  return allocated_.contains(memory.address);
}

void GraphMemories::allocate(const std::shared_ptr<GraphMemory>& memory) {
  std::lock_guard lock(mutex_);
  allocated_[memory->address] = memory;
  used_high_ = std::max(used_high_, used());
}

bool GraphMemories::free(const GraphMemory& memory) {
  std::shared_ptr<GraphMemory> freed;  // may be the last to hold it
  std::lock_guard lock(mutex_);
  const auto found = allocated_.find(memory.address);
  if (found == allocated_.end()) return false;
  freed = std::move(found->second);
  allocated_.erase(found);
  return true;
}

uint64_t GraphMemories::reserved() const {
  uint64_t sum = 0;
  for (const auto& [address, weak] : known_)
    if (const auto memory = weak.lock()) sum += memory->n_bytes;
  return sum;
}

uint64_t GraphMemories::used() const {
  uint64_t sum = 0;
  for (const auto& [address, memory] : allocated_) sum += memory->n_bytes;
  return sum;
}

CUresult GraphMemories::get(CUgraphMem_attribute attribute, uint64_t* value) const {
  std::lock_guard lock(mutex_);
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      *value = used();
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      *value = used_high_;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      *value = reserved();
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      *value = reserved_high_;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult GraphMemories::set(CUgraphMem_attribute attribute, uint64_t value) {
  std::lock_guard lock(mutex_);
  if (value != 0) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
    used_high_ = used();
  else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
    reserved_high_ = reserved();
  else
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult make_alloc(const CUDA_MEM_ALLOC_NODE_PARAMS& p, Operation* operation) {
  const CUmemPoolProps& pool = p.poolProps;
  Device* const device = Driver::instance().device(pool.location.id);
  if (pool.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || pool.handleTypes != 0 || !device ||
      pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE || p.bytesize == 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < p.accessDescCount; ++i)
    if (!p.accessDescs || p.accessDescs[i].location.id != pool.location.id)
      return CUDA_ERROR_INVALID_VALUE;
  auto params = std::make_shared<NodeParams>();
  params->access.assign(p.accessDescs, p.accessDescs + p.accessDescCount);
  RETURN_IF_FAILED(device->graph_memories.create(p.bytesize, &params->memory));
  params->alloc = p;
  params->alloc.accessDescs = params->access.empty() ? nullptr : params->access.data();
  params->alloc.dptr = params->memory->address;
  operation->type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  operation->params = std::move(params);
  return CUDA_SUCCESS;
}

CUresult make_free(Device& device, const Graph& graph, CUdeviceptr address, Operation* operation) {
  auto params = std::make_shared<NodeParams>();
  params->memory = device.graph_memories.find(address);
  if (!params->memory) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& node : graph.nodes)
    if (node->operation.type == CU_GRAPH_NODE_TYPE_MEM_FREE &&
        node->operation.params->memory == params->memory)
      return CUDA_ERROR_INVALID_VALUE;
  operation->type = CU_GRAPH_NODE_TYPE_MEM_FREE;
  operation->params = std::move(params);
  return CUDA_SUCCESS;
}

bool has_memory(const Graph& graph) {
  return std::ranges::any_of(graph.nodes, [](const auto& node) {
    return node->operation.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
           node->operation.type == CU_GRAPH_NODE_TYPE_MEM_FREE;
  });
}

CUresult allocate_for_launch(Device& device, const GraphExec& exec) {
  GraphMemories& memories = device.graph_memories;
  for (const auto& node : exec.graph->nodes) {
    if (node->operation.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) continue;
    const GraphMemory& memory = *node->operation.params->memory;
    if (!memories.is_allocated(memory)) continue;
    if (!exec.frees_on_launch) return CUDA_ERROR_INVALID_VALUE;
    memories.free(memory);
  }
  for (const GraphNode* node : exec.graph->in_order()) {
    if (node->operation.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
      memories.allocate(node->operation.params->memory);
    else if (node->operation.type == CU_GRAPH_NODE_TYPE_MEM_FREE)
      memories.free(*node->operation.params->memory);
  }
  return CUDA_SUCCESS;
}

}  // namespace software_gpu

using namespace software_gpu;

SOFTWARE_GPU_API cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute,
                                              void* value) {
  Device* device;
  RETURN_IF_FAILED(find(ordinal, &device));
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  return device->graph_memories.get(attribute, static_cast<cuuint64_t*>(value));
}

SOFTWARE_GPU_API cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute,
                                              void* value) {
  Device* device;
  RETURN_IF_FAILED(find(ordinal, &device));
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  return device->graph_memories.set(attribute, *static_cast<cuuint64_t*>(value));
}

SOFTWARE_GPU_API cuDeviceGraphMemTrim(CUdevice ordinal) {
  Device* device;
  return find(ordinal, &device);  // nothing is kept that no graph can allocate
}
