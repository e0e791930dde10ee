# SPDX-License-Identifier: Apache-2.0
"""Programs of this host on a kvgpud of their own: real libcuda.so.1, real worker, software GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from framework.waiting import wait_for_listener
from framework.workers import worker_pids

from kvgpu.host.client import ApiClient
from kvgpu.host.messages import RunRequest

ROOT = Path(__file__).resolve().parents[2]
# Another build of all native parts, such as build/asan.
BUILD = ROOT / os.environ.get("KVGPU_TEST_BUILD", "build/release")
LOOPBACK = BUILD / "tests/loopback"
PROGRAMS = BUILD / "tests/programs"
LIMIT_S = 120.0


class Loopback:
    """A running kvgpud and `kvgpu run` against it."""

    limit_s = LIMIT_S  # of one program

    def __init__(
        self, runtime_dir: Path, environment: Mapping[str, str], options: Sequence[str]
    ) -> None:
        self.runtime_dir = runtime_dir
        self.environment = dict(environment)
        self._options = list(options)
        self._daemon: subprocess.Popen[bytes] | None = None

    def command(self, *program: str | Path) -> list[str]:
        run = (sys.executable, "-m", "kvgpu.host.cli", "run", "--")
        return [*run, *(str(part) for part in program)]

    def start(self, *program: str | Path, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*program),
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *program: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*program),
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=self.limit_s,
            check=False,
        )

    @contextmanager
    def open_run(self) -> Iterator[str]:
        """Ask for a `kvgpu run` of several programs; gives the socket for $KVGPU_SOCKET."""
        with ApiClient(self.runtime_dir) as api:
            yield api.ask(RunRequest(64 << 20))["socket"]

    def logs(self) -> str:
        """Return the sessions' logs, for a failed assertion."""
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')}"
            for path in sorted((self.runtime_dir / "log").glob("*"))
        )

    def check(self, *program: str | Path, **variables: str) -> str:
        """Run a program that must end with status 0; return what it printed."""
        done = self.run(*program, **variables)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done.stdout

    def worker_pids(self) -> list[int]:
        """Return the workers of this runtime folder, whoever their parent is by now."""
        return sorted(worker_pids(self.runtime_dir))

    def start_kvgpud(self) -> None:
        """Start the daemon and wait until it answers."""
        assert self._daemon is None
        log = self.runtime_dir / "kvgpud.log"
        with log.open("ab") as output:
            self._daemon = subprocess.Popen(
                [
                    *(sys.executable, "-m", "kvgpu.host.kvgpud"),
                    *("--runtime-dir", str(self.runtime_dir), *self._options),
                ],
                env=self.environment,
                stdout=output,
                stderr=output,
            )
        wait_for_listener(self.runtime_dir / "kvgpud.sock", self._daemon, log=log)

    @property
    def kvgpud_pid(self) -> int:
        assert self._daemon is not None
        return self._daemon.pid

    def stop_kvgpud(self, number: signal.Signals) -> None:
        """Send the daemon a signal that ends it, and wait for that."""
        assert self._daemon is not None
        self._daemon.send_signal(number)
        self._daemon.wait(20)
        self._daemon = None

    def end(self) -> None:
        """End the daemon, and with it what it started."""
        if self._daemon is None:
            if not self.worker_pids():
                return
            self.start_kvgpud()  # to end what an earlier one left
        self.stop_kvgpud(signal.SIGINT)


@contextmanager
def loopback(
    driver: str = "software", jail: bool = True, config: str = "", **variables: str
) -> Iterator[Loopback]:
    """Start a kvgpud with this host.toml; end it, and with it what it started."""
    built = {
        "KVGPU_WORKER": str(BUILD / "host/worker/kvgpu-worker"),
        "KVGPU_SOFTWARE_GPU": str(BUILD / "host/software_gpu/libcuda.so.1"),
        "KVGPU_LIBCUDA_DIR": str(BUILD / "guest/libcuda"),
    }
    environment = {
        **built,
        **os.environ,  # may name others of these, carried to a machine without a build
        # The caller's own too: where there is no .venv it leads to the run-time packages.
        "PYTHONPATH": ":".join(
            [str(ROOT / "packaging/python"), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        "PYTHONSAFEPATH": "1",
        **variables,
    }
    # Not pytest's: a socket's path has 107 bytes.
    with tempfile.TemporaryDirectory(prefix="kvgpu-loopback-") as folder:
        environment["KVGPU_RUNTIME_DIR"] = folder
        options = ["--driver", driver, "--jail" if jail else "--no-jail"]
        if config:
            (Path(folder) / "host.toml").write_text(config)
            options += ["--config", f"{folder}/host.toml"]
        running = Loopback(Path(folder), environment, options)
        try:
            running.start_kvgpud()
            yield running
        finally:
            running.end()


def case_names() -> list[str]:
    """Return the cases of driver_cases; none where it has not been built (then a test says so)."""
    binary = LOOPBACK / "driver_cases"
    if not binary.exists():
        return []
    listed = subprocess.run(
        [str(binary), "--list-test-cases", "--no-version", "--no-colors"],
        env={**os.environ, "LD_LIBRARY_PATH": str(BUILD / "guest/libcuda")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = listed.splitlines()
    return [line for line in lines if line and not line.startswith(("[doctest]", "="))]


def case_filter(name: str) -> str:
    """Return doctest's option that selects exactly this case (commas separate filters)."""
    return "--test-case=" + name.replace(",", "\\,")
