# SPDX-License-Identifier: Apache-2.0
"""The worker processes of one kvgpud: others may run on the same machine."""

from __future__ import annotations

import os
from pathlib import Path


def worker_pids(runtime_dir: Path) -> set[int]:
    """Return the workers whose log is in this runtime folder, whoever their parent is by now."""
    log_dir = str(runtime_dir / "log")
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "cmdline").read_bytes().split(b"\0")[0]
            if not name.endswith(b"kvgpu-worker"):
                continue
            if os.readlink(process / "fd/2").startswith(log_dir):
                found.add(int(process.name))
        except OSError:
            continue  # it has ended
    return found
