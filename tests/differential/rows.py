# SPDX-License-Identifier: Apache-2.0
"""The table of good and bad calls: for each entry point what is tried, and in which company."""

from __future__ import annotations

import tomllib
from functools import cache

from differential.bad_arguments import RISKY, bad
from differential.prototypes import ROOT, parameters, prototypes

GOOD = "good"
BEFORE_INIT = "before cuInit"
AFTER_FAULT = "after a fault"
CAPTURING = "its stream captures"
OTHER_CAPTURES = "another stream captures"
STATES = (GOOD, "again", "no context", "other context", CAPTURING, OTHER_CAPTURES)
# Families of api.toml's [reasons] that no program of this kind can call.
BEYOND = frozenset("graphics coredump checkpoint undocumented profiler".split())
# What they do to the process, its thread or the primary context, its other rows would see.
ALONE = frozenset(
    (
        *(f"cuDevicePrimaryCtx{verb}" for verb in ("Release", "Release_v2", "Reset", "Reset_v2")),
        *("cuDevicePrimaryCtxSetFlags", "cuDevicePrimaryCtxSetFlags_v2", "cuCtxSetFlags"),
        *("cuCtxSetLimit", "cuDeviceSetMemPool", "cuMemSetMemPool"),
        "cuThreadExchangeStreamCaptureMode",
    )
)
BATCH = 100  # rows of one process that nothing is expected to crash
RISKY_BATCH = 40
FORKS = 60  # processes that one makes, which have not used the driver
FAULT_BATCH = 130
Row = tuple[str, str]


@cache
def refused() -> dict[str, str]:
    """What kvgpu refuses, and the family of the reason."""
    found: dict[str, str] = tomllib.loads((ROOT / "protocol/api.toml").read_text())["refused"]
    return found


def functions() -> list[str]:
    return [name for name in prototypes() if refused().get(name) not in BEYOND]


def bad_arguments(function: str) -> list[str]:
    return [
        f"{name}={how}" for name, kind in parameters(function) for how in bad(function, name, kind)
    ]


def is_risky(what: str) -> bool:
    return what.partition("=")[2] in RISKY


def cut(rows: list[Row], n: int) -> list[list[Row]]:
    return [rows[at : at + n] for at in range(0, len(rows), n)]


def batches(names: list[str], *, careful: bool = True) -> list[list[Row]]:
    """What one process does, for each process; `careful`: a driver may crash."""
    alone = [name for name in names if name in ALONE]
    others = [name for name in names if name not in ALONE]
    rows = [(name, what) for name in others for what in (*STATES, *bad_arguments(name))]
    unused = [(name, BEFORE_INIT) for name in names if name != "cuInit"]
    return [
        *cut([row for row in rows if is_risky(row[1])], RISKY_BATCH if careful else BATCH),
        *cut([(name, AFTER_FAULT) for name in others + alone], FAULT_BATCH),
        *cut([row for row in rows if not is_risky(row[1])], BATCH),
        *([(name, what)] for name in alone for what in (*STATES, *bad_arguments(name))),
        *cut(unused, FORKS),
    ]
