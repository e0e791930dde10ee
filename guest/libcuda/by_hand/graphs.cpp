// SPDX-License-Identifier: Apache-2.0
// Graphs and what is made of them: their life, and their launch.
#include "graphs.h"

#include <cstring>

#include "driver_waits.h"
#include "enqueue.h"
#include "generated/api.gen.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

// Their handles go with a launch, so that the worker knows what comes after what.
constexpr size_t MAX_EVENTS = 1024;

CUresult check_events(Graph& graph) {
  if (outermost(graph).events.size() <= MAX_EVENTS) return CUDA_SUCCESS;
  return static_cast<CUresult>(refuse_part("a graph that names more than 1,024 events"));
}

// Makes an exec of the graph with a call that gets the exec's handle, and tells what kernels call
// it.
template <typename Instantiate>
CUresult instantiate(CUgraphExec* out, CUgraph handle, uint64_t flags, Instantiate ask) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const GraphCall call;
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (call.context() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult bad = unsafe_call_allowed()) return bad;
  Graph* const graph = find(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  constexpr uint64_t KNOWN = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                             CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY |
                             CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
  if (flags & ~KNOWN) return CUDA_ERROR_INVALID_VALUE;
  // An older host would not say what kernels call it.
  const bool by_device = flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
  if (by_device && !Session::get().speaks(wire::Op::cuGraphConditionalHandleCreate)) {
    return static_cast<CUresult>(refuse_part("launches from the device on this host"));
  }
  if (const CUresult bad = check_events(*graph)) return bad;
  GraphExec* const exec = tables().graph_execs.create();
  if (exec == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  exec->context = call.context() == 0 ? nullptr : &call.context_object();
  exec->flags = flags;
  take_over(outermost(*graph), exec);
  expect_output_of(*exec);
  CUresult result = list_host_nodes(call, *graph, &exec->host_nodes);
  for (const auto& node : exec->host_nodes) Session::get().keep_function(node.function);
  if (result == CUDA_SUCCESS) {
    const wire::GraphInstantiate body{call.context(), graph->handle, exec->handle, flags};
    result = ask(call, body, &exec->device_handle);
  }
  if (result != CUDA_SUCCESS) {
    forget(exec->handle);
    return result;
  }
  if (exec->device_handle != 0) tables().device_execs.add(exec->device_handle, exec->handle);
  *out = from_wire<CUgraphExec>(exec->device_handle != 0 ? exec->device_handle : exec->handle);
  return CUDA_SUCCESS;
}

}  // namespace

Graph& outermost(Graph& graph) {
  Graph* const parent = graph.parent == 0 ? nullptr : tables().graphs.find(graph.parent);
  return parent == nullptr ? graph : outermost(*parent);
}

void expect_output_of(const GraphExec& exec) {
  const bool by_device = exec.flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
  if (by_device && exec.prints) {
    Session::get().device_graphs_print.store(true, std::memory_order_relaxed);
  }
}

CUresult list_host_nodes(const GraphCall& call, Graph& graph,
                         std::vector<GraphExec::HostNode>* nodes) {
  nodes->clear();
  const Graph& holder = outermost(graph);
  if (holder.functions.empty()) return CUDA_SUCCESS;
  if (!Session::get().speaks(wire::Op::GRAPH_FUNCTIONS)) {
    // Against such a host there are captured graphs only, and nobody has changed them.
    for (const uint64_t function : holder.functions) nodes->push_back({0, function});
    return CUDA_SUCCESS;
  }
  struct {
    wire::GraphListed head;
    wire::GraphFunction list[wire::MAX_GRAPH_FUNCTIONS];
  } page;
  do {
    const wire::GraphFunctions body{call.context(), graph.handle, nodes->size()};
    if (const CUresult bad = call.sync(wire::Op::GRAPH_FUNCTIONS, body, &page)) return bad;
    for (uint64_t i = 0; i < std::min(page.head.n, wire::MAX_GRAPH_FUNCTIONS); ++i) {
      nodes->push_back({page.list[i].node, page.list[i].function});
    }
  } while (page.head.n != 0 && nodes->size() < page.head.n_all);
  return CUDA_SUCCESS;
}

CUresult graph_create(CUgraph* phGraph, unsigned int flags) {
  if (phGraph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const GraphCall call;
  if (call.status() != CUDA_SUCCESS) return call.status();
  Graph* const graph = tables().graphs.create();
  if (graph == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result =
      call.sync(wire::Op::cuGraphCreate, wire::GraphCreate{call.context(), graph->handle});
  if (result != CUDA_SUCCESS) {
    forget(graph->handle);
    return result;
  }
  *phGraph = from_wire<CUgraph>(graph->handle);
  return CUDA_SUCCESS;
}

CUresult graph_clone(CUgraph* phGraphClone, CUgraph originalGraph) {
  if (phGraphClone == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const GraphCall call;
  if (call.status() != CUDA_SUCCESS) return call.status();
  Graph* const original = find(originalGraph);
  if (original == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Graph* const clone = tables().graphs.create();
  if (clone == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const Graph& holder = outermost(*original);
  for (const uint64_t function : holder.functions) {
    Session::get().keep_function(function);
    clone->functions.push_back(function);
  }
  take_over(holder, clone);
  const CUresult result = call.sync(
      wire::Op::cuGraphClone, wire::GraphClone{call.context(), original->handle, clone->handle});
  if (result != CUDA_SUCCESS) {
    forget(clone->handle);
    return result;
  }
  *phGraphClone = from_wire<CUgraph>(clone->handle);
  return CUDA_SUCCESS;
}

CUresult graph_conditional_handle_create(CUgraphConditionalHandle* pHandle_out, CUgraph hGraph,
                                         CUcontext ctx, unsigned int defaultLaunchValue,
                                         unsigned int flags) {
  if (pHandle_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const GraphCall call;
  if (call.status() != CUDA_SUCCESS) return call.status();
  const Graph* const graph = find(hGraph);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Context* const named = find_itself(ctx);
  if (named == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const wire::ConditionalHandleCreate body{call.context(), graph->handle, named->handle,
                                           defaultLaunchValue, flags};
  wire::Value64 out;
  const CUresult result = call.sync(wire::Op::cuGraphConditionalHandleCreate, body, &out);
  if (result == CUDA_SUCCESS) *pHandle_out = out.value;
  return result;
}

CUresult graph_child_graph_node_get_graph(CUgraphNode hNode, CUgraph* phGraph) {
  if (phGraph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const GraphCall call;
  if (call.status() != CUDA_SUCCESS) return call.status();
  Graph* const graph = tables().graphs.create();
  if (graph == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const wire::ChildGraph body{call.context(), to_wire(hNode), graph->handle};
  wire::ChildGraphNamed out;
  const CUresult result = call.sync(wire::Op::cuGraphChildGraphNodeGetGraph, body, &out);
  Graph* const parent = tables().graphs.find(out.parent);
  if (result != CUDA_SUCCESS || out.graph != graph->handle || parent == nullptr) {
    forget(graph->handle);  // it has a name already
  } else {
    graph->parent = parent->handle;
    parent->children.push_back(graph->handle);
  }
  if (result == CUDA_SUCCESS) *phGraph = from_wire<CUgraph>(out.graph);
  return result;
}

CUresult graph_instantiate_with_flags(CUgraphExec* phGraphExec, CUgraph hGraph,
                                      unsigned long long flags) {
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) return CUDA_ERROR_INVALID_VALUE;
  return instantiate(
      phGraphExec, hGraph, flags,
      [](const GraphCall& call, const wire::GraphInstantiate& body, uint64_t* device) {
        wire::Value64 out;
        const CUresult made = call.sync(wire::Op::cuGraphInstantiateWithFlags, body, &out);
        *device = out.value;
        return made;
      });
}

CUresult graph_instantiate_with_params(CUgraphExec* phGraphExec, CUgraph hGraph,
                                       CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams,
                                       CUstream default_stream) {
  if (instantiateParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_GRAPH_INSTANTIATE_PARAMS& params = *instantiateParams;
  params.hErrNode_out = nullptr;
  params.result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
  const bool upload = params.flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  const uint64_t flags = params.flags & ~uint64_t{CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD};
  const CUresult result = instantiate(
      phGraphExec, hGraph, flags,
      [&](const GraphCall& call, const wire::GraphInstantiate& body, uint64_t* device) {
        struct {
          wire::InstantiateResult head;
          wire::Value64 device_handle;
        } out;
        const CUresult made = call.sync(wire::Op::cuGraphInstantiateWithParams, body, &out);
        params.result_out = static_cast<CUgraphInstantiateResult>(out.head.result);
        params.hErrNode_out = from_wire<CUgraphNode>(out.head.node);
        *device = out.device_handle.value;
        return made;
      });
  if (result != CUDA_SUCCESS || !upload) return result;
  return graph_upload(*phGraphExec,
                      params.hUploadStream == nullptr ? default_stream : params.hUploadStream);
}

// The forms before CUDA 12: nothing is written into the log.
CUresult graph_instantiate(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode,
                           char* logBuffer, size_t bufferSize) {
  return graph_instantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}
CUresult graph_instantiate_v2(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode,
                              char* logBuffer, size_t bufferSize) {
  if (logBuffer != nullptr && bufferSize > 0) logBuffer[0] = '\0';
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  const CUresult result = graph_instantiate_with_params(phGraphExec, hGraph, &params, nullptr);
  if (phErrorNode != nullptr) *phErrorNode = params.hErrNode_out;
  return result;
}

CUresult graph_exec_get_flags(CUgraphExec hGraphExec, cuuint64_t* flags) {
  const GraphExec* const exec = find(hGraphExec);
  if (exec == nullptr || flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Driver 580 does not name USE_NODE_PRIORITY.
  *flags = exec->flags & ~uint64_t{CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY};
  return CUDA_SUCCESS;
}

CUresult graph_exec_update(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode* hErrorNode_out,
                           CUgraphExecUpdateResult* updateResult_out) {
  CUgraphExecUpdateResultInfo info{};
  info.result = CU_GRAPH_EXEC_UPDATE_ERROR;
  const CUresult result = graph_exec_update_v2(hGraphExec, hGraph, &info);
  if (updateResult_out != nullptr) *updateResult_out = info.result;
  if (hErrorNode_out != nullptr) *hErrorNode_out = info.errorNode;
  return result;
}

CUresult graph_exec_update_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                              CUgraphExecUpdateResultInfo* resultInfo) {
  CUgraphExecUpdateResultInfo unwanted;
  if (resultInfo == nullptr) resultInfo = &unwanted;
  const GraphCall call;
  if (call.status() != CUDA_SUCCESS) return call.status();
  GraphExec* const exec = find(hGraphExec);
  Graph* const graph = find(hGraph);
  if (exec == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *resultInfo = {};
  resultInfo->result = CU_GRAPH_EXEC_UPDATE_ERROR;
  if (const CUresult bad = check_events(*graph)) return bad;
  std::vector<GraphExec::HostNode> host_nodes;
  if (const CUresult bad = list_host_nodes(call, *graph, &host_nodes)) return bad;
  const wire::ExecUpdate body{call.context(), exec->handle, graph->handle};
  wire::ExecUpdated out;
  const CUresult result = call.sync(wire::Op::cuGraphExecUpdate_v2, body, &out);
  resultInfo->result = static_cast<CUgraphExecUpdateResult>(out.result);
  resultInfo->errorNode = from_wire<CUgraphNode>(out.node);
  resultInfo->errorFromNode = from_wire<CUgraphNode>(out.from);
  if (result != CUDA_SUCCESS) return result;
  for (const auto& node : host_nodes) Session::get().keep_function(node.function);
  for (const auto& node : exec->host_nodes) Session::get().release_function(node.function);
  exec->host_nodes = std::move(host_nodes);
  exec->events.clear();
  exec->recorded.clear();
  take_over(outermost(*graph), exec);
  expect_output_of(*exec);
  return CUDA_SUCCESS;
}

// On driver 580 a capture takes no launch of a graph, whatever is in it, and no upload.
CUresult graph_upload(CUgraphExec hGraphExec, CUstream hStream) {
  const Enqueue enqueue(hStream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  const GraphExec* const exec = find(hGraphExec);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (enqueue.capture() != nullptr) {
    return break_capture(enqueue.stream(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  return enqueue.submit_and_ask(wire::Op::cuGraphUpload, wire::LaunchGraph{0, 0, exec->handle});
}

CUresult graph_launch(CUgraphExec hGraphExec, CUstream hStream) {
  const Enqueue enqueue(hStream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  const GraphExec* const exec = find(hGraphExec);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (enqueue.capture() != nullptr) {
    return break_capture(enqueue.stream(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  std::vector<uint64_t> names(exec->events.begin(), exec->events.end());
  // Of a launch with more of them than a record holds nobody is told that it was skipped.
  if (names.size() + exec->host_nodes.size() <= wire::MAX_LAUNCH_NAMES) {
    for (const auto& node : exec->host_nodes) names.push_back(node.function);
  }
  const Part named{names.data(), static_cast<uint32_t>(names.size() * sizeof names[0])};
  const wire::LaunchGraph body{0, 0, exec->handle};
  Session::get().expect_callbacks(exec->host_nodes);
  // What a launch allocates may not be free, or not be had: only the driver knows.
  const CUresult result = exec->has_memory
                              ? enqueue.submit_and_ask(wire::Op::cuGraphLaunch, body, named)
                              : enqueue.submit(wire::Op::cuGraphLaunch, body, named);
  if (result != CUDA_SUCCESS) {
    Session::get().expect_no_callbacks(exec->host_nodes);
    return result;
  }
  if (exec->prints || Session::get().device_graphs_print.load(std::memory_order_relaxed)) {
    DriverWaits::output().add(enqueue.stream());
  }
  for (const wire::Handle handle : exec->recorded) {
    Event* const event = tables().events.find(handle);
    if (event == nullptr) continue;
    const std::lock_guard lock(event->mutex);
    event->recorded = event->by_graph = true;
    event->capture_id = 0;
  }
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
