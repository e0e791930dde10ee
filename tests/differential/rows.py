# SPDX-License-Identifier: Apache-2.0
"""The table of good and bad calls: for each entry point what is tried, and in which company."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from differential.arguments import RISKY, bad

ROOT = Path(__file__).resolve().parents[2]
GOOD = "good"
BEFORE_INIT = "before cuInit"
AFTER_FAULT = "after a fault"
CAPTURING = "its stream captures"
OTHER_CAPTURES = "another stream captures"
STATES = (GOOD, "again", "no context", "other context", CAPTURING, OTHER_CAPTURES)
# Families of api.toml's [reasons] that no program of this kind can call.
BEYOND = frozenset("graphics coredump checkpoint undocumented profiler".split())
# What they do to the primary context, other rows of the same process would see.
ALONE = frozenset(
    "cuCtxAttach cuCtxDestroy cuCtxDestroy_v2 cuCtxDetach cuDevicePrimaryCtxGetState"
    " cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset"
    " cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxRetain cuDevicePrimaryCtxSetFlags"
    " cuDevicePrimaryCtxSetFlags_v2 cuCtxSetFlags cuCtxSetLimit".split()
)
BATCH = 64  # rows of one process that nothing is expected to crash
Row = tuple[str, str]


@cache
def prototypes() -> dict[str, list[tuple[str, str]]]:
    found = {}
    for line in (ROOT / "tests/data/prototypes.tsv").read_text().splitlines():
        if not line.startswith("#"):
            name, *parameters = line.split("\t")
            pairs = [text.rpartition(" ") for text in parameters]
            found[name] = [(what, kind) for kind, _, what in pairs]
    return found


def parameters(function: str) -> list[tuple[str, str]]:
    """Name and type of each."""
    return prototypes()[function]


@cache
def refused() -> dict[str, str]:
    """What kvgpu refuses, and the family of the reason."""
    found: dict[str, str] = tomllib.loads((ROOT / "protocol/api.toml").read_text())["refused"]
    return found


def functions() -> list[str]:
    return [name for name in prototypes() if refused().get(name) not in BEYOND]


def bad_arguments(function: str) -> list[str]:
    return [
        f"{name}={how}"
        for name, kind in parameters(function)
        for how in bad(function, name, kind)
    ]


def is_risky(what: str) -> bool:
    return what.partition("=")[2] in RISKY


def batches(names: list[str], *, careful: bool) -> list[list[Row]]:
    """What one process does, for each process; `careful`: a call may harm those after it."""
    calm: list[Row] = []
    found: list[list[Row]] = []
    for name in names:
        rows = [*STATES, *bad_arguments(name)]
        if name in ALONE:
            found += [[(name, what)] for what in rows]
            continue
        calm += [(name, what) for what in rows if not (careful and is_risky(what))]
        risky = [(name, what) for what in rows if careful and is_risky(what)]
        found += [risky] if risky else []
    step = BATCH if careful else 4 * BATCH
    found += [calm[at : at + step] for at in range(0, len(calm), step)]
    alone = [name for name in names if name in ALONE]
    found.append([(name, BEFORE_INIT) for name in names if name != "cuInit"])
    found.append([(name, AFTER_FAULT) for name in [n for n in names if n not in ALONE] + alone])
    return found
