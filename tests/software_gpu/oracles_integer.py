# SPDX-License-Identifier: Apache-2.0
"""What PTX says that operations on integers and bits compute: Python's integers, cut to width."""

from __future__ import annotations

from collections.abc import Callable

from software_gpu.rows import SIZES, Form

Oracle = Callable[..., object]


def number(bits: int, type_name: str) -> int:
    """The value of the low bits."""
    n = SIZES[type_name]
    bits &= (1 << n) - 1
    return bits - (1 << n) if type_name[0] == "s" and bits >> (n - 1) else bits


def clamped(value: int, type_name: str) -> int:
    n = SIZES[type_name]
    low, high = (-(1 << (n - 1)), (1 << (n - 1)) - 1) if type_name[0] == "s" else (0, (1 << n) - 1)
    return min(max(value, low), high)


def part_of_product(form: Form, a: int, b: int) -> int:
    t = form.types[0]
    return number(a, t) * number(b, t) >> (SIZES[t] if form.has("hi") else 0)


def add(form: Form, a: int, b: int, carry: int = 0) -> object:
    t = form.types[0]
    x, y, n = number(a, t), number(b, t), SIZES[t]
    if form.has("sat"):
        return clamped(x + y, t)
    mask = (1 << n) - 1
    total = (x & mask) + (y & mask) + (carry & 1)
    return (total, total >> n) if form.has("cc") else total


def sub(form: Form, a: int, b: int, carry: int = 1) -> object:
    t = form.types[0]
    x, y = number(a, t), number(b, t)
    if form.has("sat"):
        return clamped(x - y, t)
    n = SIZES[t]
    mask = (1 << n) - 1
    total = (x & mask) + (~y & mask) + (carry & 1)  # no borrow is a carry, as on NVIDIA's GPUs
    return (total, total >> n) if form.has("cc") else total


def mad(form: Form, a: int, b: int, c: int, carry: int = 0) -> object:
    t = form.types[0]
    if form.has("wide"):
        return number(a, t) * number(b, t) + c
    product = part_of_product(form, a, b)
    if form.has("sat"):
        return clamped(product + number(c, t), t)
    if form.has("cc") or form.opcode == "madc":
        return add(form, product, c, carry)
    return product + c


def low24(value: int, type_name: str) -> int:
    value &= 0xFFFFFF
    return value - (1 << 24) if type_name == "s32" and value >> 23 else value


def mad24(form: Form, a: int, b: int, c: int = 0) -> int:
    t = form.types[0]
    product = low24(a, t) * low24(b, t) >> (16 if form.has("hi") else 0)
    if form.has("sat"):
        return clamped(number(product, t) + number(c, t), t)
    return product + c


def div(form: Form, a: int, b: int) -> int:
    x, y = number(a, form.types[0]), number(b, form.types[0])
    if y == 0:
        return -1
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def rem(form: Form, a: int, b: int) -> int:
    x, y = number(a, form.types[0]), number(b, form.types[0])
    return -1 if y == 0 else abs(x) % abs(y) * (-1 if x < 0 else 1)


def dot(form: Form, a: int, b: int, c: int) -> int:
    t, u = form.types[0][0], form.types[1][0]
    if form.opcode == "dp4a":
        pairs = [(8 * i, 8 * i, 8) for i in range(4)]
    else:
        pairs = [(16 * i, 8 * i + (16 if form.has("hi") else 0), 16) for i in range(2)]
    return c + sum(number(a >> x, f"{t}{n}") * number(b >> y, f"{u}8") for x, y, n in pairs)


def packed_differences(form: Form, a: int, b: int, c: int) -> int:
    n = 8 if form.opcode == "vabsdiff4" else 16
    each = [abs(number(a >> i, f"u{n}") - number(b >> i, f"u{n}")) for i in range(0, 32, n)]
    return c + sum(each) if form.has("add") else sum(x << n * i for i, x in enumerate(each))


def shift_left(form: Form, a: int, n: int) -> int:
    n &= 0xFFFFFFFF
    return a << n if n < 64 else 0


def shift_right(form: Form, a: int, n: int) -> int:
    return number(a, form.types[0]) >> min(n & 0xFFFFFFFF, 64)


def funnel(form: Form, a: int, b: int, n: int) -> int:
    n = n & 31 if form.has("wrap") else min(n & 0xFFFFFFFF, 32)
    both = (b & 0xFFFFFFFF) << 32 | a & 0xFFFFFFFF
    return both << n >> 32 if form.has("l") else both >> n


def bfind(form: Form, a: int) -> int:
    x = number(a, form.types[0])
    at = (~x if x < 0 else x).bit_length() - 1
    return SIZES[form.types[0]] - 1 - at if form.has("shiftamt") and at >= 0 else at


def field_part(t: str, value: int) -> int:
    """PTX says that the low byte counts; NVIDIA's GPUs take the whole number for 64-bit values."""
    return min(value & 0xFFFFFFFF, 64) if SIZES[t] == 64 else value & 255


def bfe(form: Form, a: int, position: int, length: int) -> int:
    t = form.types[0]
    position, length, n = field_part(t, position), field_part(t, length), SIZES[t]
    a &= (1 << n) - 1
    field = a >> position & (1 << length) - 1
    if t[0] == "s" and length and a >> min(position + length - 1, n - 1) & 1:
        field -= 1 << min(length, max(n - position, 0))
    return field


def bfi(form: Form, a: int, b: int, position: int, length: int) -> int:
    t = form.types[0]
    position, length = field_part(t, position), field_part(t, length)
    mask = (1 << length) - 1 << position
    return b & ~mask | a << position & mask


def bmsk(form: Form, position: int, width: int) -> int:
    if form.has("wrap"):
        position, width = position & 31, width & 31
    position, width = min(position & 0xFFFFFFFF, 32), min(width & 0xFFFFFFFF, 32)
    return (1 << width) - 1 << position


def szext(form: Form, a: int, width: int) -> int:
    width = width & 31 if form.has("wrap") else min(width & 0xFFFFFFFF, 32)
    low = a & (1 << width) - 1
    negative = form.types[0] == "s32" and width and low >> (width - 1)
    return low - (1 << width) if negative else low


def fns(form: Form, mask: int, base: int, offset: int) -> int:
    base, n = base & 0xFFFFFFFF, number(offset, "s32")
    if n == -(1 << 31):  # as NVIDIA's GPUs do
        return 0
    there = [i for i in range(32) if mask >> i & 1 and (i <= base if n < 0 else i >= base)]
    if n == 0:
        return base if base in there else -1
    in_order = there[::-1] if n < 0 and base < 32 else there if base < 32 else []
    return in_order[abs(n) - 1] if abs(n) <= len(in_order) else -1


def lop3(form: Form, a: int, b: int, c: int) -> int:
    table = int(form.operands[-1])
    return sum(
        (table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i for i in range(32)
    )


def prmt(form: Form, a: int, b: int, c: int) -> int:
    parts = [x >> 8 * i & 255 for x in (a, b) for i in range(4)]
    s = c & 3
    picks = {  # of the result's bytes, lowest first
        "f4e": [s + i for i in range(4)],
        "b4e": [(s - i) % 8 for i in range(4)],
        "rc8": [s] * 4,
        "ecl": [max(s, i) for i in range(4)],
        "ecr": [min(s, i) for i in range(4)],
        "rc16": [(s & 1) * 2 + i % 2 for i in range(4)],
    }.get(form.one_of("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"))
    if picks is not None:
        return sum(parts[pick] << 8 * i for i, pick in enumerate(picks))
    result = 0
    for i in range(4):
        pick = c >> 4 * i & 15
        byte = parts[pick & 7]
        result |= (255 * (byte >> 7) if pick & 8 else byte) << 8 * i
    return result


def cut(form: Form, a: int) -> int:
    return a & (1 << SIZES[form.types[0]]) - 1


ORACLES: dict[str, Oracle] = {
    "add": add,
    "addc": add,
    "sub": sub,
    "subc": sub,
    "mul": lambda form, a, b: mad(form, a, b, 0),
    "mad": mad,
    "madc": mad,
    "mul24": mad24,
    "mad24": mad24,
    "sad": lambda form, a, b, c: abs(number(a, form.types[0]) - number(b, form.types[0])) + c,
    "div": div,
    "rem": rem,
    "min": lambda form, a, b: min(number(a, form.types[0]), number(b, form.types[0])),
    "max": lambda form, a, b: max(number(a, form.types[0]), number(b, form.types[0])),
    "neg": lambda form, a: -a,
    "abs": lambda form, a: abs(number(a, form.types[0])),
    "vabsdiff2": packed_differences,
    "vabsdiff4": packed_differences,
    "dp4a": dot,
    "dp2a": dot,
    "and": lambda form, a, b: a & b,
    "or": lambda form, a, b: a | b,
    "xor": lambda form, a, b: a ^ b,
    "not": lambda form, a: ~a,
    "cnot": lambda form, a: cut(form, a) == 0,
    "shl": shift_left,
    "shr": shift_right,
    "shf": funnel,
    "popc": lambda form, a: cut(form, a).bit_count(),
    "clz": lambda form, a: SIZES[form.types[0]] - cut(form, a).bit_length(),
    "brev": lambda form, a: int(f"{cut(form, a):0{SIZES[form.types[0]]}b}"[::-1], 2),
    "bfind": bfind,
    "bfe": bfe,
    "bfi": bfi,
    "bmsk": bmsk,
    "szext": szext,
    "fns": fns,
    "lop3": lop3,
    "prmt": prmt,
    "mov": lambda form, a: a,
}
