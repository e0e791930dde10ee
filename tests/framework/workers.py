# SPDX-License-Identifier: Apache-2.0
"""The worker processes of one kvgpud: others may run on the same machine."""

from __future__ import annotations

import json
import os
from pathlib import Path


def worker_pids(runtime_dir: Path) -> set[int]:
    """Return the sessions' workers of this runtime folder, whoever their parent is by now."""
    return _with_log(str(runtime_dir / "log" / "session-"))


def prestarted_pids(runtime_dir: Path) -> set[int]:
    """Return the workers that have no session yet."""
    return _with_log(str(runtime_dir / "log" / "prestarted-"))


def block_offset(runtime_dir: Path, worker_pid: int) -> int:
    """Return where in its region a worker's block begins, as kvgpud has written it down."""
    for path in (runtime_dir / "sessions").glob("*.json"):
        record = json.loads(path.read_text())
        if record["worker_pid"] == worker_pid:
            return int(record["block_offset"])
    raise LookupError(f"kvgpud has written nothing down of worker {worker_pid}")


def _with_log(beginning: str) -> set[int]:
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "cmdline").read_bytes().split(b"\0")[0]
            if not name.endswith(b"kvgpu-worker"):
                continue
            if os.readlink(process / "fd/2").startswith(beginning):
                found.add(int(process.name))
        except OSError:
            continue  # it has ended
    return found
