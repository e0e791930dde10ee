// SPDX-License-Identifier: Apache-2.0
// A graph as text. Flags ask for more detail than there is here.
#include <cstdio>
#include <unordered_map>

#include "api.h"

using namespace software_gpu;

namespace {

const char* name_of(CUgraphNodeType type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return "KERNEL";
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return "MEMCPY";
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return "MEMSET";
    case CU_GRAPH_NODE_TYPE_HOST:
      return "HOST";
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return "GRAPH";
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return "EMPTY";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return "EVENT_WAIT";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return "EVENT_RECORD";
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return "CONDITIONAL";
    default:
      return "OTHER";
  }
}

/// The graph and those inside conditional nodes; `last` is the last number given to one.
void print(std::FILE* file, const Graph& graph, int* last) {
  const int number = ++*last;
  std::fprintf(file, "subgraph cluster_%d {\nlabel=\"graph_%d\"\n", number, number);
  std::unordered_map<const GraphNode*, unsigned long long> ids;
  for (const auto& node : graph.nodes) ids.emplace(node.get(), ids.size());
  const auto id = [&](const GraphNode* node) { return ids.at(node); };
  for (const auto& node : graph.nodes)
    std::fprintf(file, "\"graph_%d_node_%llu\"[label=\"%llu\\n%s\"];\n", number, id(node.get()),
                 id(node.get()), name_of(node->operation.type));
  for (const auto& node : graph.nodes)
    for (const GraphNode* before : node->after)
      std::fprintf(file, "\"graph_%d_node_%llu\" -> \"graph_%d_node_%llu\";\n", number, id(before),
                   number, id(node.get()));
  std::fprintf(file, "}\n");
  for (const auto& node : graph.nodes)
    if (node->operation.type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
      for (const auto& body : node->operation.params->bodies) print(file, *body, last);
}

}  // namespace

SOFTWARE_GPU_API cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned) {
  RETURN_IF_FAILED(enter_without_context());
  const auto graph = Driver::instance().graphs.find(handle);
  if (!graph || !path) return CUDA_ERROR_INVALID_VALUE;
  std::FILE* const file = std::fopen(path, "w");
  if (!file) return CUDA_ERROR_OPERATING_SYSTEM;
  std::fprintf(file, "digraph dot {\n");
  int last = 0;
  print(file, *graph, &last);
  std::fprintf(file, "}\n");
  return std::fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
