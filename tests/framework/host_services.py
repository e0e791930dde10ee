# SPDX-License-Identifier: Apache-2.0
"""The host side that VM tests and the demo need: libvirt (without systemd, too), hook, kvgpud.

Starts what does not run and, at the end, stops exactly that. Needs root, as libvirt's QEMU does.
"""

from __future__ import annotations

import contextlib
import grp
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
HOOK_SOURCE = REPOSITORY / "host" / "libvirt_hooks" / "kvgpu"
HOOK = Path("/etc/libvirt/hooks/qemu.d/kvgpu")
RUNTIME_DIR = Path("/run/kvgpu")
LIBVIRT_URI = "qemu:///system"
VIRTLOGD_SOCKET = "/run/libvirt/virtlogd-sock"
DAEMON_START_S = 30.0
DAEMON_STOP_S = 15.0


class HostError(Exception):
    """The host cannot run the VMs; the message says what to do."""


def virsh(*arguments: str | Path, timeout_s: float = 120, stdin: str = "") -> str:
    """Return what virsh prints; raise HostError with its message if it refuses."""
    done = subprocess.run(
        ["virsh", "--quiet", "-c", LIBVIRT_URI, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    if done.returncode != 0:
        raise HostError(f"virsh {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def kvgpu(*arguments: str | Path, timeout_s: float = 60) -> str:
    """Return what the kvgpu command of this source tree prints."""
    done = subprocess.run(
        python_module("kvgpu.host.cli", *arguments),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment(),
    )
    if done.returncode != 0:
        raise HostError(f"kvgpu {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


def python_module(module: str, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-P", "-m", module, *map(str, arguments)]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(REPOSITORY / "packaging" / "python")}


def wait_until(what: str, is_true: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            raise HostError(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.1)


def stop_process(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(DAEMON_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _libvirt_answers() -> bool:
    return subprocess.run(["virsh", "-c", LIBVIRT_URI, "uri"], capture_output=True).returncode == 0


def _virtlogd_answers() -> bool:
    """Return whether someone listens there: one that was killed leaves its socket behind."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(VIRTLOGD_SOCKET) == 0


def _start(stack: contextlib.ExitStack, name: str, logs: Path) -> None:
    path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if path is None:
        raise HostError(f"{name} is not installed: run `make setup`")
    with (logs / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([path], stdout=log, stderr=log, start_new_session=True)
    stack.callback(stop_process, process)


@contextlib.contextmanager
def _kvm_open_to_qemu() -> Iterator[None]:
    """Let QEMU's user open /dev/kvm: without, libvirt probes QEMU for 60 s at each start."""
    device = Path("/dev/kvm")
    try:
        before = device.stat()
        group = grp.getgrnam("kvm").gr_gid
    except (FileNotFoundError, KeyError):
        yield
        return
    os.chown(device, -1, group)
    device.chmod(0o660)
    try:
        yield
    finally:
        os.chown(device, -1, before.st_gid)
        device.chmod(before.st_mode)


@contextlib.contextmanager
def libvirt(logs: Path) -> Iterator[None]:
    """Have libvirtd running with kvgpu's hook. VMs must be gone before this ends."""
    if os.geteuid() != 0:
        raise HostError("libvirt's system QEMU needs root: run this as root")
    logs.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_kvm_open_to_qemu())
        hook_is_new = not HOOK.exists()
        if hook_is_new:
            stack.callback(HOOK.unlink, missing_ok=True)
        HOOK.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(HOOK_SOURCE, HOOK)
        HOOK.chmod(0o755)
        if not _libvirt_answers():
            if not _virtlogd_answers():
                _start(stack, "virtlogd", logs)
                wait_until("virtlogd answers", _virtlogd_answers, DAEMON_START_S)
            _start(stack, "libvirtd", logs)
            wait_until("libvirtd answers", _libvirt_answers, DAEMON_START_S)
        elif hook_is_new:
            _restart_libvirtd()
        yield


def _restart_libvirtd() -> None:
    """libvirtd looks for hooks only when it starts; running guests are not touched by a restart."""
    if not Path("/run/systemd/system").is_dir():
        raise HostError("libvirtd runs without knowing kvgpu's hook: restart it, then try again")
    subprocess.run(["systemctl", "restart", "libvirtd"], check=True)
    wait_until("libvirtd answers", _libvirt_answers, DAEMON_START_S)


@contextlib.contextmanager
def kvgpud(logs: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run kvgpud with the software GPU in its usual runtime folder, where the hook looks."""
    log_path = logs / "kvgpud.log"
    logs.mkdir(parents=True, exist_ok=True)
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            python_module("kvgpu.host.kvgpud", "--driver", "software", *options),
            stdout=log,
            stderr=log,
            env=environment(),
            start_new_session=True,
        )

    def is_up() -> bool:
        if process.poll() is not None:
            tail = log_path.read_text(errors="replace")[-1000:]
            raise HostError(f"kvgpud ended with status {process.returncode}:\n{tail}")
        try:
            kvgpu("host", "status", "--json")
        except HostError:
            return False
        return True

    try:
        wait_until("kvgpud answers", is_up, DAEMON_START_S)
        yield process
    finally:
        stop_process(process)
