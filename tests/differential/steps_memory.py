# SPDX-License-Identifier: Apache-2.0
"""Memory of every kind, and copies in it."""

from __future__ import annotations

from typing import Any

from differential.programs import BAD_SIZES, SIZES, Array, Memory, Program, at, handle

MIB = 1 << 20
PAGE = 4096
GRANULARITY = 2 * MIB  # of virtual memory
HOST, DEVICE, ARRAY, UNIFIED = 1, 2, 3, 4  # CUmemorytype
PINNED_PROP = [1, 0, 1, 0, None]  # CUmemAllocationProp, and CUmemPoolProps so far: on device 0
READ_WRITE = [[1, 0, 3]]


def allocate(p: Program) -> None:
    size = p.choose(BAD_SIZES if p.rarely() else SIZES)
    if p.rarely():  # in rows, of which the first is used
        symbol = f"dptr{p.call('cuMemAllocPitch_v2', size, p.choose([1, 7]), p.choose([4, 16, 3]))}"
        if p.calls[-1][2][2] == 3:
            return
    else:
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
    size = p.choose(SIZES)
    if p.pools and p.perhaps():
        number = p.call("cuMemAllocFromPoolAsync", size, handle(p.choose(p.pools)), handle(stream))
    else:
        number = p.call("cuMemAllocAsync", size, handle(stream))
    if p.captures:
        return  # which may have forbidden it
    memory = Memory(f"dptr{number}", size, last=stream, ends="cuMemFreeAsync")
    p.call("cuMemsetD8Async", at(memory), 9, size, handle(stream))
    p.memories.append(memory)


def host_memory(p: Program) -> None:
    size = p.choose(SIZES)
    if p.perhaps():
        symbol = f"page{len(p.calls)}"
        p.call("buffer", symbol, size)
        p.memories.append(Memory(symbol, size, host="pageable", ends=""))
    elif not p.captures:
        flags = p.choose([0, 1, 2, 3, 4, 7, 8, 32])
        number = p.call("cuMemHostAlloc", size, flags)
        if flags < 8:
            p.memories.append(Memory(f"host{number}", size, host="pinned", ends="cuMemFreeHost"))


def register(p: Program) -> None:
    memory = p.memory(host=True, settled=True)
    if memory is None or p.captures:
        return
    p.settle(memory)
    if memory.host == "pageable":
        # kvgpu maps whole pages only, as explained.toml says.
        mapped = [2, 3] if memory.size % PAGE == 0 or p.rarely() else []
        flags = p.choose([0, 1, 16, *mapped])
        p.call("cuMemHostRegister_v2", at(memory), memory.size, flags)
        if flags < 16:
            memory.host = "registered"
    elif memory.host == "registered" and not p.is_kept(memory):
        p.call("cuMemHostUnregister", at(memory))
        memory.host = "pageable"


def free(p: Program) -> None:
    memory = p.memory(settled=True)
    if memory is None or p.captures or p.is_kept(memory) or not memory.ends:
        return
    if memory.ends == "cuMemFreeAsync" and p.streams and p.perhaps():
        stream = p.stream()
        p.order(stream, memory)
        p.call("cuMemFreeAsync", at(memory), handle(stream))
    else:
        p.settle(memory)
        offset = p.choose([0, 0, 0, 1])
        name = "cuMemFreeHost" if memory.host else "cuMemFree_v2"
        p.call(name, at(memory, offset))
        if offset:
            return
        if p.thread is None and p.rarely():
            p.call(name, at(memory))  # once more, before the driver can use the address again
    p.memories.remove(memory)


def read_early(p: Program, source: Memory) -> bool:
    """Pageable memory may be read during the call: host functions must have changed it before."""
    return source.host in ("", "pinned") or p.settle(source)


def copy(p: Program) -> None:
    to, source = p.memory(settled=True), p.memory(settled=True)
    if to is None or source is None or to is source or (to.host and source.host):
        return
    (a, b), length = p.span(to, source)
    name = f"cuMemcpy{'H' if source.host else 'D'}to{'H' if to.host else 'D'}"
    if p.rarely():
        name = "cuMemcpy"
    stream = p.stream()
    if stream and p.perhaps():
        if read_early(p, source) and p.order(stream, to, source):
            name = "cuMemcpyAsync" if name == "cuMemcpy" else f"{name}Async_v2"
            p.call(name, at(to, a), at(source, b), length, handle(stream))
        return
    if not p.settle(to, source):
        return
    p.call(name if name == "cuMemcpy" else f"{name}_v2", at(to, a), at(source, b), length)
    p.settle_default(to, source)


def copy_peer(p: Program) -> None:
    to, source = p.memory(host=False, settled=True), p.memory(host=False, settled=True)
    if to is None or source is None or to is source:
        return
    (a, b), length = p.span(to, source)
    context, stream = handle("context"), p.stream()
    arguments = (at(to, a), context, at(source, b), context, length)
    if stream and p.perhaps():
        if p.order(stream, to, source):
            p.call("cuMemcpyPeerAsync", *arguments, handle(stream))
        return
    if not p.settle(to, source):
        return
    p.call("cuMemcpyPeer", *arguments)
    p.settle_default(to, source)


def end_of(p: Program, memory: Memory) -> list[Any]:
    """How a structure names it: MemoryType, Host, Device, Array."""
    if isinstance(memory, Array):
        return [ARRAY, None, None, at(memory)]
    if p.rarely():
        return [UNIFIED, None, at(memory), None]
    if memory.host:
        return [HOST, at(memory), None, None]
    return [DEVICE, None, at(memory), None]


def shape(p: Program, *memories: Memory) -> tuple[list[int], int, int, int]:
    """Pitches, width, height and depth of a block that lies in each of them."""
    size = min(m.size for m in memories)
    width = p.integer(1, min(size, 4096))
    pitches = [p.choose([width, width + 1, (width + 63) // 64 * 64]) for _ in memories]
    rows = max(
        1, min((m.size - width) // pitch for m, pitch in zip(memories, pitches, strict=True))
    )
    depth = p.integer(1, max(1, min(4, rows)))
    return pitches, width, p.integer(1, max(1, rows // depth)), depth


def copy_block(p: Program) -> None:
    """In two or three dimensions."""
    to, source = p.memory(settled=True), p.memory(settled=True)
    if to is None or source is None or to is source or (to.host and source.host):
        return
    pitches, width, height, depth = shape(p, to, source)
    is_flat = p.perhaps()
    ends: list[Any] = []
    for memory, pitch in zip((source, to), pitches[::-1], strict=True):
        said = width - 1 if p.rarely() else pitch
        if is_flat:
            ends += [0, 0, *end_of(p, memory), said]
        else:
            ends += [0, 0, 0, 0, *end_of(p, memory), None, said, height]
    if is_flat:
        fields = [*ends, width, height]
        names = ["cuMemcpy2D_v2", "cuMemcpy2DUnaligned_v2", "cuMemcpy2DAsync_v2"]
    else:
        fields = [*ends, width, height, depth]
        names = ["cuMemcpy3D_v2", "cuMemcpy3DAsync_v2"]
    name, stream = p.choose(names), p.stream()
    if "Async" in name:
        if stream and read_early(p, source) and p.order(stream, to, source):
            p.call(name, fields, handle(stream))
        return
    if not p.settle(to, source):
        return
    p.call(name, fields)
    p.settle_default(to, source)


def memset(p: Program) -> None:
    memory = p.memory(host=False, settled=True)
    if memory is None:
        return
    width = p.choose([1, 2, 4])
    (offset,), length = p.span(memory)
    if not p.rarely():
        offset -= offset % width
    count = max(1, length // width)
    if length <= memory.size and offset + count * width > memory.size:
        return
    value = p.integer(0, 2**32 - 1)
    stream = p.stream()
    name = f"cuMemsetD{8 * width}"
    arguments: list[Any] = [at(memory, offset), value, count]
    if length <= memory.size and p.perhaps():  # rows of `width` elements
        pitches, row, height, _ = shape(p, memory)
        name = f"cuMemsetD2D{8 * width}"
        pitch = pitches[0] if p.rarely() else pitches[0] // width * width
        if pitch < row // width * width or row < width:
            return
        arguments = [at(memory), pitch, value, row // width, height]
    if stream and p.perhaps():
        if p.order(stream, memory):
            p.call(f"{name}Async", *arguments, handle(stream))
        return
    if not p.settle(memory):
        return
    p.call(f"{name}_v2", *arguments)
    p.settle_default(memory)


def ask_memory(p: Program) -> None:
    memory = p.memory()
    if memory is None:
        return
    offset = p.integer(0, memory.size - 1)
    if not memory.host:
        p.call("cuMemGetAddressRange_v2", at(memory, offset))
    # MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL, RANGE_SIZE, MAPPED, and one that is none
    attribute = p.choose([2, 8, 9, 12, 13, 999])
    if memory.host not in ("pageable", "registered"):
        p.call("cuPointerGetAttribute", attribute, at(memory, offset))
    if memory.host == "pinned":
        p.call("cuMemHostGetFlags", at(memory, offset))
        p.call("cuMemHostGetDevicePointer_v2", at(memory, offset), p.choose([0, 0, 1]))


def use_pool(p: Program) -> None:
    if not p.pools or p.rarely():
        if p.perhaps():
            number = p.call(p.choose(["cuDeviceGetDefaultMemPool", "cuDeviceGetMemPool"]), 0)
            # It stays when the program is over.
            p.call("cuMemPoolTrimTo", [f"pool{number}", 0], 0)
            return
        kind, place = p.choose([(1, 1), (1, 1), (1, 1), (0, 1), (1, 99)])
        number = p.call("cuMemPoolCreate", [kind, 0, place, 0, None, 0])
        if (kind, place) == (1, 1) and not p.captures:
            p.pools.append(f"pool{number}")
        return
    pool = handle(p.choose(p.pools))
    match p.choose(["set", "get", "access", "trim"]):
        case "set":  # REUSE_*, RELEASE_THRESHOLD, one that is read only, one that is none
            p.call(
                "cuMemPoolSetAttribute", pool, p.choose([1, 2, 3, 4, 4, 5, 99]), p.choose([0, 1])
            )
        case "get":
            p.call("cuMemPoolGetAttribute", pool, p.choose([1, 2, 3, 4, 99]))
        case "access":
            p.call("cuMemPoolGetAccess", pool, p.choose([[1, 0], [1, 0], [1, 17]]))
            p.call("cuMemPoolSetAccess", pool, [p.choose([[1, 0, 3], [1, 0, 1], [1, 17, 3]])], 1)
        case "trim":
            p.call("cuMemPoolTrimTo", pool, p.choose([0, MIB]))


def virtual_memory(p: Program) -> None:
    """Reserve, create, map, set access; each of them wrongly at times."""
    if p.captures:
        return
    free_ranges = [symbol for symbol, phys in p.ranges.items() if not phys]
    if not free_ranges or p.rarely():
        size = 100 if p.rarely() else GRANULARITY
        alignment = p.choose([0, 0, 0, GRANULARITY, 3])
        number = p.call("cuMemAddressReserve", size, alignment, None, 0)
        if size == GRANULARITY and alignment != 3:
            p.ranges[f"va{number}"] = ""
            free_ranges.append(f"va{number}")
        if not free_ranges:
            return
    va = p.choose(free_ranges)
    size = p.choose([4096, GRANULARITY + 1]) if p.rarely() else GRANULARITY
    prop = p.choose([[0, 0, 1, 0, None], [1, 0, 1, 17, None]]) if p.rarely() else PINNED_PROP
    phys = f"phys{p.call('cuMemCreate', size, prop, 0)}"
    if size != GRANULARITY or prop is not PINNED_PROP:
        return
    size = 4096 if p.rarely() else GRANULARITY
    p.call("cuMemMap", handle(va), size, 0, handle(phys), 0)
    if size != GRANULARITY:
        return
    p.ranges[va] = phys
    if p.perhaps():
        p.call("cuMemRelease", handle(phys))  # what is mapped stays
    access = p.choose([[[1, 17, 3]], [[1, 0, 7]]]) if p.rarely() else READ_WRITE
    p.call("cuMemSetAccess", handle(va), GRANULARITY, access, 1)
    if access is READ_WRITE:
        p.call("cuMemGetAccess", p.choose([[1, 0], [1, 0], [1, 17]]), handle(va))
        memory = Memory(va, GRANULARITY, ends="")
        p.call("cuMemsetD8_v2", at(memory), 3, GRANULARITY)
        p.call("cuStreamSynchronize", None)
        p.memories.append(memory)


def unmap(p: Program) -> None:
    if not p.ranges or p.captures:
        return
    va = p.choose(p.ranges)
    found = [m for m in p.memories if m.symbol == va]
    if any(p.is_kept(m) for m in found):
        return
    p.settle(*found)
    if p.rarely():
        p.call("cuMemAddressFree", handle(va), GRANULARITY)
        if not p.ranges[va]:
            del p.ranges[va]
        return
    p.call("cuMemUnmap", handle(va), GRANULARITY)
    p.memories = [m for m in p.memories if m.symbol != va]
    if p.perhaps():
        p.ranges[va] = ""
    else:
        p.call("cuMemAddressFree", handle(va), GRANULARITY)
        del p.ranges[va]
