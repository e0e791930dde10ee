# SPDX-License-Identifier: Apache-2.0
"""Where a program runs: natively, through kvgpu, or through kvgpu on a driver that does nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from framework.first_result import waiting
from framework.loopback import BUILD, Loopback, loopback

from benchmarks.catalog import Subject
from kvgpu.host.client import ApiClient
from kvgpu.host.messages import RunRequest

ROOT = Path(__file__).resolve().parents[1]
DRIVER_PROGRAMS = BUILD / "benchmarks/driver"
PINNED_BYTES = 1 << 30  # as `kvgpu run` without --pinned
N_WAITING = 2


@dataclass(frozen=True, slots=True)
class Side:
    """What makes a program run there."""

    environment: dict[str, str]
    host: Loopback | None = None

    def workers(self) -> list[int]:
        """Return the workers of its sessions, and those that wait for the next one."""
        return [*self.host.worker_pids(), *waiting(self.host)] if self.host is not None else []


class Sides:
    """Each is made when it is first needed; a remoted one is one `kvgpu run` of a kvgpud.

    `build`: whose worker and library, where not the environment says (framework/loopback.py).
    """

    def __init__(self, driver: str, stack: ExitStack, build: Path | None = None) -> None:
        self.driver = driver
        self._stack = stack
        self._parts: dict[str, str] = {}
        if build is not None:
            self._parts["KVGPU_WORKER"] = str(build / "host/worker/kvgpu-worker")
            self._parts["KVGPU_LIBCUDA_DIR"] = str(build / "guest/libcuda")
        self._made: dict[str, Side] = {}

    def get(self, name: str) -> Side:
        if name not in self._made:
            makers = {"native": self._native, "remoted": self._remoted, "null": self._null}
            self._made[name] = makers[name]()
        return self._made[name]

    def _native(self) -> Side:
        environment = dict(os.environ)
        if self.driver == "software":
            environment["LD_LIBRARY_PATH"] = str(BUILD / "host/software_gpu")
        return Side(environment)

    def _remoted(self) -> Side:
        return self._run(self.driver)

    def _null(self) -> Side:
        # In a jail it would not find the software GPU, which lies in another folder.
        return self._run(str(DRIVER_PROGRAMS / "libnull_driver.so"), jail=False)

    def _run(self, driver: str, jail: bool = True) -> Side:
        config = f"prestarted_workers = {N_WAITING}\nprestarted_contexts = true\n"
        host = self._stack.enter_context(loopback(driver, jail, config, **self._parts))
        api = self._stack.enter_context(ApiClient(host.runtime_dir))
        environment = dict(host.environment)
        environment["KVGPU_SOCKET"] = api.ask(RunRequest(PINNED_BYTES))["socket"]
        earlier = os.environ.get("LD_LIBRARY_PATH")
        libraries = [environment["KVGPU_LIBCUDA_DIR"], *([earlier] if earlier else [])]
        environment["LD_LIBRARY_PATH"] = ":".join(libraries)
        return Side(environment, host)


def choose_driver(wanted: str) -> str:
    """Return `wanted`, or what this machine has."""
    if wanted != "auto":
        return wanted
    if shutil.which("nvidia-smi") is None:
        return "software"
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return "nvidia" if "GPU " in listed.stdout else "software"


def command_of(text: str, effort: float) -> list[str]:
    """Return the command of a subject of rows.toml."""
    program, *arguments = text.split()
    options = ["--effort", f"{effort:g}"]
    if program == "{workload}":  # python3: the machine's, which has PyTorch
        return ["python3", "-P", "-m", "benchmarks.workloads", *options, *arguments]
    return [str(DRIVER_PROGRAMS / "bench_driver"), *options, *arguments]


def environment_of(subject: Subject, side: Side) -> dict[str, str]:
    """Return what a subject's program runs with there."""
    environment = side.environment | subject.environment
    if subject.command.startswith("{workload}"):
        # Its Python may be another one than ours: no package of ours but this.
        environment["PYTHONPATH"] = str(ROOT)
    return environment
