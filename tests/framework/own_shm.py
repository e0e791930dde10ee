# SPDX-License-Identifier: Apache-2.0
"""A /dev/shm of one process's own, with any mount options; needs root."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def in_own_shm(options: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run a Python script that finds an empty /dev/shm, mounted with `options`."""
    command = f'mount -t tmpfs -o {options} tmpfs /dev/shm && exec {sys.executable} -P -c "$0"'
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", command, script],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "packaging/python")},
        capture_output=True,
        text=True,
        timeout=60,
    )
