# SPDX-License-Identifier: Apache-2.0
"""The table of good and bad calls: for each entry point what is tried, and in which company."""

from __future__ import annotations

import tomllib
from functools import cache

from differential.bad_arguments import RISKY, bad
from differential.prototypes import ROOT, is_old, parameters, prototypes

GOOD = "good"
BEFORE_INIT = "before cuInit"
AFTER_FAULT = "after a fault"
CAPTURING = "its stream captures"
OTHER_CAPTURES = "another stream captures"
OTHER_CONTEXT = "other context"
STATES = (GOOD, "again", "no context", OTHER_CONTEXT, CAPTURING, OTHER_CAPTURES)
# Families of api.toml's [reasons] that no program of this kind can call.
BEYOND = frozenset("graphics coredump checkpoint undocumented profiler".split())
# What these do to the process, its next row would see: each has a process of its own, or comes last
# after a fault. They end the primary context, or open what another process has and may be opened
# once.
ALONE = frozenset(
    (
        *(f"cuDevicePrimaryCtx{verb}" for verb in ("Release", "Release_v2", "Reset", "Reset_v2")),
        *("cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle"),
        "cuDevicePrimaryCtxSetFlags",
    )
)
# What these set, rows of other functions would see; their own answers do not depend on it. All rows
# of one have a process.
LASTING = frozenset(
    (
        *("cuDevicePrimaryCtxSetFlags_v2", "cuCtxSetFlags"),
        *("cuCtxSetLimit", "cuDeviceSetMemPool", "cuMemSetMemPool"),
        "cuThreadExchangeStreamCaptureMode",
    )
)
BATCH = 150  # rows of one process that nothing is expected to crash
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
    rows = [(name, what) for name in names for what in (*STATES, *bad_arguments(name))]
    special = [row for row in rows if row[0] in ALONE | LASTING]
    usual = [row for row in rows if row[0] not in ALONE | LASTING]
    risky = [row for row in usual if is_risky(row[1])]
    safe = [row for row in usual if not is_risky(row[1])]
    # A context takes longer than a hundred calls: those that need one more are together.
    kinds: dict[str, list[Row]] = {"": [], "old": [], OTHER_CONTEXT: []}
    for name, what in safe:
        kind = "old" if is_old(name) else what if what == OTHER_CONTEXT else ""
        kinds[kind].append((name, what))
    faults = [(name, AFTER_FAULT) for name in sorted(names, key=ALONE.__contains__)]
    unused = [(name, BEFORE_INIT) for name in names if name != "cuInit"]
    batches = [
        *cut(risky, RISKY_BATCH if careful else BATCH),
        *cut(faults, FAULT_BATCH),
        *(batch for kind in kinds.values() for batch in cut(kind, BATCH)),
        *([row for row in special if row[0] == name] for name in names if name in LASTING),
        *([row] for row in special if row[0] in ALONE),
        *cut(unused, FORKS),
    ]
    return [batch for batch in batches if batch]
