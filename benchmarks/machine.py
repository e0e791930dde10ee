# SPDX-License-Identifier: Apache-2.0
"""What a measurement ran on, and what it ran."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from framework.loopback import BUILD, ROOT

BUILT = ("guest/libcuda/libcuda.so.1", "host/worker/kvgpu-worker")
PACKAGES = ("torch", "torchvision", "triton")
_ASK_VERSIONS = f"""
from importlib import metadata
for name in {PACKAGES!r}:
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        pass
"""


def facts(driver: str) -> dict[str, str]:
    """Say which machine, driver and versions."""
    query = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    gpu = _output(query) if driver == "nvidia" else ""
    return {
        "gpu": gpu.replace("\n", "; ") or f"{driver} ({platform.node()})",
        "processor": f"{_processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "system": f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {platform.release()}",
        "python": _versions(),
        "kvgpu": _commit(),
        "built": ", ".join(f"{Path(name).name} {_sha(name)}" for name in BUILT),
        "path": "host process (kvgpu run), native and remoted in turn",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _versions() -> str:
    packages = _output(("python3", "-c", _ASK_VERSIONS)).splitlines()
    return ", ".join([_output(("python3", "-V")), *packages])


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def _commit() -> str:
    commit = _output(("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"))
    return commit or "commit unknown (no git here)"


def _sha(built: str) -> str:
    path = BUILD / built
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.exists() else "missing"
