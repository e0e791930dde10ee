# SPDX-License-Identifier: Apache-2.0
"""`kvgpu run`: a program of this host computes through kvgpud, as a program in a VM would."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvgpu.host import paths
from kvgpu.host.client import ApiClient
from kvgpu.host.errors import ConfigError, DaemonError
from kvgpu.host.messages import RunRequest

_START_LIMIT_S = 20.0
_FORWARDED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT),
)
_SOFTWARE_GPU = "kvgpu software GPU"  # how its lines in a session's log begin
_SI_KERNEL = 0x80  # asm-generic/siginfo.h: sent by the kernel, so by the terminal


@dataclass(frozen=True, slots=True)
class Private:
    """A kvgpud for one command."""

    driver: str
    no_jail: bool
    log: Path | None  # None: in its folder, gone with it


def answers(runtime_dir: Path) -> bool:
    """Tell whether a kvgpud runs that this user may ask."""
    try:
        ApiClient(runtime_dir).close()
    except DaemonError:
        return False
    return True


def run(command: list[str], runtime_dir: Path, request: RunRequest, private: Private | None) -> int:
    """Run `command` with kvgpu's libcuda.so.1 and return its exit status (128 + N for signal N)."""
    libcuda_dir = paths.find_libcuda_dir()
    with _private_kvgpud(private) if private else ApiClient(runtime_dir) as api:
        socket_path = api.ask(request)["socket"]
        environment = dict(os.environ)
        earlier = environment.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = f"{libcuda_dir}:{earlier}" if earlier else str(libcuda_dir)
        environment["KVGPU_SOCKET"] = socket_path
        return _run_and_forward_signals(command, environment)


@contextlib.contextmanager
def _private_kvgpud(private: Private) -> Iterator[ApiClient]:
    """Start a kvgpud in a folder of its own; it ends with us, whatever ends us."""
    with tempfile.TemporaryDirectory(prefix="kvgpu-") as folder:
        runtime_dir = Path(folder)
        log_path = private.log or runtime_dir / "kvgpud.log"
        with log_path.open("ab") as log_file:
            # End of its standard input tells it to end, even if we are killed.
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "kvgpu.host.kvgpud"),
                    *("--runtime-dir", folder, "--driver", private.driver),
                    *("--until-eof", "--no-jail" if private.no_jail else "--jail"),
                ],
                stdin=subprocess.PIPE,
                stdout=log_file,
                stderr=log_file,
                env={**os.environ, "PYTHONPATH": _import_path()},
                process_group=0,  # a Ctrl-C is for the command, not for kvgpud
            )
        assert process.stdin
        try:
            with _wait_for(process, runtime_dir, log_path) as api:
                yield api
        finally:
            process.stdin.close()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _show_findings(runtime_dir / "log")


def _show_findings(log_dir: Path) -> None:
    """Print what the software GPU said of the command's kernels: the logs go with their folder."""
    for log in sorted(log_dir.glob("session-*.log")):
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith(_SOFTWARE_GPU):
                print(line, file=sys.stderr)


def _import_path() -> str:
    root = str(Path(__file__).parents[2])  # the folder that holds the package `kvgpu`
    earlier = os.environ.get("PYTHONPATH")
    return f"{root}:{earlier}" if earlier else root


def _wait_for(process: subprocess.Popen[bytes], runtime_dir: Path, log: Path) -> ApiClient:
    deadline_s = time.monotonic() + _START_LIMIT_S
    while process.poll() is None and time.monotonic() < deadline_s:
        try:
            return ApiClient(runtime_dir)
        except DaemonError:
            time.sleep(0.01)
    last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["no message"]
    raise DaemonError(f"a private kvgpud did not start: {last[0]}", hint="kvgpu check")


def _run_and_forward_signals(command: list[str], environment: dict[str, str]) -> int:
    program = shutil.which(command[0], path=environment.get("PATH"))
    if program is None:
        exists = Path(command[0]).exists()
        raise ConfigError(
            f"{command[0]}: {'not executable' if exists else 'no such command'}",
            hint="kvgpu run -- PROGRAM ARGUMENTS",
        )
    signals = {*_FORWARDED, signal.SIGCHLD}
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        pid = os.posix_spawn(program, command, environment, setsigmask=old_mask)
        while True:
            info = signal.sigwaitinfo(signals)
            if info.si_signo == signal.SIGCHLD:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    code = os.waitstatus_to_exitcode(status)
                    return code if code >= 0 else 128 - code
            elif info.si_code != _SI_KERNEL:
                # The terminal sends its own to the whole process group: the command has it already.
                os.kill(pid, info.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
