# SPDX-License-Identifier: Apache-2.0
"""What a program of tests/programs printed on a GPU, and whether another run printed the same.

Lines that begin with # may differ. A line `NAME (fBITS, N ulp): VALUES` holds bit patterns in
hexadecimal that may differ by N units in the last place.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from itertools import zip_longest
from pathlib import Path

RECORDED = Path(__file__).parents[1] / "data/recorded"
HEAD = r"(?P<head>.+ \(f(?P<bits>16|32|64), (?P<ulp>\d+) ulp\))"
VALUES = re.compile(HEAD + ":(?P<values>[ 0-9a-f]+)")


def stable_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def number(bits: int, n_bits: int) -> float:
    code = {16: "<He", 32: "<If", 64: "<Qd"}[n_bits]
    (value,) = struct.unpack("<" + code[2], struct.pack(code[:2], bits))
    return float(value)


def ulps_between(a: int, b: int, n_bits: int) -> float:
    """How far apart two numbers are in a list of all; the zeros are neighbours, NaN is like NaN."""
    x, y = number(a, n_bits), number(b, n_bits)
    if math.isnan(x) or math.isnan(y):
        return 0 if math.isnan(x) and math.isnan(y) else math.inf
    magnitude = (1 << n_bits - 1) - 1
    places = [bits if bits <= magnitude else -1 - (bits & magnitude) for bits in (a, b)]
    return abs(places[0] - places[1])


def difference(recorded: str, got: str) -> str:
    """Say how a line differs from the recorded one; nothing where it may."""
    if recorded == got:
        return ""
    want, have = VALUES.fullmatch(recorded), VALUES.fullmatch(got)
    if not want or not have or want["head"] != have["head"]:
        return f"{got!r}, recorded is {recorded!r}"
    pairs = list(zip_longest(want["values"].split(), have["values"].split()))
    if any(None in pair for pair in pairs):
        return f"{got!r}, recorded is {recorded!r}"
    far = [
        f"value {i} is {b}, recorded is {a}: {distance} ulp"
        for i, (a, b) in enumerate(pairs)
        if (distance := ulps_between(int(a, 16), int(b, 16), int(want["bits"]))) > int(want["ulp"])
    ]
    return f"{want['head']}: {'; '.join(far)}" if far else ""


def differences(recorded: str, got: str) -> list[str]:
    """All lines that differ by more than they may."""
    lines = zip_longest(stable_lines(recorded), stable_lines(got), fillvalue="no line")
    return [text for a, b in lines if (text := difference(a, b))]


def main(recorded: Path, got: Path) -> int:
    found = differences(recorded.read_text(), got.read_text())
    print(f"{'differs' if found else 'same   '} {recorded}", *found, sep="\n  ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
