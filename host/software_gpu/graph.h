// SPDX-License-Identifier: Apache-2.0
// Graphs and stream capture.
#pragma once

#include <cuda.h>

#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "stream.h"

namespace software_gpu {

struct GraphNode {
  Operation operation;
  std::vector<GraphNode*> after;
};

struct Graph {
  /// Nodes in an order that respects their dependencies: a node is added after those it needs.
  std::vector<std::unique_ptr<GraphNode>> nodes;
  GraphNode* add(Operation operation, std::vector<GraphNode*> after);
};

/// An instantiated graph: a copy, so the graph may be changed or destroyed afterwards.
struct GraphExec {
  std::vector<Operation> operations;
};

/// A capture on its way. Under Context::order_mutex.
struct Capture {
  std::shared_ptr<Graph> graph;
  CUstreamCaptureMode mode;
  std::thread::id thread;  // that began it
  const Stream* origin;
  uint64_t id;
  bool invalid = false;
};

/// True when all of `nodes` are in `front` or before it.
bool joined(const std::vector<GraphNode*>& nodes, const std::vector<GraphNode*>& front);
void add_unique(std::vector<GraphNode*>* to, const std::vector<GraphNode*>& from);

}  // namespace software_gpu
