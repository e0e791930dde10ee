# SPDX-License-Identifier: Apache-2.0
"""What KVGPU_TRACE=FILE has written: calls, the table, Chrome's form."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Call:
    ms: float
    thread: int
    name: str
    call_class: str
    result: int
    guest_us: float
    host_us: int | None
    n_round_trips: int
    n_bytes: int
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Sum:
    call_class: str
    n_calls: int
    mean_us: float
    total_ms: float
    host_ms: float
    n_round_trips: int
    n_bytes: int


def calls_of(path: Path) -> list[Call]:
    calls = []
    for line in path.read_text().splitlines():
        if line[0] == "#":
            continue
        ms, thread, name, call_class, *rest = line.split("\t")
        result, guest_us, host_us, n_round_trips, n_bytes, arguments = rest
        calls.append(
            Call(
                ms=float(ms),
                thread=int(thread),
                name=name,
                call_class=call_class,
                result=int(result),
                guest_us=float(guest_us),
                host_us=None if host_us == "-" else int(host_us),
                n_round_trips=int(n_round_trips),
                n_bytes=int(n_bytes),
                arguments=json.loads(arguments),
            )
        )
    return calls


def table_of(path: Path) -> dict[str, Sum]:
    lines = [line.split() for line in path.read_text().splitlines() if line[0] == "#"]
    head = ["#", "call", "class", "calls", "mean", "us", "total", "ms", "host", "ms"]
    assert lines[1] == [*head, "trips", "bytes"]
    return {
        name: Sum(
            *(call_class, int(n), float(mean), float(total), float(host)),
            *(int(trips), int(n_bytes)),
        )
        for _, name, call_class, n, mean, total, host, trips, n_bytes in lines[2:]
    }


def events_of(path: Path) -> list[dict[str, Any]]:
    """What Chrome's viewer would show: it wants these fields of each event."""
    events: list[dict[str, Any]] = json.loads(path.with_name(path.name + ".json").read_text())
    assert events[0]["ph"] == "M"
    for event in events[1:]:
        assert event["ph"] == "X"
        assert min(event["ts"], event["dur"]) >= 0
        assert {"name", "cat", "pid", "tid", "args"} < event.keys()
    return events[1:]
