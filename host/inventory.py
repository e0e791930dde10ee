# SPDX-License-Identifier: Apache-2.0
"""Which libcuda the workers load, and which devices it has.

A driver is asked in a child process with a time limit (`kvgpu-worker --inventory`): a driver that
hangs or crashes must not take kvgpud with it. It is the program that workers are, so what it says
holds for them, which no other binding to the driver could promise.
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
_NVIDIA = "0x10de"  # PCI: its number as a vendor
_DISPLAY = "0x03"  # and the class of all GPUs, with a screen or without
_KILL_LIMIT_S = 2.0


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


async def choose_driver(setting: str, asker: Asker) -> Driver:
    """Return the driver that `setting` (auto, nvidia, software or a path) names, with its devices.

    The software GPU takes NVIDIA's place, where `setting` is auto, on machines without a GPU or
    without a driver for it only: one that does not answer now may do so a minute later, and until
    then VMs must not compute on the processor unawares.

    Raises ConfigError if it does not answer with at least one device.
    """
    reasons: list[str] = []
    candidates = _candidates(setting)
    driver = await _first_that_works(candidates, asker, reasons)
    if driver is None and setting == "auto" and not (candidates and has_nvidia_gpu()):
        if reasons:
            _log.warning("no NVIDIA GPU, the software GPU takes its place: %s", "; ".join(reasons))
        driver = await _first_that_works(_software(reasons), asker, reasons)
    if driver:
        return driver
    raise ConfigError(
        f"driver {setting!r}: none that works ({'; '.join(reasons) or 'no libcuda.so.1 found'})",
        hint="install NVIDIA's driver, see that nvidia-smi works, or choose --driver software; "
        "kvgpud looks again every minute",
    )


def _candidates(setting: str) -> list[Path]:
    if setting == "software":
        return [paths.find_software_gpu()]
    if setting in ("auto", "nvidia"):
        return find_nvidia_libcuda()
    return [Path(setting).absolute()]


def _software(reasons: list[str]) -> list[Path]:
    try:
        return [paths.find_software_gpu()]
    except ConfigError as error:
        reasons.append(error.message)
        return []


async def _first_that_works(
    candidates: list[Path], asker: Asker, reasons: list[str]
) -> Driver | None:
    """Return the first that has a device; add to `reasons` what is wrong with those before."""
    for path in candidates:
        try:
            driver = Driver(path, await asker.ask(path))
        except KvgpuError as error:
            reasons.append(f"{path}: {error.message}")
            continue
        if driver.devices:
            return driver
        reasons.append(f"{path}: no devices")
    return None


def has_nvidia_gpu(dev: Path = Path("/dev"), pci_devices: Path = paths.PCI_DEVICES) -> bool:
    """Tell whether this machine has a GPU of NVIDIA's that it has not given away to a VM."""
    if (dev / "nvidiactl").exists():
        return True
    for device in pci_devices.glob("*"):
        try:
            is_nvidia = (device / "vendor").read_text().strip() == _NVIDIA
            is_display = (device / "class").read_text().startswith(_DISPLAY)
        except OSError:
            continue  # pulled meanwhile
        given_away = (device / "driver").resolve().name == "vfio-pci"
        if is_nvidia and is_display and not given_away:
            return True
    return False


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


class Asker:
    """Asks drivers for their devices. One that hangs so that it cannot be killed is left alone."""

    def __init__(self, worker: Path, timeout_s: float) -> None:
        self._worker = worker
        self._timeout_s = timeout_s
        self._hanging: dict[Path, asyncio.subprocess.Process] = {}

    async def ask(self, driver: Path) -> dict[str, Any]:
        """Return the driver's inventory. Raises ConfigError; OSError if no process can be made."""
        hanging = self._hanging.get(driver)
        if hanging and hanging.returncode is None:
            raise ConfigError(
                f"process {hanging.pid} hangs in the driver and cannot be killed: "
                "reset the GPU or restart the host"
            )
        process = await asyncio.create_subprocess_exec(
            *(str(self._worker), "--inventory", "--driver", str(driver)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=worker_environment(),
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                output, errors = await process.communicate()
        except TimeoutError as error:
            raise ConfigError(
                f"no answer within {self._timeout_s:g} s: does nvidia-smi hang, too?"
            ) from error
        finally:
            await self._kill(process, driver)
        return _read(process.returncode, output, errors)

    async def _kill(self, process: asyncio.subprocess.Process, driver: Path) -> None:
        if process.returncode is not None:
            return
        process.kill()
        try:
            async with asyncio.timeout(_KILL_LIMIT_S):
                await process.wait()
        except TimeoutError:  # it sleeps in the kernel: a GPU that is lost
            self._hanging[driver] = process


def _read(status: int | None, output: bytes, errors: bytes) -> dict[str, Any]:
    if status != 0:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise ConfigError(f"inventory ended with status {status}: {last[0]}")
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
