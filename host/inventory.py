# SPDX-License-Identifier: Apache-2.0
"""Which libcuda the workers load, and which devices it has.

A driver is asked in a child process with a time limit (`kvgpu-worker --inventory`): a driver that
hangs or crashes must not take kvgpud with it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgpu.host import paths
from kvgpu.host.errors import ConfigError, KvgpuError

_log = logging.getLogger(__name__)

_USUAL_NVIDIA_PATHS = (
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
)


@dataclass(frozen=True, slots=True)
class Driver:
    path: Path
    inventory: dict[str, Any]

    @property
    def devices(self) -> list[dict[str, Any]]:
        return [device for device in self.inventory.get("devices", []) if isinstance(device, dict)]

    @property
    def version(self) -> int:
        """What cuDriverGetVersion answers, such as 13000; 0 if it is not known."""
        version = self.inventory.get("driver_version")
        return version if isinstance(version, int) else 0


async def choose_driver(setting: str, worker: Path, timeout_s: float) -> Driver:
    """Return the driver that `setting` (auto, nvidia, software or a path) names, with its devices.

    Raises ConfigError if it does not answer with at least one device.
    """
    reasons: list[str] = []
    for path in _candidates(setting):
        try:
            driver = Driver(path, await _ask(worker, path, timeout_s))
        except KvgpuError as error:
            reasons.append(f"{path}: {error.message}")
            continue
        if driver.devices:
            return driver
        reasons.append(f"{path}: no devices")
    for reason in reasons:
        _log.warning("driver refused: %s", reason)
    raise ConfigError(
        f"driver {setting!r}: none that works ({'; '.join(reasons) or 'no libcuda.so.1 found'})",
        hint="install NVIDIA's driver, or choose --driver software",
    )


def _candidates(setting: str) -> list[Path]:
    if setting == "software":
        return [paths.find_software_gpu()]
    if setting == "nvidia":
        return find_nvidia_libcuda()
    if setting == "auto":
        candidates = find_nvidia_libcuda()
        try:
            candidates.append(paths.find_software_gpu())
        except ConfigError as error:
            _log.info("%s", error.message)
        return candidates
    return [Path(setting).absolute()]


def find_nvidia_libcuda() -> list[Path]:
    """Return the libcuda.so.1 files the loader knows that are not kvgpu's own."""
    found = list(_USUAL_NVIDIA_PATHS)
    try:
        cache = subprocess.run(
            ["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=5, check=True
        ).stdout
        found += [line.split("=> ")[1] for line in cache.splitlines() if "libcuda.so.1 (" in line]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        _log.info("ldconfig -p: %s", error)
    real = {Path(path).resolve(): Path(path) for path in found if Path(path).is_file()}
    return [path for resolved, path in real.items() if "kvgpu" not in str(resolved)]


async def _ask(worker: Path, driver: Path, timeout_s: float) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(str(worker), "--inventory", "--driver", str(driver)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=worker_environment(),
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, errors = await process.communicate()
    except TimeoutError as error:
        raise ConfigError(f"no answer within {timeout_s:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise ConfigError(f"inventory ended with status {process.returncode}: {last[0]}")
    try:
        inventory = json.loads(output)
    except ValueError as error:
        raise ConfigError(f"inventory is not JSON: {output[:200]!r}") from error
    if not isinstance(inventory, dict):
        raise ConfigError(f"inventory is not an object: {output[:200]!r}")
    return inventory


def worker_environment() -> dict[str, str]:
    """Return kvgpud's environment without what points to kvgpu itself or hides devices."""
    dropped = {"KVGPU_SOCKET", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES"}
    return {name: value for name, value in os.environ.items() if name not in dropped}
