# SPDX-License-Identifier: Apache-2.0
"""What PTX says that floating-point operations compute.

Values are Python floats (all formats are subsets of f64); results are computed exactly, as
sign, integer and power of two, and rounded once. Where a quotient or a root does not end, its last
bit says that something follows.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

from software_gpu.oracles_integer import clamped, number
from software_gpu.rows import SIZES, Form

FRACTION_BITS = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}
BIASES = {"f16": 15, "bf16": 127, "f32": 127, "f64": 1023}
CANONICAL_NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}
ROUNDINGS = ("rn", "rz", "rm", "rp")
STEPS = 80  # bits of a quotient or a root, more than any format has


@dataclass(frozen=True)
class AnyNan:
    """A result whose payload PTX leaves open."""


@dataclass(frozen=True)
class Near:
    """A result within the row's tolerance of this value, or this far from it."""

    value: float
    absolute: float = 0.0


Exact = tuple[bool, int, int]  # sign, magnitude, exponent: magnitude * 2**exponent


def decode(bits: int, t: str) -> float:
    if t == "bf16":
        bits, t = (bits & 0xFFFF) << 16, "f32"
    code, n = {"f16": ("eH", 2), "f32": ("fI", 4), "f64": ("dQ", 8)}[t]
    bits &= (1 << 8 * n) - 1
    return float(struct.unpack("<" + code[0], struct.pack("<" + code[1], bits))[0])


def exact(x: float) -> Exact:
    fraction, exponent = math.frexp(abs(x))
    return math.copysign(1, x) < 0, int(fraction * 2**53), exponent - 53


def encode(value: Exact, t: str, rounding: str = "rn") -> int:
    """Round to the format."""
    negative, magnitude, exponent = value
    p, bias = FRACTION_BITS[t], BIASES[t]
    sign = negative << SIZES[t] - 1
    if magnitude == 0:
        return sign
    unit = max(exponent + magnitude.bit_length() - 1, 1 - bias) - p
    shift = max(unit - exponent, 0)
    whole = magnitude << max(exponent - unit, 0) >> shift
    twice_rest, one = 2 * (magnitude & (1 << shift) - 1), 1 << shift
    away = rounding == ("rm" if negative else "rp")
    if rounding == "rn":
        whole += twice_rest > one or (twice_rest == one and shift > 0 and whole & 1)
    else:
        whole += away and twice_rest > 0
    infinity = 2 * bias + 1 << p
    result = whole + (unit + p + bias - 1 << p)
    if result >= infinity:
        result = infinity if away or rounding == "rn" else infinity - 1
    return sign | result


def special(x: float, t: str) -> int | AnyNan:
    """The bits of an infinity, a zero or the NaN of arithmetic."""
    if math.isnan(x):
        return CANONICAL_NAN.get(t, AnyNan())
    p = FRACTION_BITS[t]
    sign = int(math.copysign(1, x) < 0) << SIZES[t] - 1
    return sign | ((2 * BIASES[t] + 1 << p) if math.isinf(x) else 0)


def flushed(x: float, t: str) -> float:
    return math.copysign(0.0, x) if abs(x) < 2.0 ** (1 - BIASES[t]) else x


def finish(form: Form, bits: int | AnyNan, t: str) -> int:
    """.ftz, .sat and .relu of a rounded result that is a number."""
    assert isinstance(bits, int)
    x = decode(bits, t)
    if form.has("sat"):
        one = BIASES[t] << FRACTION_BITS[t]
        bits = (one if x >= 1 else bits) if x > 0 else 0
    if form.has("relu") and x <= 0:
        bits = 0
    if form.has("ftz") and flushed(decode(bits, t), t) == 0:
        bits &= 1 << SIZES[t] - 1
    return bits


def product(a: Exact, b: Exact) -> Exact:
    return a[0] != b[0], a[1] * b[1], a[2] + b[2]


def total(a: Exact, b: Exact, rounding: str) -> Exact:
    exponent = min(a[2], b[2])
    terms = [(-m if negative else m) << e - exponent for negative, m, e in (a, b)]
    value = sum(terms)
    if value == 0:
        alike = a[0] == b[0] and a[1] == b[1] == 0
        return a[0] if alike else rounding == "rm", 0, 0
    return value < 0, abs(value), exponent


def quotient(a: Exact, b: Exact) -> Exact:
    shift = max(STEPS + b[1].bit_length() - a[1].bit_length(), 0)
    whole, rest = divmod(a[1] << shift, b[1])
    return a[0] != b[0], whole << 1 | (rest > 0), a[2] - b[2] - shift - 1


def root(a: Exact) -> Exact:
    shift = 2 * STEPS + (a[2] & 1)
    scaled = a[1] << shift
    whole = math.isqrt(scaled)
    return False, whole << 1 | (whole * whole != scaled), (a[2] - shift) // 2 - 1


def divided(a: float, b: float) -> float:
    """For operands that are not finite, or zero."""
    if b == 0:
        unknown = a == 0 or math.isnan(a)
        return math.nan if unknown else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def compute(operation: str, x: list[float], rounding: str) -> Exact | float:
    """Exact where all is finite; a float for infinities, NaN and their like."""
    finite = all(map(math.isfinite, x))
    e = [exact(each) if math.isfinite(each) else (False, 0, 0) for each in x]
    match operation:
        case "add":
            return total(e[0], e[1], rounding) if finite else x[0] + x[1]
        case "sub":
            minus = (not e[1][0], e[1][1], e[1][2])
            return total(e[0], minus, rounding) if finite else x[0] - x[1]
        case "mul":
            return product(e[0], e[1]) if finite else x[0] * x[1]
        case "fma" | "mad":
            if finite:
                return total(product(e[0], e[1]), e[2], rounding)
            return x[2] if math.isfinite(x[0]) and math.isfinite(x[1]) else x[0] * x[1] + x[2]
        case "div":
            return quotient(e[0], e[1]) if finite and x[1] != 0 else divided(x[0], x[1])
        case "rcp":
            one = (False, 1, 0)
            return quotient(one, e[0]) if finite and x[0] != 0 else divided(1.0, x[0])
        case "sqrt":
            if x[0] < 0:
                return math.nan
            return root(e[0]) if finite and x[0] != 0 else x[0]
    raise AssertionError(operation)


def arithmetic(form: Form, *bits: int) -> object:
    t = form.types[0]
    if form.opcode in ("rcp", "rsqrt") and t == "f64" and form.has("approx") and form.has("ftz"):
        bits = tuple(each >> 32 << 32 for each in bits)  # the lower word does not count
    x = [decode(each, t) for each in bits]
    if form.has("ftz"):
        x = [flushed(each, t) for each in x]
    if form.tolerance is not None:
        return near(form, x)
    rounding = form.one_of(*ROUNDINGS) or "rn"
    value = compute(form.opcode, x, rounding)
    if isinstance(value, float):
        if math.isnan(value):
            return 0 if form.has("sat") else special(value, t)
        return finish(form, special(value, t), t)
    return finish(form, encode(value, t, rounding), t)


def near(form: Form, x: list[float]) -> object:
    t = form.types[0]
    if (
        form.opcode == "div" and form.has("approx") and 2.0**126 < abs(x[1]) < math.inf
    ):  # its reciprocal is 0
        x = [x[0] * math.copysign(0.0, x[1]), 1.0]
    functions: dict[str, Callable[..., float]] = {
        "div": lambda a, b: divided(a, b),
        "rcp": lambda a: divided(1.0, a),
        "sqrt": lambda a: math.sqrt(a) if a >= 0 else math.nan,
        "rsqrt": lambda a: divided(1.0, math.sqrt(a) if a > 0 else a) if a >= 0 else math.nan,
        "sin": lambda a: math.sin(a) if math.isfinite(a) else math.nan,
        "cos": lambda a: math.cos(a) if math.isfinite(a) else math.nan,
        "lg2": lambda a: math.log2(a) if a > 0 else -math.inf if a == 0 else math.nan,
        "ex2": lambda a: 2.0**a if a < 1024 else a if math.isnan(a) else math.inf,
        "tanh": math.tanh,
    }
    value = functions[form.opcode](*x)
    if math.isnan(value):
        return special(value, t)
    if form.has("ftz"):
        value = flushed(value, t)
    if form.absolute and form.opcode in ("sin", "cos") and abs(x[0]) > 2 * math.pi:
        return Near(0.0, absolute=1.0)
    return Near(value, form.absolute)


def extreme(form: Form, a: int, b: int) -> object:
    t = form.types[0]
    x, y = decode(a, t), decode(b, t)
    if form.has("ftz"):
        x, y = flushed(x, t), flushed(y, t)
    nans = math.isnan(x) + math.isnan(y)
    if nans == 2 or (nans and form.has("NaN")):
        return special(math.nan, t)
    if nans:
        chosen = y if math.isnan(x) else x
    else:
        ordered = sorted((x, y), key=lambda v: (v, math.copysign(1, v)))
        chosen = ordered[form.opcode == "max"]
    return encode(exact(chosen), t) if math.isfinite(chosen) else special(chosen, t)


def sign_only(form: Form, a: int) -> object:
    t = form.types[0]
    x = decode(a, t)
    if math.isnan(x):
        return AnyNan()
    sign = 1 << SIZES[t] - 1
    if form.has("ftz") and flushed(x, t) == 0:
        a &= sign
    return a & sign - 1 if form.opcode == "abs" else a ^ sign


def testp(form: Form, a: int) -> bool:
    x, t = decode(a, form.types[0]), form.types[0]
    subnormal = x != 0 and flushed(x, t) == 0
    return {
        "finite": math.isfinite(x),
        "infinite": math.isinf(x),
        "number": not math.isnan(x),
        "notanumber": math.isnan(x),
        "normal": math.isfinite(x) and not subnormal,
        "subnormal": subnormal,
    }[form.parts[0]]


def copysign(form: Form, a: int, b: int) -> int:
    sign = 1 << SIZES[form.types[0]] - 1
    return a & sign | b & sign - 1


def cvt(form: Form, a: int) -> object:
    to, source = form.types
    rounding = form.one_of(*ROUNDINGS, *(r + "i" for r in ROUNDINGS))
    if source not in FRACTION_BITS:
        value = number(a, source)
        if to not in FRACTION_BITS:
            return clamped(value, to) if form.has("sat") else number(value, to)
        return finish(form, encode((value < 0, abs(value), 0), to, rounding), to)
    x = decode(a, source)
    if form.has("ftz") and source == "f32" and to not in ("f16", "bf16"):
        x = flushed(x, source)
    if to not in FRACTION_BITS:
        return to_integer(x, to, source, rounding)
    if math.isnan(x):
        return 0 if form.has("sat") else AnyNan()
    if math.isinf(x):
        return finish(form, special(x, to), to)
    if rounding.endswith("i"):
        whole = rounded_integer(x, rounding)
        return finish(form, encode((math.copysign(1, x) < 0, abs(whole), 0), to), to)
    bits = encode(exact(x), to, rounding or "rn")
    return (
        finish(form, bits, to) if to == "f32" or not form.has("ftz") else unflushed(form, bits, to)
    )


def unflushed(form: Form, bits: int, t: str) -> object:
    """.ftz is about f32 only: a subnormal result of another type stays."""
    plain = Form(form.opcode, tuple(p for p in form.parts if p != "ftz"), (), None)
    return finish(plain, bits, t)


def rounded_integer(x: float, rounding: str) -> int:
    match rounding:
        case "rni":
            return round(x)
        case "rzi":
            return math.trunc(x)
        case "rmi":
            return math.floor(x)
    return math.ceil(x)


def to_integer(x: float, to: str, source: str, rounding: str) -> int:
    if math.isnan(x):
        if source == "f64" or SIZES[to] == 64:
            return number(1 << SIZES[to] - 1, to)
        return 0
    if math.isinf(x):
        x = math.copysign(2.0**70, x)
    return clamped(rounded_integer(x, rounding), to)


def cvt_pair(form: Form, high: int, low: int) -> int:
    to = form.types[0].removesuffix("x2")
    parts = tuple(to if p == form.types[0] else p for p in form.parts)
    one = Form("cvt", parts, (), None)
    halves = [cvt(one, high), cvt(one, low)]
    bits = [CANONICAL_NAN[to] if isinstance(h, AnyNan) else h for h in halves]
    assert isinstance(bits[0], int)
    assert isinstance(bits[1], int)
    return bits[0] << 16 | bits[1]


ORACLES: dict[str, Callable[..., object]] = {
    **dict.fromkeys(("add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt"), arithmetic),
    **dict.fromkeys(("rsqrt", "sin", "cos", "lg2", "ex2", "tanh"), arithmetic),
    "min": extreme,
    "max": extreme,
    "neg": sign_only,
    "abs": sign_only,
    "testp": testp,
    "copysign": copysign,
    "mov": lambda form, a: a,
}
