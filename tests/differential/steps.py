# SPDX-License-Identifier: Apache-2.0
"""What a random program may do next, by family of the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from differential.programs import (
    BAD_SIZES,
    LEGACY,
    PER_THREAD,
    RARELY,
    SIZES,
    Capture,
    Memory,
    Program,
    at,
    finished,
    handle,
)
from hypothesis import strategies as st

Step = Callable[[Program], None]
MIN_CALLS = 50


def allocate(p: Program) -> None:
    size = p.draw(BAD_SIZES if p.draw(RARELY) else SIZES)
    symbol = f"dptr{p.call('cuMemAlloc_v2', size)}"
    if p.captures or size not in range(1, 1 << 30):
        return  # what a capture makes of it is compared, too
    memory = Memory(symbol, size)
    p.call("cuMemsetD8_v2", at(memory), 7, size)
    p.call("cuStreamSynchronize", None)
    p.memories.append(memory)


def allocate_async(p: Program) -> None:
    stream = p.stream()
    if not stream or stream in p.captures:
        return
    size = p.draw(SIZES)
    memory = Memory(f"dptr{p.call('cuMemAllocAsync', size, handle(stream))}", size, is_async=True)
    p.call("cuMemsetD8Async", at(memory), 9, size, handle(stream))
    memory.last = stream
    p.memories.append(memory)


def host_memory(p: Program) -> None:
    size = p.draw(SIZES)
    if p.draw(st.booleans()):
        symbol = f"page{len(p.calls)}"
        p.call("buffer", symbol, size)
        p.memories.append(Memory(symbol, size, host="pageable"))
    elif not p.captures:
        number = p.call("cuMemHostAlloc", size, p.choose([0, 1, 2, 3, 4, 7, 8, 32]))
        if p.calls[number][2][1] < 8:
            p.memories.append(Memory(f"host{number}", size, host="pinned"))


def free(p: Program) -> None:
    memory = p.memory(settled=True)
    if memory is None or p.captures or any(memory.symbol in uses for uses in p.execs.values()):
        return
    if any(memory.symbol in uses for uses in p.graphs.values()) or memory.host == "pageable":
        return
    if memory.is_async and p.streams and p.draw(st.booleans()):
        stream = p.stream()
        p.order(memory, stream)
        p.call("cuMemFreeAsync", at(memory), handle(stream))
    else:
        p.settle(memory)
        offset = p.draw(st.sampled_from([0, 0, 0, 1]))
        name = "cuMemFreeHost" if memory.host else "cuMemFree_v2"
        p.call(name, at(memory, offset))
        if offset:
            return
        if p.draw(RARELY):
            p.call(name, at(memory))  # once more, before the driver can use the address again
    p.memories.remove(memory)


def copy(p: Program) -> None:
    to, source = p.memory(settled=True), p.memory(settled=True)
    if to is None or source is None or to is source or (to.host and source.host):
        return
    (a, b), length = p.span(to, source)
    name = f"cuMemcpy{'H' if source.host else 'D'}to{'H' if to.host else 'D'}"
    if p.draw(RARELY):
        name = "cuMemcpy"
    stream = p.stream()
    if name != "cuMemcpy" and stream and p.draw(st.booleans()):
        if p.order(to, stream) and p.order(source, stream):
            p.call(f"{name}Async_v2", at(to, a), at(source, b), length, handle(stream))
        return
    p.settle(to)
    p.settle(source)
    p.call(name if name == "cuMemcpy" else f"{name}_v2", at(to, a), at(source, b), length)
    p.call("cuStreamSynchronize", None)


def memset(p: Program) -> None:
    memory = p.memory(host=False, settled=True)
    if memory is None:
        return
    width = p.choose([1, 2, 4])
    (offset,), length = p.span(memory)
    if not p.draw(RARELY):
        offset -= offset % width
    count = max(1, length // width)
    if length <= memory.size and offset + count * width > memory.size:
        return
    value = p.draw(st.integers(0, 2**32 - 1))
    stream = p.stream()
    name = f"cuMemsetD{8 * width}"
    if stream and p.draw(st.booleans()):
        if p.order(memory, stream):
            p.call(f"{name}Async", at(memory, offset), value, count, handle(stream))
        return
    p.settle(memory)
    p.call(f"{name}_v2", at(memory, offset), value, count)
    p.call("cuStreamSynchronize", None)


def ask_memory(p: Program) -> None:
    memory = p.memory()
    if memory is None:
        return
    offset = p.draw(st.integers(0, memory.size - 1))
    if not memory.host:
        p.call("cuMemGetAddressRange_v2", at(memory, offset))
    # MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL, RANGE_SIZE, MAPPED, and one that is none
    attribute = p.choose([2, 8, 9, 12, 13, 999])
    if memory.host != "pageable":
        p.call("cuPointerGetAttribute", attribute, at(memory, offset))
    if memory.host == "pinned":
        p.call("cuMemHostGetFlags", at(memory, offset))
        p.call("cuMemHostGetDevicePointer_v2", at(memory, offset), p.choose([0, 0, 1]))


def make_stream(p: Program) -> None:
    flags = p.choose([0, 1, 1, 2])
    if p.draw(st.booleans()):
        number = p.call("cuStreamCreateWithPriority", flags, p.choose([-5, -2, 0, 3]))
    else:
        number = p.call("cuStreamCreate", flags)
    if flags < 2:
        p.streams[f"stream{number}"] = flags == 0


def use_stream(p: Program) -> None:
    stream = p.stream()
    if not stream:
        return
    match p.choose(["synchronize", "ask", "destroy", "default"]):
        case "synchronize" if stream not in p.captures:
            p.synchronize(stream)
            p.call("cuStreamQuery", handle(stream))
        case "ask":
            p.call("cuStreamGetFlags", handle(stream))
            p.call("cuStreamGetPriority", handle(stream))
            p.call("cuStreamIsCapturing", handle(stream))
        case "destroy" if stream not in p.captures:
            p.synchronize(stream)
            p.call("cuStreamDestroy_v2", handle(stream))
            del p.streams[stream]
        case "default":
            p.call("cuStreamIsCapturing", p.choose([None, LEGACY, PER_THREAD]))


def use_event(p: Program) -> None:
    if not p.events or p.draw(RARELY):
        flags = p.choose([0, 1, 2, 3, 4, 16])
        number = p.call("cuEventCreate", flags)
        if flags < 4:
            p.events.append(f"event{number}")
        return
    event, stream = p.choose(p.events), p.stream()
    if not stream or stream in p.captures:
        return
    match p.choose(["record", "wait", "elapsed", "destroy"]):
        case "record":
            p.call("cuEventRecordWithFlags", handle(event), handle(stream), p.choose([0, 0, 2]))
            p.call("cuEventSynchronize", handle(event))
            p.call("cuEventQuery", handle(event))
        case "wait":
            p.call("cuStreamWaitEvent", handle(stream), handle(event), p.choose([0, 0, 7]))
        case "elapsed":
            p.call("cuEventElapsedTime_v2", handle(event), handle(p.choose(p.events)))
        case "destroy":
            p.call("cuEventDestroy_v2", handle(event))
            p.events.remove(event)


def use_module(p: Program) -> None:
    if p.captures:
        return
    if not p.modules or p.draw(RARELY):
        p.modules.append(f"module{p.call('cuModuleLoadData')}")
    module = p.choose(p.modules)
    name = p.choose(["add_one", "mix", "no_such_kernel", "counter"])
    number = p.call("cuModuleGetFunction", handle(module), name)
    if name in ("add_one", "mix"):
        p.functions[f"function{number}"] = name
    p.call("cuModuleGetGlobal_v2", handle(module), p.choose(["counter", "no_such_variable"]))
    p.call("cuModuleGetFunctionCount", handle(module))


def ask_function(p: Program) -> None:
    if not p.functions:
        return
    function = handle(p.choose(p.functions))
    # SHARED_SIZE_BYTES, CONST_SIZE_BYTES, MAX_DYNAMIC_SHARED_SIZE_BYTES, and one that is none; the
    # others are the compiler's
    p.call("cuFuncGetAttribute", p.choose([1, 2, 8, 99]), function)
    p.call("cuFuncSetAttribute", function, p.choose([8, 9, 77]), p.choose([0, 1024, 1 << 24]))
    p.call("cuFuncSetCacheConfig", function, p.choose([0, 1, 3]))


def launch(p: Program) -> None:
    stream = p.stream()
    if not p.functions or not stream:
        return
    function = p.choose(p.functions)
    used = [m for m in p.memories if not m.host and m.size >= 4096]
    if len(used) < 2:
        return
    first, second = p.choose(used), p.choose(used)
    if p.functions[function] == "add_one":
        n = first.size // 4
        parameters: list[Any] = [at(first), n]
        blocks, threads = (n + 255) // 256, 256
        second = first
    else:
        parameters = [at(first), at(second)]
        blocks, threads = 1, 1
    shape = [blocks, 1, 1, threads, 1, 1, 0]
    if p.draw(RARELY):
        shape[p.draw(st.integers(0, 6))] = p.choose([0, 1 << 20, 1 << 31])
        parameters[1] = parameters[1] if isinstance(parameters[1], list) else 0
    if p.order(first, stream) and p.order(second, stream):
        p.call("cuLaunchKernel", handle(function), *shape, handle(stream), parameters)


def begin_capture(p: Program) -> None:
    stream = p.stream()
    if stream and not p.captures:
        mode, thread = p.choose([0, 1, 2]), p.draw(st.integers(0, 1))
        p.call("cuStreamBeginCapture_v2", handle(stream), mode, thread=thread)
        p.captures[stream] = Capture(thread)


def end_capture(p: Program) -> None:
    for stream, capture in list(p.captures.items()):
        number = p.call("cuStreamEndCapture", handle(stream), thread=capture.thread)
        p.graphs[f"graph{number}"] = capture.uses
        del p.captures[stream]


def use_graph(p: Program) -> None:
    if p.captures:
        return
    if not p.graphs or p.draw(RARELY):
        number = p.call("cuGraphCreate", p.choose([0, 0, 0, 1]))
        p.graphs[f"graph{number}"] = set()
    graph = p.choose(p.graphs)
    match p.choose(["instantiate", "instantiate", "ask", "empty", "clone", "destroy"]):
        case "instantiate":
            number = p.call("cuGraphInstantiateWithFlags", handle(graph), p.choose([0, 0, 1, 64]))
            p.execs[f"exec{number}"] = set(p.graphs[graph])
        case "ask":
            p.call("cuGraphGetNodes", handle(graph))
            p.call("cuGraphGetRootNodes", handle(graph))
        case "empty":
            p.call("cuGraphAddEmptyNode", handle(graph), [], 0)
        case "clone":
            p.graphs[f"graph{p.call('cuGraphClone', handle(graph))}"] = set(p.graphs[graph])
        case "destroy":
            p.call("cuGraphDestroy", handle(graph))
            del p.graphs[graph]


def launch_graph(p: Program) -> None:
    stream = p.stream()
    if not p.execs or not stream or stream in p.captures:
        return
    executable = p.choose(p.execs)
    uses = [m for m in p.memories if m.symbol in p.execs[executable]]
    if all([p.order(memory, stream) for memory in uses]):
        p.call("cuGraphLaunch", handle(executable), handle(stream))


def ask_context(p: Program) -> None:
    match p.choose(["state", "limits", "stack", "device", "mode"]):
        case "state":
            p.call("cuDevicePrimaryCtxGetState", p.choose([0, 0, 99]))
            p.call("cuCtxGetFlags")
            p.call("cuCtxGetStreamPriorityRange")
        case "limits":
            p.call("cuCtxSetLimit", 1, p.choose([1 << 20, 2 << 20]))  # PRINTF_FIFO_SIZE
            p.call("cuCtxGetLimit", p.choose([1, 99]))
        case "stack":
            thread = p.draw(st.integers(0, 1))
            p.call("cuCtxPushCurrent_v2", None, thread=thread)
            p.call("cuCtxGetCurrent", thread=thread)
            p.call("cuCtxGetDevice", thread=thread)
            p.call("cuCtxPopCurrent_v2", thread=thread)
            p.call("cuCtxGetCurrent", thread=thread)
        case "device":
            p.call("cuDeviceGet", p.choose([0, 17, -1]))
            p.call("cuDeviceGetAttribute", p.choose([1, 10, 75, 76, 9999]), p.choose([0, 0, 44]))
            p.call("cuCtxGetApiVersion", None)
        case "mode":
            thread = p.draw(st.integers(0, 1))
            p.call("cuThreadExchangeStreamCaptureMode", p.choose([0, 1, 2, 7]), thread=thread)


STEPS: list[Step] = [
    allocate, allocate, allocate_async, host_memory, free, copy, copy, copy, memset, memset,
    ask_memory, make_stream, use_stream, use_event, use_module, ask_function, launch, launch,
    launch, begin_capture, end_capture, end_capture, use_graph, launch_graph, launch_graph,
    ask_context,
]  # fmt: skip


@st.composite
def programs(draw: Any, min_calls: int = MIN_CALLS) -> list[list[Any]]:
    """A program of at least this many calls."""
    program = Program(draw)
    for start in (make_stream, make_stream, use_module, allocate, allocate, host_memory):
        start(program)
    while len(program.calls) < min_calls:
        draw(st.sampled_from(STEPS))(program)
    return finished(program)
