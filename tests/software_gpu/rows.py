# SPDX-License-Identifier: Apache-2.0
"""host/software_gpu/ptx_ops.toml, expanded into concrete instructions."""

from __future__ import annotations

import itertools
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FILE = Path(__file__).parents[2] / "host/software_gpu/ptx_ops.toml"
SIZES = {
    "pred": 1,
    "f16": 16,
    "bf16": 16,
    "f16x2": 32,
    "bf16x2": 32,
    **{f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)},
    "f32": 32,
    "f64": 64,
}
IMAGES = {"tex", "tld4", "txq", "suld", "sust", "sured", "suq"}  # of textures and surfaces
IMMEDIATES = {"lop3": ("150", "232", "27", "0", "255")}


@dataclass(frozen=True)
class Form:
    """One concrete instruction; `operands` are types, with their notation, and literals."""

    opcode: str
    parts: tuple[str, ...]
    operands: tuple[str, ...]
    tolerance: float | None = None
    absolute: float = 0.0

    @property
    def text(self) -> str:
        return ".".join((self.opcode, *self.parts))

    @cached_property
    def types(self) -> list[str]:
        return [part for part in self.parts if part in SIZES]

    def has(self, part: str) -> bool:
        return part in self.parts

    def one_of(self, *parts: str) -> str:
        """The one of `parts` that the instruction has, or an empty string."""
        return next((part for part in self.parts if part in parts), "")


@dataclass(frozen=True)
class Row:
    form: str
    operands: str
    tolerance: float | None
    absolute: float

    @property
    def name(self) -> str:
        return "_".join(self.form.replace("|", "-").split())[:60]

    @property
    def opcodes(self) -> set[str]:
        return set(self.form.split()[0].split("|"))

    def forms(self) -> list[Form]:
        opcodes, *words = self.form.split()
        return [
            form
            for opcode in opcodes.split("|")
            for parts in combinations(words)
            for form in self.concrete(opcode, tuple(p for p in ".".join(parts).split(".") if p))
        ]

    def concrete(self, opcode: str, parts: tuple[str, ...]) -> list[Form]:
        types = [part for part in parts if part in SIZES]
        n_elements = 4 if "v4" in parts else 2
        operands: list[str] = []
        for word in self.operands.split():
            if word == "w":
                word = f"{types[0][0]}{2 * SIZES[types[0]]}"
            word = {"t": types[0], "u": types[-1]}.get(word, word) if types else word
            operands.append(
                word.replace("[t]", f"[{types[0]}]").replace("{t}", f"{{{types[0]}}}{n_elements}")
                if types
                else word
            )
        immediates = IMMEDIATES[opcode] if "#" in operands else ("",)
        if any(word.endswith("|p") for word in operands):
            plain = tuple(word.removesuffix("|p") for word in operands)
            return [Form(opcode, parts, each, None) for each in (plain, tuple(operands))]
        return [
            Form(
                opcode,
                parts,
                tuple(value if word == "#" else word for word in operands),
                self.tolerance,
                self.absolute,
            )
            for value in immediates
        ]


def combinations(words: list[str]) -> list[tuple[str, ...]]:
    """All combinations of alternatives; of a `~` word each alternative comes up, no more."""
    choices = [word.rstrip("?~").split("|") for word in words]
    for word, names in zip(words, choices, strict=True):
        if word.endswith("?"):
            names.append("")
    product = itertools.product(
        *([""] if word.endswith("~") else names for word, names in zip(words, choices, strict=True))
    )
    result = list(product)
    for i, word in enumerate(words):
        if word.endswith("~"):
            first = result[0]
            result += [(*first[:i], name, *first[i + 1 :]) for name in choices[i]]
    return result


def rows() -> list[Row]:
    return [
        Row(row["form"], row.get("operands", ""), row.get("tolerance"), row.get("absolute", 0.0))
        for row in tomllib.loads(FILE.read_text())["row"]
    ]
