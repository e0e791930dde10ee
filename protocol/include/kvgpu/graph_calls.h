// SPDX-License-Identifier: Apache-2.0
// Bodies of records about graphs. Append-only within a major version; every struct is free of
// padding. The handle of a graph or an exec is the guest's choice; a node's is the worker's, since
// captures and clones make nodes that the guest has not asked for one by one.
#pragma once

#include <cstdint>

#include "kvgpu/records.h"

namespace kvgpu::wire {

struct GraphCreate {
  Handle context;
  Handle graph;
};
struct GraphClone {
  Handle context;
  Handle graph;
  Handle clone;
};
struct GraphNodeRef {
  Handle context;
  Handle node;
};
struct GraphNodeNamed {
  Handle node;
};
struct GraphMemAttribute {
  uint32_t device;
  uint32_t attribute;
  uint64_t value;  // of cuDeviceSetGraphMemAttribute; cuDeviceGetGraphMemAttribute: the reply
};
struct ConditionalHandleCreate {  // the reply: Value64, the driver's own, since kernels take it
  Handle context;
  Handle graph;
  Handle named;  // the context that the program named
  uint32_t default_value;
  uint32_t flags;
};
struct FindInClone {
  Handle context;
  Handle node;
  Handle clone;
};
struct ChildGraph {  // cuGraphChildGraphNodeGetGraph
  Handle context;
  Handle node;
  Handle graph;  // its name from now on, if it has none
};
struct ChildGraphNamed {
  Handle graph;
  Handle parent;
};

// GRAPH_LIST: the reply is GraphListed and n x GraphEdge; of nodes only `from` is set.
enum class GraphListOf : uint32_t { NODES, ROOTS, EDGES, DEPENDENCIES, DEPENDENTS };
struct GraphList {
  Handle context;
  Handle object;  // graph or node
  uint32_t what;
  uint32_t reserved;
  uint64_t first;  // index
};
struct GraphListed {
  uint64_t n_all;
  uint64_t n;
};
struct GraphEdge {
  Handle from;
  Handle to;
  uint8_t data[8];  // CUDA 13.0 cuda.h: CUgraphEdgeData
};
inline constexpr uint64_t MAX_GRAPH_EDGES = 512;  // of one record

struct GraphEdges {  // cuGraphAddDependencies, cuGraphRemoveDependencies; n x GraphEdge follow
  Handle context;
  Handle graph;
  uint64_t n;
};

// cuStreamGetCaptureInfo. The reply is CaptureState and, while the capture is active, n x
// GraphEdge: the nodes (`from`) that the stream's next one depends on.
struct CaptureInfo {
  Handle stream;
  Handle graph;  // what the capture makes is called so from now on, if it has no name
  uint64_t first;
};
struct CaptureState {
  uint32_t status;  // CUstreamCaptureStatus
  uint32_t reserved;
  uint64_t n_all;
  uint64_t n;
};

struct CaptureDependencies {  // cuStreamUpdateCaptureDependencies; n x GraphEdge (`from`) follow
  Handle stream;
  uint32_t n;
  uint32_t flags;
};
struct CaptureToGraph {  // n x GraphEdge (`from`) follow
  Handle stream;
  Handle graph;
  uint32_t n;
  uint32_t reserved;
};

struct GraphDotPrint {  // of the text [first, first + slab_bytes) goes into the slab
  Handle context;
  Handle graph;
  uint64_t first;
  uint64_t slab_off;
  uint64_t slab_bytes;
  uint32_t flags;
  uint32_t reserved;
};
struct GraphDotPrinted {
  uint64_t n_all_bytes;
  uint64_t n_bytes;
};

struct UserObjectCreate {
  Handle context;
  Handle object;
  uint64_t function;  // the guest's id; a CALLBACK, which nobody waits for, asks for its only run
  uint32_t n_references;
  uint32_t flags;
};

// GRAPH_FUNCTIONS: which host functions a graph runs, child graphs included; as often as it does.
// The reply is GraphListed and n x GraphFunction.
struct GraphFunctions {
  Handle context;
  Handle graph;
  uint64_t first;
};
struct GraphFunction {
  Handle node;
  uint64_t function;
};
inline constexpr uint64_t MAX_GRAPH_FUNCTIONS = 512;

// ---- what a node does, by CUgraphNodeType; `type` names the struct that follows
struct KernelNode {  // followed by param_bytes, or by a u64 with their offset in the slab
  Handle function;
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  uint32_t param_bytes;
  uint32_t params_in;
  uint32_t named;  // in replies: how the driver names the kernel
};
static_assert(sizeof(KernelNode) == 48);
inline constexpr uint32_t NAMED_FUNCTION = 1, NAMED_KERNEL = 2, NAMED_CONTEXT = 4;
struct MemcpySide {
  uint64_t address;  // the handle of an array
  uint64_t x_bytes;
  uint64_t y;
  uint64_t z;
  uint64_t pitch_bytes;
  uint64_t height;
  uint32_t type;  // CUmemorytype
  uint32_t reserved;
};
struct MemcpyNode {
  MemcpySide dst;
  MemcpySide src;
  uint64_t width_bytes;
  uint64_t height;
  uint64_t depth;
};
struct MemsetNode {
  uint64_t dst;
  uint64_t pitch_bytes;
  uint32_t value;
  uint32_t element_bytes;
  uint64_t width;  // elements
  uint64_t height;
};
struct HostNode {
  uint64_t function;  // the guest's id
};
struct MemAllocNode {  // n_access x MemAccess follow; the reply to adding it ends with its address
  uint64_t bytes;
  uint64_t max_bytes;  // of the pool's properties
  uint32_t device;
  uint32_t usage;
  uint32_t n_access;
  uint32_t reserved;
};
struct MemAccess {
  uint32_t device;
  uint32_t flags;
};
inline constexpr uint32_t MAX_MEM_ACCESS = 16;
struct MemAllocFound {  // of GRAPH_NODE_PARAMS; n_access x MemAccess follow
  MemAllocNode params;
  uint64_t dptr;
};
struct MemFreeNode {
  uint64_t dptr;
};
struct BatchNode {  // n x StreamOperation follow
  Handle context;   // in replies
  uint32_t n;
  uint32_t flags;
};
struct ObjectNode {  // a child graph, or the event that is recorded or waited for
  Handle object;
};
struct ConditionalNode {  // n_bodies x Handle follow: what the graphs of its bodies are called
  uint64_t handle;        // as the reply to cuGraphConditionalHandleCreate named it
  uint32_t type;          // CUgraphConditionalNodeType
  uint32_t n_bodies;
};
inline constexpr uint32_t MAX_BODIES = 1024;

struct AddGraphNode {  // n_dependencies x GraphEdge (`from`, data) follow, then what it does
  Handle context;
  Handle graph;
  uint32_t type;
  uint32_t n_dependencies;
};
struct SetGraphNode {  // what it does follows
  Handle context;
  Handle exec;  // 0: of the graph's own node
  Handle node;
  uint32_t type;
  uint32_t reserved;
};
struct GraphNodeParams {  // GRAPH_NODE_PARAMS; the reply is GraphNodeFound and what it does
  Handle context;
  Handle node;
  uint64_t slab_off;  // where a kernel's parameters go that do not fit into the reply
  uint64_t slab_bytes;
  uint32_t type;  // a node of another type is refused
  uint32_t reserved;
};
struct GraphNodeFound {
  Handle graph;
};

// ---- execs
// The reply to an instantiation ends with a Value64 where kernels may launch the exec: what they
// call it, which is the driver's own handle.
struct InstantiateResult {  // the reply to cuGraphInstantiateWithParams; its body: GraphInstantiate
  Handle node;
  uint32_t result;
  uint32_t reserved;
};
struct ExecUpdate {
  Handle context;
  Handle exec;
  Handle graph;
};
struct ExecUpdated {
  Handle node;
  Handle from;
  uint32_t result;
  uint32_t reserved;
};
struct GraphNodeAttribute {
  Handle context;
  Handle node;
  uint32_t id;
  uint32_t reserved;
  uint8_t value[64];
};
struct GraphNodeAttributeValue {
  uint8_t value[64];
};
// CUDA 13.0 cuda.h, CUkernelNodeAttrID: those whose value is plain data.
constexpr bool kernel_node_attribute_is_plain(uint32_t id) {
  return id == 2 || id == 4 || id == 5 || (id >= 8 && id <= 11) || id == 14;
}

}  // namespace kvgpu::wire
