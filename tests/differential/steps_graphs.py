# SPDX-License-Identifier: Apache-2.0
"""Graphs, captured ones and those that are put together node by node."""

from __future__ import annotations

from typing import Any

from differential.programs import Capture, Exec, Graph, Memory, Program, at, handle
from differential.steps_memory import DEVICE, HOST, shape
from differential.steps_work import kernel


def begin_capture(p: Program) -> None:
    stream = p.stream()
    if stream and not p.captures:
        mode = p.choose([0, 1, 2])
        thread = p.integer(0, 1)
        p.call("cuStreamBeginCapture_v2", handle(stream), mode, thread=thread)
        p.captures[stream] = Capture(thread)


def join_capture(p: Program) -> None:
    """A second stream takes part."""
    for stream, capture in list(p.captures.items()):
        other = p.stream()
        if stream in capture.joined or other in p.captures:
            return
        event = handle(f"event{p.call('cuEventCreate', 2, thread=capture.thread)}")
        p.call("cuEventRecord", event, handle(stream), thread=capture.thread)
        p.call("cuStreamWaitEvent", handle(other), event, 0, thread=capture.thread)
        capture.joined.append(other)
        p.captures[other] = capture


def end_capture(p: Program) -> None:
    for stream, capture in list(p.captures.items()):
        if stream in capture.joined:
            continue
        if not p.rarely():  # else it ends unjoined
            for other in capture.joined:
                event = handle(f"event{p.call('cuEventCreate', 2, thread=capture.thread)}")
                p.call("cuEventRecord", event, handle(other), thread=capture.thread)
                p.call("cuStreamWaitEvent", handle(stream), event, 0, thread=capture.thread)
        number = p.call("cuStreamEndCapture", handle(stream), thread=capture.thread)
        p.graphs[f"graph{number}"] = Graph(set(capture.uses))
        p.captures.clear()


def use_graph(p: Program) -> None:
    if p.captures:
        return
    if not p.graphs or p.rarely():
        flags = 1 if p.rarely() else 0
        p.graphs[f"graph{p.call('cuGraphCreate', flags)}"] = Graph(is_named=True)
    name = p.choose(p.graphs)
    graph = p.graphs[name]
    match p.choose(["instantiate", "instantiate", "ask", "empty", "clone", "destroy"]):
        case "instantiate":
            flags = p.choose([0, 0, 1, 64, 8])
            number = p.call("cuGraphInstantiateWithFlags", handle(name), flags)
            p.execs[f"exec{number}"] = Exec(
                set(graph.uses), name, dict(graph.kinds), dict(graph.nodes)
            )
        case "ask":
            p.call("cuGraphGetNodes", handle(name))
            p.call("cuGraphGetRootNodes", handle(name))
            p.call("cuGraphGetEdges_v2", handle(name))
        case "empty":
            p.call("cuGraphAddEmptyNode", handle(name), [], 0)
        case "clone":
            p.graphs[f"graph{p.call('cuGraphClone', handle(name))}"] = Graph(set(graph.uses))
        case "destroy":
            p.call("cuGraphDestroy", handle(name))
            del p.graphs[name]


def _memset(p: Program, memory: Memory) -> list[Any]:
    width = p.choose([1, 2, 4])
    count = p.integer(1, max(1, memory.size // width))
    return [at(memory), 0, p.integer(0, 255), 3 if p.rarely() else width, count, 1]


def _copy(p: Program, to: Memory, source: Memory) -> list[Any]:
    pitches, width, height, depth = shape(p, to, source)
    fields: list[Any] = []
    for memory, pitch in zip((source, to), pitches[::-1], strict=True):
        place = [HOST, at(memory), None] if memory.host else [DEVICE, None, at(memory)]
        fields += [0, 0, 0, 0, *place, None, None, pitch, height]
    return [*fields, width, height, depth]


def _kernel(p: Program) -> tuple[list[Any], list[Memory]] | None:
    chosen = kernel(p)
    if chosen is None:
        return None
    function, numbers, parameters, used = chosen
    return [handle(function), *numbers, parameters, None, None, None], used


def _what(p: Program, kind: str) -> tuple[list[Any], set[str]] | None:
    """What a new node of this kind gets beside its dependencies, and what memory it uses."""
    context = handle("context")
    match kind:
        case "Kernel":
            made = _kernel(p)
            return ([made[0]], {m.symbol for m in made[1]}) if made else None
        case "Memset":
            to = p.memory(host=False)
            return ([_memset(p, to), context], {to.symbol}) if to else None
        case "Memcpy":
            places = [m for m in p.memories if m.host != "pageable"]
            if len(places) < 2:
                return None
            to, source = p.choose(places), p.choose(places)
            if to is source or (to.host and source.host):
                return None
            return [_copy(p, to, source), context], {to.symbol, source.symbol}
        case "Host":
            found = [m for m in p.memories if m.host == "pageable"]
            place = p.choose(found) if found else None
            return ([[at(place)]], {place.symbol}) if place else None
        case "ChildGraph":
            child = p.choose(p.graphs)
            return [handle(child)], set(p.graphs[child].uses)
        case "EventRecord" | "EventWait":
            # One of its own: how far a recorded one is, is open until the launch has ended.
            return [handle(f"event{p.call('cuEventCreate', 2)}")], set()
        case _:
            return [], set()


KINDS = {
    "Kernel": "cuGraphAddKernelNode_v2",
    "Memset": "cuGraphAddMemsetNode",
    "Memcpy": "cuGraphAddMemcpyNode",
    "Host": "cuGraphAddHostNode",
    "ChildGraph": "cuGraphAddChildGraphNode",
    "EventRecord": "cuGraphAddEventRecordNode",
    "EventWait": "cuGraphAddEventWaitNode",
    "Empty": "cuGraphAddEmptyNode",
}


def add_node(p: Program) -> None:
    """After all nodes of the graph that use the same memory, and some others."""
    if p.captures:
        return
    named = [name for name, graph in p.graphs.items() if graph.is_named]
    if not named:
        named = [f"graph{p.call('cuGraphCreate', 0)}"]
        p.graphs[named[0]] = Graph(is_named=True)
    name = p.choose(named)
    graph, kind = p.graphs[name], p.choose(KINDS)
    made = _what(p, kind)
    if made is None or (kind == "ChildGraph" and made[0] == [handle(name)]):
        return
    rest, uses = made
    after = [node for node, used in graph.nodes.items() if used & uses or p.integer(0, 3) == 3]
    if after and p.rarely():
        after.append(after[0])  # twice: an error
    before = [[node, 0] for node in after]
    number = p.call(KINDS[kind], handle(name), before, len(before), *rest)
    graph.nodes[f"node{number}"], graph.kinds[f"node{number}"] = uses, kind
    graph.uses |= uses


def use_node(p: Program) -> None:
    graphs = [name for name, graph in p.graphs.items() if graph.nodes]
    if not graphs or p.captures:
        return
    name = p.choose(graphs)
    graph = p.graphs[name]
    node = p.choose(graph.nodes)
    memories = {m.symbol: m for m in p.memories}
    match p.choose(["ask", "ask", "destroy", "edge", "set"]):
        case "ask":
            p.call("cuGraphNodeGetType", handle(node))
            p.call("cuGraphNodeGetDependencies_v2", handle(node))
            p.call("cuGraphNodeGetDependentNodes_v2", handle(node))
        case "destroy":
            p.call("cuGraphDestroyNode", handle(node))
            del graph.nodes[node], graph.kinds[node]
        case "edge":  # a cycle, maybe
            other = p.choose(graph.nodes)
            p.call("cuGraphAddDependencies_v2", handle(name), [[node, 0]], [[other, 0]], 1)
        case "set" if graph.kinds[node] == "Memset":
            (symbol,) = graph.nodes[node]
            fields = _memset(p, memories[symbol])
            p.call("cuGraphMemsetNodeSetParams", handle(node), fields)


def use_exec(p: Program) -> None:
    if not p.execs or p.captures:
        return
    name = p.choose(p.execs)
    executable = p.execs[name]
    memories = {m.symbol: m for m in p.memories}
    # No driver checks the handle of a node that is gone.
    graph = p.graphs.get(executable.graph, Graph())
    nodes = [node for node in executable.nodes if node in graph.nodes]
    match p.choose(["update", "enable", "set", "flags", "upload", "destroy"]):
        case "update" if p.graphs:
            other = p.choose(p.graphs)
            p.call("cuGraphExecUpdate_v2", handle(name), handle(other))
            executable.uses |= p.graphs[other].uses
        case "enable" if nodes:
            node = handle(p.choose(nodes))
            p.call("cuGraphNodeSetEnabled", handle(name), node, p.choose([0, 1]))
            p.call("cuGraphNodeGetEnabled", handle(name), node)
        case "set" if nodes:
            chosen = p.choose(nodes)
            kind = executable.kinds[chosen]
            if kind == "Memset":
                (symbol,) = executable.nodes[chosen]
                fields = _memset(p, memories[symbol])
                p.call(
                    "cuGraphExecMemsetNodeSetParams",
                    handle(name), handle(chosen), fields, handle("context"),
                )  # fmt: skip
        case "flags":
            p.call("cuGraphExecGetFlags", handle(name))
        case "upload" if p.streams:
            p.call("cuGraphUpload", handle(name), handle(p.stream()))
        case "destroy":
            p.call("cuGraphExecDestroy", handle(name))
            del p.execs[name]


def launch_graph(p: Program) -> None:
    stream = p.stream()
    if not p.execs or not stream or stream in p.captures:
        return
    executable = p.choose(p.execs)
    uses = [m for m in p.memories if m.symbol in p.execs[executable].uses]
    if p.order(stream, *uses):
        p.call("cuGraphLaunch", handle(executable), handle(stream))
