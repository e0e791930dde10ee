// SPDX-License-Identifier: Apache-2.0
#include "graph.h"

#include <algorithm>

namespace software_gpu {

GraphNode* Graph::add(Operation operation, std::vector<GraphNode*> after) {
  nodes.push_back(std::make_unique<GraphNode>(GraphNode{std::move(operation), std::move(after)}));
  return nodes.back().get();
}

bool joined(const std::vector<GraphNode*>& nodes, const std::vector<GraphNode*>& front) {
  std::set<const GraphNode*> seen(front.begin(), front.end());
  std::vector<const GraphNode*> open(front.begin(), front.end());
  while (!open.empty()) {
    const GraphNode* node = open.back();
    open.pop_back();
    for (const GraphNode* before : node->after)
      if (seen.insert(before).second) open.push_back(before);
  }
  return std::all_of(nodes.begin(), nodes.end(),
                     [&](const GraphNode* node) { return seen.contains(node); });
}

void add_unique(std::vector<GraphNode*>* to, const std::vector<GraphNode*>& from) {
  for (GraphNode* node : from)
    if (std::find(to->begin(), to->end(), node) == to->end()) to->push_back(node);
}

}  // namespace software_gpu
