# SPDX-License-Identifier: Apache-2.0
"""Streams, events, kernels and whatever else a stream may do; contexts, devices and threads."""

from __future__ import annotations

from typing import Any

from differential import steps_memory as memory
from differential.programs import LEGACY, PER_THREAD, TURNS, Memory, Program, at, handle

WRITE_32, WAIT_32, WRITE_64, WAIT_64 = 2, 1, 5, 4  # CUstreamBatchMemOpType
GEQ, EQ = 0, 1
MAX_TOGETHER = 4


def make_stream(p: Program) -> None:
    flags = p.choose([0, 1, 1, 2])
    if p.perhaps():
        number = p.call("cuStreamCreateWithPriority", flags, p.choose([-5, -2, 0, 3]))
    else:
        number = p.call("cuStreamCreate", flags)
    if flags < 2:
        p.streams[f"stream{number}"] = flags == 0


def use_stream(p: Program) -> None:
    stream = p.stream()
    if not stream:
        return
    match p.choose(["synchronize", "ask", "destroy", "default", "attributes"]):
        case "synchronize" if stream not in p.captures:
            p.synchronize(stream)
            if not p.captures:  # else it may not have been waited for
                p.call("cuStreamQuery", handle(stream))
        case "ask":
            p.call("cuStreamGetFlags", handle(stream))
            p.call("cuStreamGetPriority", handle(stream))
            p.call("cuStreamIsCapturing", handle(stream))
            p.call("cuStreamGetCaptureInfo_v2", handle(stream))
            p.call("cuStreamGetCtx", handle(stream))
            p.call("cuStreamGetDevice", handle(stream))
        case "destroy" if not p.captures:
            p.synchronize(stream)
            p.call("cuStreamDestroy_v2", handle(stream))
            del p.streams[stream]
        case "default":
            p.call("cuStreamIsCapturing", p.choose([None, LEGACY, PER_THREAD]))
        case "attributes":
            p.call("cuStreamCopyAttributes", handle(stream), handle(p.stream()))


def use_event(p: Program) -> None:
    if not p.events or p.rarely():
        flags = p.choose([0, 1, 2, 3, 4, 5, 6, 7, 16])
        number = p.call("cuEventCreate", flags)
        if flags not in (4, 5, 16):
            p.events.append(f"event{number}")
        return
    event, stream = p.choose(p.events), p.stream()
    if not stream or stream in p.captures:
        return
    match p.choose(["record", "wait", "elapsed", "destroy"]):
        case "record":
            p.call("cuEventRecordWithFlags", handle(event), handle(stream), p.choose([0, 0, 2]))
            p.call("cuEventSynchronize", handle(event))
            if not p.captures:
                p.call("cuEventQuery", handle(event))
        case "wait":
            p.call("cuStreamWaitEvent", handle(stream), handle(event), p.choose([0, 0, 7]))
        case "elapsed" if not p.captures:
            p.call("cuEventElapsedTime_v2", handle(event), handle(p.choose(p.events)))
        case "destroy":
            p.call("cuEventDestroy_v2", handle(event))
            p.events.remove(event)


def use_module(p: Program) -> None:
    if p.captures:
        return
    if not p.modules or p.rarely():
        p.modules.append(f"module{p.call('cuModuleLoadData')}")
    module = p.choose(p.modules)
    name = p.choose(["add_one", "mix", "no_such_kernel", "counter"])
    number = p.call("cuModuleGetFunction", handle(module), name)
    if name in ("add_one", "mix"):
        p.functions[f"function{number}"] = name
    p.call("cuModuleGetGlobal_v2", handle(module), p.choose(["counter", "no_such_variable"]))
    p.call("cuModuleGetFunctionCount", handle(module))


def use_library(p: Program) -> None:
    """Kernels that belong to no context."""
    if p.captures:
        return
    if not p.libraries or p.rarely():
        p.libraries.append(f"library{p.call('cuLibraryLoadData', 0, 0)}")
    library = handle(p.choose(p.libraries))
    name = p.choose(["add_one", "mix", "no_such_kernel", "counter"])
    kernel = p.call("cuLibraryGetKernel", library, name)
    number = p.call("cuKernelGetFunction", handle(f"kernel{kernel}"))
    if name in ("add_one", "mix"):
        p.functions[f"function{number}"] = name
    p.call("cuLibraryGetGlobal", library, p.choose(["counter", "no_such_variable"]))
    p.call("cuLibraryGetKernelCount", library)


def ask_function(p: Program) -> None:
    if not p.functions:
        return
    function = handle(p.choose(p.functions))
    # SHARED_SIZE_BYTES, CONST_SIZE_BYTES, MAX_DYNAMIC_SHARED_SIZE_BYTES, and one that is none; the
    # others are the compiler's
    p.call("cuFuncGetAttribute", p.choose([1, 2, 8, 99]), function)
    p.call("cuFuncSetAttribute", function, p.choose([8, 9, 77]), p.choose([0, 1024, 1 << 24]))
    p.call("cuFuncSetCacheConfig", function, p.choose([0, 1, 3]))


def kernel(p: Program) -> tuple[str, list[int], list[Any], list[Memory]] | None:
    """One to launch: its function, shape and parameters, and the memory that it uses."""
    used = [m for m in p.memories if not m.host and m.size >= 4096]
    if not p.functions or not used:
        return None
    function, first, second = p.choose(p.functions), p.choose(used), p.choose(used)
    parameters: list[Any] = [at(first), at(second)]
    shape = [1, 1, 1, 1, 1, 1, 0]
    if p.functions[function] == "add_one":
        n = first.size // 4
        second, parameters = first, [at(first), n]
        shape = [(n + 255) // 256, 1, 1, 256, 1, 1, 0]
    if p.rarely():
        shape[p.integer(0, 5)] = p.choose([0, 1 << 31])
    elif p.rarely():
        shape[6] = 1 << 20
    return function, shape, parameters, [first, second]


def launch(p: Program) -> None:
    stream, chosen = p.stream(), kernel(p)
    if not stream or chosen is None:
        return
    function, shape, parameters, used = chosen
    if not p.order(stream, *used):
        return
    if p.integer(0, 3) == 3:
        config = [*shape, handle(stream), None, 0]
        p.call("cuLaunchKernelEx", config, handle(function), parameters)
    else:
        p.call("cuLaunchKernel", handle(function), *shape, handle(stream), parameters)


def host_function(p: Program) -> None:
    """It changes a byte of pageable memory when its turn comes."""
    found = [m for m in p.memories if m.host == "pageable" and not p.is_captured(m)]
    stream = p.stream()
    if not found or not stream:
        return
    to = p.choose(found)
    if not p.order(stream, to):
        return
    if p.rarely():
        p.call("cuStreamAddCallback", handle(stream), at(to), p.choose([0, 0, 1]))
    else:
        p.call("cuLaunchHostFunc", handle(stream), at(to))


def memory_operations(p: Program) -> None:
    """Values written and waited for in the order of the stream."""
    to, stream = p.memory(host=False, settled=True, least=64), p.stream()
    if to is None or not stream or not p.order(stream, to):
        return
    offset = 8 * p.integer(0, to.size // 8 - 1) + (1 if p.rarely() else 0)
    value, bits = p.integer(0, 2**32 - 1), p.choose([32, 64])
    flags = 0x77 if p.rarely() else 0
    if p.perhaps():
        place, name = at(to, offset), handle(stream)
        p.call(f"cuStreamWriteValue{bits}_v2", name, place, value, flags)
        if not flags and offset % 8 == 0:
            p.call(f"cuStreamWaitValue{bits}_v2", name, place, value, p.choose([GEQ, EQ]))
        return
    write, wait = (WRITE_32, WAIT_32) if bits == 32 else (WRITE_64, WAIT_64)
    operations: list[Any] = [[write, at(to, offset), value, flags, None]]
    if not flags and offset % 8 == 0:
        operations.append([wait, at(to, offset), value, EQ, None])
    p.call("cuStreamBatchMemOp_v2", handle(stream), len(operations), operations, 0)


def ask_context(p: Program) -> None:
    match p.choose(["state", "limits", "stack", "device", "mode", "peer"]):
        case "state":
            p.call("cuDevicePrimaryCtxGetState", p.choose([0, 0, 99]))
            p.call("cuCtxGetFlags")
            p.call("cuCtxGetStreamPriorityRange")
        case "limits":
            p.call("cuCtxSetLimit", 1, p.choose([1 << 20, 2 << 20]))  # PRINTF_FIFO_SIZE
            p.call("cuCtxGetLimit", p.choose([1, 99]))
        case "stack":
            thread = p.choose(TURNS) if p.thread is None else p.thread
            p.call("cuCtxPushCurrent_v2", p.choose([None, handle("context")]), thread=thread)
            p.call("cuCtxGetCurrent", thread=thread)
            p.call("cuCtxGetDevice", thread=thread)
            p.call("cuCtxPopCurrent_v2", thread=thread)
            p.call("cuCtxSetCurrent", handle("context"), thread=thread)
            p.call("cuCtxGetCurrent", thread=thread)
        case "device":
            p.call("cuDeviceGet", p.choose([0, 17, -1]))
            p.call("cuDeviceGetAttribute", p.choose([1, 10, 75, 76, 9999]), p.choose([0, 0, 44]))
            p.call("cuCtxGetApiVersion", p.choose([None, handle("context")]))
        case "mode":
            thread = p.choose(TURNS) if p.thread is None else p.thread
            p.call("cuThreadExchangeStreamCaptureMode", p.choose([0, 1, 2, 7]), thread=thread)
        case "peer":
            p.call("cuDeviceCanAccessPeer", p.choose([0, 99]), p.choose([0, 98]))
            p.call("cuDeviceGetP2PAttribute", p.choose([1, 9]), 0, p.choose([0, 98]))
            p.call("cuCtxEnablePeerAccess", handle("context"), p.choose([0, 1]))
            p.call("cuCtxDisablePeerAccess", handle("context"))


ALONE = [
    make_stream, memory.allocate, memory.allocate, memory.allocate_async, memory.host_memory,
    memory.memset, memory.copy, memory.copy, memory.copy_block, launch, launch, host_function,
    use_event, use_stream, memory.free, memory.virtual_memory, memory_operations,
]  # fmt: skip


def threads(p: Program) -> None:
    """Several threads at the same time, each with things of its own."""
    if p.captures or p.thread is not None:
        return
    n_threads = p.integer(2, MAX_TOGETHER)
    first = max(TURNS) + 1
    with p.at_once(range(first, first + n_threads)) as each:
        for _ in each:
            for start in (make_stream, memory.allocate):
                start(p)
            for _ in range(p.integer(2, 8)):
                p.choose(ALONE)(p)
