// SPDX-License-Identifier: Apache-2.0
// Execs, and attributes of kernel nodes.
#include <algorithm>
#include <cstring>
#include <vector>

#include "generated/handlers.gen.h"
#include "kvgpu/calls.h"
#include "kvgpu/graph_calls.h"

namespace kvgpu::worker {

namespace {

// Of a node that an error is about. 0: of none, or of one inside a child graph that the guest has
// not looked into: its name would outlive it.
wire::Handle name_of(Session& session, CUgraphNode node, wire::Handle graph) {
  if (node == nullptr) return 0;
  if (const wire::Handle known = session.handles.handle_of(node)) return known;
  CUgraph raw;
  size_t n = 0;
  if (!session.handles.get(graph, &raw)) return 0;
  if (session.driver->cuGraphGetNodes(raw, nullptr, &n) != CUDA_SUCCESS) return 0;
  std::vector<CUgraphNode> nodes(n);
  if (session.driver->cuGraphGetNodes(raw, nodes.data(), &n) != CUDA_SUCCESS) return 0;
  const bool inside = std::find(nodes.begin(), nodes.end(), node) != nodes.end();
  return inside ? session.handles.name_node(node, graph) : 0;
}

// Kernels launch an exec by the driver's own handle: that is what the guest's program passes them.
void tell_device_handle(CUgraphExec exec, uint64_t flags, ReplyWriter& reply) {
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) == 0) return;
  reply.put(wire::Value64{reinterpret_cast<uint64_t>(exec)});
}

}  // namespace

CUresult graph_instantiate_with_flags(Session& session, const Task& task, ReplyWriter& reply) {
  wire::GraphInstantiate body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUgraph graph;
  if (!session.handles.get(body.graph, &graph)) return CUDA_ERROR_INVALID_HANDLE;
  CUgraphExec exec = nullptr;
  const CUresult result = session.driver->cuGraphInstantiateWithFlags(&exec, graph, body.flags);
  if (result == CUDA_SUCCESS && !session.handles.add(body.exec, exec, body.context))
    session.violation(task);
  tell_device_handle(exec, body.flags, reply);
  return result;
}

CUresult graph_instantiate_with_params(Session& session, const Task& task, ReplyWriter& reply) {
  wire::GraphInstantiate body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUgraph graph;
  if (!session.handles.get(body.graph, &graph)) return CUDA_ERROR_INVALID_VALUE;
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  params.flags = body.flags;
  CUgraphExec exec = nullptr;
  const CUresult result = session.driver->cuGraphInstantiateWithParams(&exec, graph, &params);
  if (result == CUDA_SUCCESS && !session.handles.add(body.exec, exec, body.context)) {
    session.violation(task);
  }
  reply.put(wire::InstantiateResult{name_of(session, params.hErrNode_out, body.graph),
                                    static_cast<uint32_t>(params.result_out), 0});
  tell_device_handle(exec, body.flags, reply);
  return result;
}

CUresult graph_exec_update_v2(Session& session, const Task& task, ReplyWriter& reply) {
  wire::ExecUpdate body;
  if (!task.read(&body)) session.violation(task);
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUgraphExec exec;
  CUgraph graph;
  if (!session.handles.get(body.exec, &exec) || !session.handles.get(body.graph, &graph)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUgraphExecUpdateResultInfo info{};
  const CUresult result = session.driver->cuGraphExecUpdate_v2(exec, graph, &info);
  reply.put(wire::ExecUpdated{name_of(session, info.errorNode, body.graph),
                              name_of(session, info.errorFromNode, body.graph),
                              static_cast<uint32_t>(info.result), 0});
  return result;
}

CUresult graph_upload(Session& session, const Task& task, ReplyWriter&) {
  wire::LaunchGraph body;
  if (!task.read(&body)) session.violation(task);
  CUgraphExec exec;
  if (!session.handles.get(body.exec, &exec)) return CUDA_ERROR_INVALID_HANDLE;
  return session.driver->cuGraphUpload(exec, task.stream->raw);
}

CUresult graph_launch(Session& session, const Task& task, ReplyWriter&) {
  wire::LaunchGraph body;
  if (!task.read(&body)) session.violation(task);
  CUgraphExec exec;
  if (!session.handles.get(body.exec, &exec)) return CUDA_ERROR_INVALID_HANDLE;
  return session.driver->cuGraphLaunch(exec, task.stream->raw);
}

namespace {

CUresult read_attribute(Session& session, const Task& task, wire::GraphNodeAttribute* body,
                        CUgraphNode* node) {
  if (!task.read(body)) session.violation(task);
  if (!wire::kernel_node_attribute_is_plain(body->id)) session.violation(task);
  if (const CUresult bad = session.enter(body->context)) return bad;
  return session.handles.get(body->node, node) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult graph_kernel_node_get_attribute(Session& session, const Task& task, ReplyWriter& reply) {
  wire::GraphNodeAttribute body;
  CUgraphNode node;
  if (const CUresult bad = read_attribute(session, task, &body, &node)) return bad;
  CUkernelNodeAttrValue value{};
  const CUresult result = session.driver->cuGraphKernelNodeGetAttribute(
      node, static_cast<CUkernelNodeAttrID>(body.id), &value);
  wire::GraphNodeAttributeValue out;
  static_assert(sizeof out.value == sizeof value);
  std::memcpy(out.value, &value, sizeof value);
  reply.put(out);
  return result;
}

CUresult graph_kernel_node_set_attribute(Session& session, const Task& task, ReplyWriter&) {
  wire::GraphNodeAttribute body;
  CUgraphNode node;
  if (const CUresult bad = read_attribute(session, task, &body, &node)) return bad;
  CUkernelNodeAttrValue value;
  std::memcpy(&value, body.value, sizeof value);
  return session.driver->cuGraphKernelNodeSetAttribute(
      node, static_cast<CUkernelNodeAttrID>(body.id), &value);
}

}  // namespace kvgpu::worker
