# SPDX-License-Identifier: Apache-2.0
"""From a form to a kernel in which every thread applies it to operands of its own.

`in` and `out` are columns of 16-byte slots, one slot per thread and operand or result.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from software_gpu.rows import SIZES, Form

SLOT_BYTES = 16
BLOCK = 256  # threads of a block
CONSTANTS = f".const .align 16 .b8 table[{SLOT_BYTES * BLOCK}];\n"
BOXED = ("param", "param::func")


@dataclass
class Kernel:
    text: str
    sources: list[str]  # types of the columns of `in`; a memory cell is "memory"
    results: list[str]  # types of the columns of `out`


def register_bits(type_name: str) -> int:
    """Registers have 16 bits at least; 8-bit values lie in 32-bit ones, to show their extension."""
    return 32 if SIZES[type_name] == 8 else SIZES[type_name]


def slot(base: str, column: int, offset: int = 0) -> str:
    return f"[{base}+{column * SLOT_BYTES * BLOCK + offset}]"


class Builder:
    def __init__(self, form: Form, name: str) -> None:
        self.form = form
        self.name = name
        self.declarations: list[str] = []
        self.before: list[str] = []
        self.after: list[str] = []
        self.kernel = Kernel("", [], [])
        self.n_registers = 0
        self.space = form.one_of(
            "global", "shared", "local", "const", "param", "param::func", "param::entry"
        )

    def register(self, type_name: str) -> str:
        kind = ".pred" if type_name == "pred" else f".b{register_bits(type_name)}"
        self.n_registers += 1
        self.declarations.append(f".reg {kind} v{self.n_registers};")
        return f"v{self.n_registers}"

    def source(self, type_name: str, column: int | None = None, offset: int = 0) -> str:
        if column is None:
            column = len(self.kernel.sources)
            self.kernel.sources.append(type_name)
        place = slot("from", column, offset)
        name = self.register(type_name)
        if type_name == "pred":
            self.before += [f"ld.global.b32 word, {place};", f"setp.ne.b32 {name}, word, 0;"]
        else:
            self.before.append(f"ld.global.b{register_bits(type_name)} {name}, {place};")
        return name

    def result(self, type_name: str) -> str:
        place = slot("to", len(self.kernel.results))
        self.kernel.results.append(type_name)
        name = self.register(type_name)
        if type_name == "pred":
            self.after += [f"selp.b32 word, 1, 0, {name};", f"st.global.b32 {place}, word;"]
        else:
            self.after.append(f"st.global.b{register_bits(type_name)} {place}, {name};")
        return name

    def vector(self, word: str, is_result: bool) -> str:
        match = re.fullmatch(r"\{(\w+)\}(\d)", word)
        assert match
        element, count = match[1], int(match[2])
        if is_result:
            return "{" + ", ".join(self.result(element) for _ in range(count)) + "}"
        return "{" + ", ".join(self.source(element) for _ in range(count)) + "}"

    def memory(self) -> str:
        """A cell with the bytes of its column of `in`, which end up in a column of `out`."""
        source, result = len(self.kernel.sources), len(self.kernel.results)
        self.kernel.sources.append("memory")
        self.kernel.results.append("memory")
        fixed = {"param": "box", "param::func": "box", "param::entry": "cell"}
        cell = fixed.get(self.space, "address")
        suffix = f".{self.space}".replace("::func", "").replace("::entry", "") if self.space else ""
        if cell == "address":
            base = {"const": "table", "shared": "cells", "local": "mine"}.get(self.space, "to")
            at = result * SLOT_BYTES * BLOCK if base == "to" else 0
            self.before += [f"mov.u64 address, {base};", f"add.u64 address, address, {at};"]
            if base in ("table", "cells"):
                self.before.append("add.u64 address, address, offset;")
        for offset in (0, 8):
            if self.space not in ("const", "param::entry"):  # which the host fills
                double = self.source("b64", source, offset)
                self.before.append(f"st{suffix}.b64 [{cell}+{offset}], {double};")
            self.after += [
                f"ld{suffix}.b64 double, [{cell}+{offset}];",
                f"st.global.b64 {slot('to', result, offset)}, double;",
            ]
        return f"[{cell}]"

    def operand(self, word: str, is_result: bool) -> str:
        if word.endswith(("|p", "&p")):
            return f"{self.result(word[:-2])}|{self.result('pred')}"
        if word.startswith("["):
            return self.memory()
        if word.startswith("{"):
            return self.vector(word, is_result)
        if word not in SIZES:
            return word
        return self.result(word) if is_result else self.source(word)

    def build(self) -> Kernel:
        form = self.form
        operands = [
            self.operand(word, i == 0 and not word.startswith("["))
            for i, word in enumerate(form.operands)
        ]
        if form.opcode in ("addc", "subc", "madc"):
            carry = self.source("b32")
            self.before += [
                f"and.b32 {carry}, {carry}, 1;",
                f"add.cc.u32 {carry}, {carry}, 0xffffffff;",
            ]
        if form.has("cc"):
            self.after.insert(0, f"addc.u32 {self.result('u32')}, 0, 0;")
        spaces = {
            "shared": f".shared .align 16 .b8 cells[{SLOT_BYTES * BLOCK}];",
            "local": f".local .align 16 .b8 mine[{SLOT_BYTES}];",
            **dict.fromkeys(BOXED, f".param .align 16 .b8 box[{SLOT_BYTES}];"),
        }
        cell = f", .param .align 16 .b8 cell[{SLOT_BYTES}]" if self.space == "param::entry" else ""
        self.kernel.text = "\n".join(
            [
                f".visible .entry {self.name}(.param .u64 in, .param .u64 out{cell}) {{",
                ".reg .b64 from, to, offset, address, double; .reg .b32 word;",
                *self.declarations,
                spaces.get(self.space, ""),
                "ld.param.u64 from, [in];",
                "ld.param.u64 to, [out];",
                "mov.u32 word, %tid.x;",
                f"mul.wide.u32 offset, word, {SLOT_BYTES};",
                "add.u64 from, from, offset;",
                "add.u64 to, to, offset;",
                *self.before,
                f"{form.text} {', '.join(operands)};",
                *self.after,
                "ret;",
                "}",
            ]
        )
        return self.kernel


def build(form: Form, name: str) -> Kernel:
    return Builder(form, name).build()
