# SPDX-License-Identifier: Apache-2.0
"""The oracle of every form: what a thread's results are, given its operands.

An oracle gets the form and the operands as integers (only the low bits count) and returns one
result or a tuple of them. Operations of a warp get the operands of all its threads.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from software_gpu import oracles_float, oracles_integer
from software_gpu.oracles_float import AnyNan, Near, decode, encode, flushed
from software_gpu.oracles_integer import number
from software_gpu.rows import SIZES, Form

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "lo": operator.lt,
    "ls": operator.le,
    "hi": operator.gt,
    "hs": operator.ge,
}
COMBINATIONS = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def value(bits: int, t: str) -> float:
    return decode(bits, t) if t in oracles_float.FRACTION_BITS else number(bits, t)


def compared(form: Form, t: str, a: int, b: int) -> bool:
    x, y = value(a, t), value(b, t)
    if form.has("ftz"):
        x, y = flushed(x, t), flushed(y, t)
    unordered = x != x or y != y
    name = form.parts[0]
    if name in ("num", "nan"):
        return unordered == (name == "nan")
    if name in COMPARISONS:
        return not unordered and COMPARISONS[name](x, y)
    return unordered or COMPARISONS[name.removesuffix("u")](x, y)


def setp(form: Form, a: int, b: int, c: int = 0) -> tuple[bool, ...]:
    """The comparison and its opposite, or the comparisons of a pair."""
    t = form.types[-1]
    elements = lanes(t)
    results = [compared(form, element, a >> i, b >> i) for element, i in elements]
    if len(elements) == 1:
        results.append(not results[0])
    if combination := form.one_of(*COMBINATIONS):
        results = [COMBINATIONS[combination](each, bool(c)) for each in results]
    return tuple(results)


TRUE = {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000}


def set_register(form: Form, a: int, b: int, c: int = 0) -> int:
    holds = setp(form, a, b, c)
    to = form.types[0]
    if len(lanes(form.types[1])) == 2:
        one = TRUE.get(to.removesuffix("x2"), 0xFFFF)
        return one * holds[0] | (one << 16) * holds[1]
    return TRUE.get(to, -1) if holds[0] else 0


def slct(form: Form, a: int, b: int, c: int) -> int:
    t = form.types[1]
    x = value(c, t)
    if form.has("ftz"):
        x = flushed(x, t)
    return a if x >= 0 else b


def load(form: Form, cell: int) -> tuple[object, ...]:
    t = form.types[0]
    n = {"v2": 2, "v4": 4}.get(form.one_of("v2", "v4"), 1)
    return (*(number(cell >> SIZES[t] * i, t) for i in range(n)), cell)


def store(form: Form, cell: int, *elements: int) -> int:
    n = SIZES[form.types[0]]
    for i, element in enumerate(elements):
        mask = (1 << n) - 1 << n * i
        cell = cell & ~mask | element << n * i & mask
    return cell


def lanes(t: str) -> list[tuple[str, int]]:
    """The element type of a pair and where its elements lie; a plain type has one."""
    return [(t.removesuffix("x2"), i) for i in ((0, 16) if t.endswith("x2") else (0,))]


def updated(form: Form, old: int, b: int, c: int = 0) -> object:
    t = form.types[0]
    operation = form.one_of("add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas")
    match operation:
        case "exch":
            return b
        case "cas":
            return c if number(old, t) == number(b, t) else old
        case "inc":
            x, y = number(old, t), number(b, t)
            return 0 if x >= y else x + 1
        case "dec":
            x, y = number(old, t), number(b, t)
            return y if x == 0 or x > y else x - 1
    # In shared memory subnormal numbers count.
    flushes = t == "f32" and not form.has("shared")
    plain = Form(operation, ("ftz", t) if flushes else (t,), (), None)
    return apply(plain, (old, b))


def atomic(form: Form, cell: int, *operands: int) -> object:
    new = updated(form, cell, *operands)
    n = SIZES[form.types[0]]
    if isinstance(new, list):  # of a pair's elements
        new = new[1] << 16 | new[0]
    after = cell >> n << n | new & (1 << n) - 1 if isinstance(new, int) else new
    return after if form.opcode == "red" else (cell, after)


def shfl(form: Form, warp: Sequence[tuple[int, ...]]) -> list[tuple[int, bool]]:
    results = []
    for lane, (_, distance, control) in enumerate(warp):
        b, c, segment = distance & 31, control & 31, control >> 8 & 31
        last, first = lane & segment | c & ~segment, lane & segment
        source, inside = {
            "up": (lane - b, lane - b >= last),
            "down": (lane + b, lane + b <= last),
            "bfly": (lane ^ b, lane ^ b <= last),
            "idx": (first | b & ~segment, first | b & ~segment <= last),
        }[form.parts[1]]
        inside = {"up": source >= last}.get(form.parts[1], source <= last)
        results.append((warp[source if inside else lane][0], inside))
    return results


def vote(form: Form, warp: Sequence[tuple[int, ...]]) -> list[int]:
    yes = [bool(a) for a, *_ in warp]
    result = {
        "all": all(yes),
        "any": any(yes),
        "uni": len(set(yes)) == 1,
        "ballot": sum(each << i for i, each in enumerate(yes)),
    }[form.parts[1]]
    return [int(result)] * len(warp)


def match(form: Form, warp: Sequence[tuple[int, ...]]) -> list[object]:
    values = [number(a, form.types[0]) for a, *_ in warp]
    if form.has("all"):
        same = len(set(values)) == 1
        return [((1 << len(warp)) - 1 if same else 0, same)] * len(warp)
    return [sum((x == y) << i for i, y in enumerate(values)) for x in values]


def redux(form: Form, warp: Sequence[tuple[int, ...]]) -> list[object]:
    result = warp[0][0]
    plain = Form(form.parts[1], (form.types[0],), (), None)
    for a, *_ in warp[1:]:
        result = int(apply(plain, (result, a)))  # type: ignore[call-overload]
    return [result] * len(warp)


OF_WARPS: dict[str, Callable[..., Sequence[object]]] = {
    "shfl": shfl,
    "vote": vote,
    "match": match,
    "redux": redux,
}
OTHERS: dict[str, Callable[..., object]] = {
    "setp": setp,
    "set": set_register,
    "selp": lambda form, a, b, c: a if c else b,
    "slct": slct,
    "ld": load,
    "ldu": load,
    "st": store,
    "atom": atomic,
    "red": atomic,
}


def joined(form: Form, operands: tuple[int, ...]) -> object:
    """A pair's result: each element's own."""
    t = form.types[0]
    results = []
    for element, shift in lanes(t):
        plain = Form(
            form.opcode, tuple(element if p == t else p for p in form.parts), (), form.tolerance
        )
        results.append(apply(plain, tuple(each >> shift for each in operands)))
    return results if len(results) > 1 else results[0]


def apply(form: Form, operands: tuple[int, ...]) -> object:
    if form.opcode in OTHERS:
        return OTHERS[form.opcode](form, *operands)
    if form.opcode == "cvt":
        pair = form.types[0].endswith("x2")
        return (oracles_float.cvt_pair if pair else oracles_float.cvt)(form, *operands)
    if form.types[0].endswith("x2"):
        return joined(form, operands)
    floating = form.types[0] in oracles_float.FRACTION_BITS
    table = oracles_float.ORACLES if floating else oracles_integer.ORACLES
    return table[form.opcode](form, *operands)


def agrees(got: int, want: object, t: str, tolerance: float | None) -> bool:
    """Whether the result's bits are what the oracle wants."""
    if isinstance(want, list):  # of a pair's elements
        element = t.removesuffix("x2")
        return all(
            agrees(got >> 16 * i & 0xFFFF, each, element, tolerance) for i, each in enumerate(want)
        )
    if isinstance(want, AnyNan):
        return math.isnan(decode(got, "f64" if t == "memory" else t))
    if isinstance(want, Near):
        assert tolerance is not None
        x, unit = decode(got, t), decode(1, t) + want.absolute
        if math.isinf(x) or math.isinf(want.value):
            largest = decode(encode((False, 1, 4096), t, "rz"), t)
            return x == want.value or abs(want.value) >= largest * (1 - tolerance)
        return abs(x - want.value) <= tolerance * abs(want.value) + unit
    assert isinstance(want, int)
    bits = 128 if t == "memory" else 32 if SIZES[t] == 8 else SIZES[t]
    return got == want & (1 << bits) - 1
