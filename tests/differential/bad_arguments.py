# SPDX-License-Identifier: Apache-2.0
"""For each parameter of each entry point the bad arguments of its type."""

from __future__ import annotations

import ctypes
from typing import Any

from differential.arguments import (
    BY_TYPE,
    FUNCTIONS,
    HANDLES,
    INACTIVE,
    LISTS,
    WIDTHS,
    Make,
    good,
    none,
    of_width,
    place,
)
from differential.scene import Scene
from differential.scene_base import buffer


def freed(kind: str) -> Make:
    def make(scene: Scene) -> Any:
        other = type(scene)(scene.cuda, scene.for_function)
        if kind == "CUcontext":
            value = other.made("cuCtxCreate_v2", 0, 0)
            other.must("cuCtxDestroy_v2", value)
            other.must("cuCtxSetCurrent", other.primary)
        elif kind == "CUdeviceptr":
            value = other.memory
            other.must("cuMemFree_v2", value)
        elif kind == "CUfunction":
            value = other.function
            other.must("cuModuleUnload", other.module)
        elif kind == "CUkernel":
            value = other.kernel
            other.must("cuLibraryUnload", other.library)
        elif kind == "CUsurfref":
            value = other.surface_reference
            other.must("cuModuleUnload", other.references)
        elif kind == "CUuserObject":
            value = other.user_object
            other.must("cuUserObjectRelease", value, 1)
        else:
            value = getattr(other, HANDLES[kind][0])
            other.must(HANDLES[kind][2], value)
        return value

    return make


RISKY = frozenset({"freed", "other", "pageable"})  # a driver may crash
STRAY = 0x1230


def bad(function: str, name: str, kind: str) -> dict[str, Make]:
    """Return the bad arguments for a parameter, by what is bad about them."""
    if kind == "const char *":
        unknown = b"no such thing, " + function.encode()  # nor a file that another call has written
        return {"null": none, "empty": lambda _: b"", "unknown": lambda _: unknown}
    if kind.endswith("*"):
        structures: dict[str, Make] = {}
        if (function, name) in LISTS:
            structures = {"no room": place(b"")}
        if kind in BY_TYPE and not name.endswith("_out"):
            structures = {"zeros": place(b"")}
        if name == "p":
            structures = {"pageable": lambda _: buffer(), "device": lambda s: s.memory}
        return {"null": none, **structures}
    if kind in HANDLES:
        ends = HANDLES[kind][2] or kind in ("CUcontext", "CUfunction", "CUkernel", "CUsurfref")
        return {
            "null": number(kind, 0),
            **({"freed": freed(kind)} if ends or kind == "CUuserObject" else {}),
            "other": lambda s: getattr(s, HANDLES[kind][1]),
        }
    if kind == "CUdeviceptr":
        return {
            "null": number(kind, 0),
            "freed": freed(kind),
            "pageable": lambda s: ctypes.c_uint64(ctypes.addressof(s.pageable)),
            "stray": number(kind, STRAY),
        }
    if kind == "CUdevice" and function == INACTIVE:
        return {"inactive": lambda s: s.without_primary(), "99": number(kind, 99)}
    if kind == "CUdevice":
        return {"-1": number(kind, -1), "99": number(kind, 99)}
    if kind in FUNCTIONS:
        return {"null": none}
    if kind in ("CUipcMemHandle", "CUipcEventHandle"):
        return {"zeros": lambda s: type(good(function, name, kind)(s))()}
    if kind == "CUmemLocation":
        return {
            "zeros": lambda _: ctypes.c_uint64(0),
            "99": lambda _: ctypes.c_uint64(99 << 32 | 1),
        }
    if kind == "CUoccupancyB2DSize":
        return {}
    if kind == "float":
        return {"nan": lambda _: ctypes.c_float(float("nan"))}
    if kind in WIDTHS:
        return {"zero": number(kind, 0), "huge": number(kind, -1)}
    return {"zero": number(kind, 0), "-1": number(kind, -1), "99": number(kind, 99)}


def place_of(word: int) -> Make:
    """A CUmemLocation: type and number."""
    return lambda _: ctypes.c_uint64(word)


def number(kind: str, value: int) -> Make:
    return lambda _: of_width(kind, value)
