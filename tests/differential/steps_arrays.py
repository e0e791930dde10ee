# SPDX-License-Identifier: Apache-2.0
"""CUDA arrays, and copies between them and memory of every kind."""

from __future__ import annotations

from typing import Any

from differential.programs import Array, Memory, Program, handle
from differential.steps_memory import end_of, read_early

FORMAT_BYTES = {1: 1, 2: 2, 3: 4, 0x20: 4}  # CUarray_format: three unsigned ones, float
NO_FORMAT = 0x77
SURFACE, NO_FLAG = 2, 1 << 20  # CUDA_ARRAY3D_*


def make_array(p: Program) -> None:
    """Of one to three dimensions, filled at once: what is in a new one is open."""
    if p.captures:
        return
    kind = NO_FORMAT if p.rarely() else p.choose(FORMAT_BYTES)
    channels = 3 if p.rarely() else p.choose([1, 2, 4])
    width, height = p.choose([1, 16, 100, 1024]), p.choose([0, 1, 16, 33])
    depth = p.choose([0, 0, 1, 4])
    flags = NO_FLAG if p.rarely() else p.choose([0, 0, SURFACE])
    if depth == 0 and flags == 0:
        number = p.call("cuArrayCreate_v2", [width, height, kind, channels])
    else:
        number = p.call("cuArray3DCreate_v2", [width, height, depth, kind, channels, flags])
    if kind == NO_FORMAT or channels == 3 or flags == NO_FLAG or (depth and not height):
        return
    array = Array(
        f"array{number}", 0, element=FORMAT_BYTES[kind] * channels, shape=(width, height, depth)
    )
    array.size = array.element * width * max(1, height) * max(1, depth)
    source = p.memory(settled=True, least=array.size)
    if source is None or not p.settle(source):
        return
    box = (array.element * width, max(1, height), max(1, depth))
    p.call("cuMemcpy3D_v2", _copy(p, array, source, (0, 0, 0), box, to_array=True))
    p.settle_default(source)
    p.arrays.append(array)


def _copy(
    p: Program,
    array: Array,
    memory: Memory,
    place: tuple[int, int, int],
    box: tuple[int, int, int],
    *,
    to_array: bool,
) -> list[Any]:
    """CUDA_MEMCPY3D; rows and planes lie close together in the memory."""
    width, height, depth = box
    one = [*place, 0, *end_of(p, array), None, 0, 0]
    other = [0, 0, 0, 0, *end_of(p, memory), None, width, height]
    return [*(other + one if to_array else one + other), width, height, depth]


def _flat(fields: list[Any]) -> list[Any]:
    """The same as CUDA_MEMCPY2D."""
    ends = (fields[:11], fields[11:22])
    return [*(x for end in ends for x in (*end[:2], *end[4:8], end[9])), *fields[22:24]]


def copy_array(p: Program) -> None:
    """A random block of an array, there or back; rarely more than it has."""
    arrays = [array for array in p.arrays if not p.is_captured(array)]
    if not arrays:
        return
    array = p.choose(arrays)
    dims = [max(1, n) for n in array.shape]
    place = tuple(p.integer(0, n - 1) for n in dims)
    count = [p.integer(1, n - at) for n, at in zip(dims, place, strict=True)]
    if not p.captures and p.rarely():
        count[p.integer(0, 2)] += max(dims)
    box = (count[0] * array.element, count[1], count[2])
    at = (place[0] * array.element, place[1], place[2])
    memory = p.memory(settled=True, least=box[0] * box[1] * box[2])
    if memory is None:
        return
    to_array = p.perhaps()
    fields = _copy(p, array, memory, at, box, to_array=to_array)
    names = ["cuMemcpy3D_v2", "cuMemcpy3DAsync_v2"]
    if at[2] == 0 and box[2] == 1 and p.perhaps():
        names = ["cuMemcpy2D_v2", "cuMemcpy2DUnaligned_v2", "cuMemcpy2DAsync_v2"]
        fields = _flat(fields)
    name, stream = p.choose(names), p.stream()
    if "Async" in name:
        early = not to_array or read_early(p, memory)
        if stream and early and p.order(stream, array, memory):
            p.call(name, fields, handle(stream))
        return
    if p.settle(array, memory):
        p.call(name, fields)
        p.settle_default(array, memory)


def copy_line(p: Program) -> None:
    """Arrays of one dimension, with offsets of bytes."""
    lines = [a for a in p.arrays if a.shape[1] == a.shape[2] == 0 and not p.is_captured(a)]
    memory = p.memory(settled=True)
    if not lines or memory is None:
        return
    array = p.choose(lines)
    (at, offset), length = p.span(array, memory)
    side = "H" if memory.host else "D"
    place, there = handle(array.symbol), [memory.symbol, offset]
    stream = p.stream()
    if p.perhaps():
        name, arguments = f"cuMemcpy{side}toA", [place, at, there, length]
    else:
        name, arguments = f"cuMemcpyAto{side}", [there, place, at, length]
    if side == "H" and stream and p.perhaps():
        early = name.endswith("AtoH") or read_early(p, memory)
        if early and p.order(stream, array, memory):
            p.call(f"{name}Async_v2", *arguments, handle(stream))
        return
    if p.settle(array, memory):
        p.call(f"{name}_v2", *arguments)
        p.settle_default(array, memory)


def use_array(p: Program) -> None:
    if not p.arrays or p.captures:
        return
    array = p.choose(p.arrays)
    if p.perhaps():
        p.call(
            p.choose(["cuArrayGetDescriptor_v2", "cuArray3DGetDescriptor_v2"]), handle(array.symbol)
        )
    elif p.settle(array):
        p.call("cuArrayDestroy", handle(array.symbol))
        p.arrays.remove(array)
