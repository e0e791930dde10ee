# SPDX-License-Identifier: Apache-2.0
"""Forms of ptx_ops.toml on arrays of operands, on whatever libcuda there is, and their oracles."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from software_gpu.gpu import gpu
from software_gpu.kernels import BLOCK, CONSTANTS, SLOT_BYTES, Kernel, build
from software_gpu.oracles import OF_WARPS, agrees, apply
from software_gpu.rows import SIZES, Form

INTEGERS = {
    bits: sorted(
        {0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 127, 128, 255, (1 << bits) - 1, (1 << bits) - 2}
        | {1 << bits - 1, (1 << bits - 1) - 1, (1 << bits - 1) + 1, 1 << bits // 2}
    )
    for bits in (8, 16, 32, 64)
}
# Zeros, ones, halves, subnormals, the ends of the range, what rounds and what is an integer's end.
FLOATS = {
    "f16": "0 8000 3c00 bc00 3800 3e00 c100 1 8001 3ff 400 7bff fbff 7c00 fc00 7e01 fc01 3c01 "
    "5bf8 d800",
    "bf16": "0 8000 3f80 bf80 3f00 3fc0 c020 1 8001 7f 80 7f7f ff7f 7f80 ff80 7fc1 ff81 3f81 4f00 "
    "d80",
    "f32": "0 80000000 3f800000 bf800000 3f000000 3fc00000 c0200000 1 80000001 7fffff 800000 "
    "7f7fffff ff7fffff 7f800000 ff800000 7fc00001 ff800001 4f000000 3f804000 477ff000 "
    "33000000 5f800000",
    "f64": "0 8000000000000000 3ff0000000000000 bff0000000000000 3fe0000000000000 "
    "3ff8000000000000 c004000000000000 1 8000000000000001 fffffffffffff 10000000000000 "
    "7fefffffffffffff ffefffffffffffff 7ff0000000000000 fff0000000000000 7ff8000000000001 "
    "fff0000000000001 43e0000000000000 41efffffffe00000 380ffffff0000000 36a0000000000000 "
    "3ff0000010000000 3ff0020000000001",
}


def edges(t: str) -> list[int]:
    if t in FLOATS:
        return [int(word, 16) for word in FLOATS[t].split()]
    if t in ("f16x2", "bf16x2"):
        halves = edges(t.removesuffix("x2"))
        return [a << 16 | b for a, b in zip(halves, halves[7:] + halves[:7], strict=True)]
    if t == "pred":
        return [0, 1]
    if t == "memory":
        words = [*INTEGERS[64], *edges("f64"), *edges("f32"), *edges("f16x2"), *edges("bf16x2")]
        return [a << 64 | b for a, b in zip(words, words[11:] + words[:11], strict=True)]
    return INTEGERS[SIZES[t]]


def bits_of(t: str) -> int:
    return 128 if t == "memory" else SIZES[t]


def spread(kernel: Kernel, values: dict[str, list[int]], seed: int) -> list[list[int]]:
    """A column per operand: pairs of all values of the first two, and random bits above."""
    dice, columns = random.Random(seed), []
    for index, t in enumerate(kernel.sources):
        chosen = values[t]
        if index == 0:
            column = [chosen[i % len(chosen)] for i in range(BLOCK)]
        elif index == 1:
            n = len(values[kernel.sources[0]])
            column = [chosen[(i // n + i) % len(chosen)] for i in range(BLOCK)]
        else:
            column = dice.choices(chosen, k=BLOCK)
        if t not in ("pred", "memory"):  # nobody may look at what lies above the width
            column = [x | dice.getrandbits(64) << bits_of(t) for x in column]
        columns.append(column)
    return columns


def packed(columns: list[list[int]]) -> bytes:
    mask = (1 << 128) - 1
    return b"".join((x & mask).to_bytes(SLOT_BYTES, "little") for c in columns for x in c)


class Bench:
    """A module with a kernel for each of these forms."""

    def __init__(self, forms: list[Form], is_gpu: bool = False) -> None:
        # What PTX allows a GPU, the software GPU does not need.
        self.forms = forms if is_gpu else [replace(form, absolute=0.0) for form in forms]
        self.kernels = [build(form, f"k{i}") for i, form in enumerate(self.forms)]
        self.types = sorted({t for kernel in self.kernels for t in kernel.sources})
        self.module = gpu().load(CONSTANTS + "\n".join(kernel.text for kernel in self.kernels))
        width = max(len(k.sources + k.results) for k in self.kernels) * SLOT_BYTES * BLOCK
        self.source, self.result = gpu().allocate(width), gpu().allocate(width)

    def close(self) -> None:
        gpu().unload(self.module)
        gpu().free(self.source)
        gpu().free(self.result)

    def run(self, index: int, columns: list[list[int]]) -> list[list[int]]:
        form, kernel = self.forms[index], self.kernels[index]
        n_bytes = len(kernel.results) * SLOT_BYTES * BLOCK
        gpu().write(self.source, packed(columns))
        gpu().write(self.result, bytes(n_bytes))
        arguments: list[object] = [ctypes.c_uint64(self.source), ctypes.c_uint64(self.result)]
        if form.has("param::entry"):
            columns[0][:] = columns[0][:1] * BLOCK
            cell = packed([columns[0][:1]])
            arguments.append((ctypes.c_char * SLOT_BYTES).from_buffer_copy(cell))
        if form.has("const"):
            gpu().write(gpu().variable(self.module, "table"), packed([columns[0]]))
        gpu().launch(self.module, f"k{index}", BLOCK, 1, *arguments)
        data = gpu().read(self.result, n_bytes)
        slots = [
            int.from_bytes(data[i : i + SLOT_BYTES], "little")
            for i in range(0, n_bytes, SLOT_BYTES)
        ]
        return [slots[i : i + BLOCK] for i in range(0, len(slots), BLOCK)]

    def wrong(self, index: int, values: dict[str, list[int]], seed: int) -> Iterator[str]:
        """Say of each result of a form that the oracle does not agree with what it is."""
        form, kernel = self.forms[index], self.kernels[index]
        columns = spread(kernel, values, seed)
        results = self.run(index, columns)
        threads = list(zip(*columns, strict=True))
        for i, want in enumerate(wanted(form, threads)):
            wants = want if isinstance(want, tuple) else (want,)
            assert len(wants) >= len(results)  # a second destination may be left out
            for t, column, each in zip(kernel.results, results, wants, strict=False):
                if not agrees(column[i], each, t, form.tolerance):
                    shown = hex(each) if isinstance(each, int) else each
                    operands = [hex(x) for x in threads[i]]
                    yield f"{form.text} of {operands}: {column[i]:#x}, not {shown}"


def wanted(form: Form, threads: Sequence[tuple[int, ...]]) -> list[object]:
    if form.opcode in OF_WARPS:
        oracle = OF_WARPS[form.opcode]
        return [w for i in range(0, BLOCK, 32) for w in oracle(form, threads[i : i + 32])]
    return [apply(form, operands) for operands in threads]
