# SPDX-License-Identifier: Apache-2.0
"""A worker that serves a program: what it may still do, as the kernel says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from framework import confinement
from framework.life import sessions, start_steady
from framework.loopback import PROGRAMS, Loopback, loopback
from framework.waiting import eventually

from kvgpu.host.worker_uids import has_processes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a jail needs root to make it")


@pytest.fixture(scope="module")
def host() -> Iterator[Loopback]:
    with loopback() as running:
        yield running


@pytest.fixture(scope="module")
def workers(host: Loopback) -> Iterator[list[int]]:
    """The workers of two programs that compute."""
    programs = [start_steady(host, 300) for _ in range(2)]
    try:
        yield host.worker_pids()
    finally:
        for program in programs:
            program.kill()
            program.communicate(timeout=20)
    assert eventually(lambda: not sessions(host))


def as_user(uid: int, code: str) -> str:
    """Run Python code as that user, who sees all processes; return what it prints."""
    drop = f"import os; os.setgroups([]); os.setgid({uid}); os.setuid({uid})"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"{drop}\n{code}"], capture_output=True, text=True, timeout=20
    )
    return done.stdout + done.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize(
    "check",
    [
        confinement.check_user,
        confinement.check_namespaces,
        confinement.check_root,
        confinement.check_descriptors,
        confinement.check_limits,
    ],
)
def test_property_of_a_live_worker(workers: list[int], check: object) -> None:
    assert callable(check)
    for worker in workers:
        print(f"figure: {check(worker)}")


def shm_of(worker: int) -> Path:
    return Path(f"/proc/{worker}/root/dev/shm")


def in_one_folder(workers: list[int]) -> bool:
    return len({(shm_of(pid).stat().st_dev, confinement.uid(pid)) for pid in workers}) == 1


def test_worker_cannot_signal_or_read_another_owner_s(workers: list[int]) -> None:
    first, second = workers  # one that has waited, and one that has joined it
    assert in_one_folder(workers)
    uid = confinement.uid(second)
    stranger, relative = uid + 1, uid  # relative: what another worker of the owner is
    assert "Operation not permitted" in as_user(stranger, f"os.kill({second}, 9)")
    assert "Permission denied" in as_user(stranger, f"os.listdir('{shm_of(second)}')")
    for other in (stranger, relative):
        for file in ("mem", "environ", "maps", "root/dev/null"):
            assert "Permission denied" in as_user(
                other, f"open('/proc/{second}/{file}', 'rb').read(1)"
            )
        assert "PermissionError" in as_user(other, f"os.listdir('/proc/{second}/fd')")
        attach = f"import ctypes; print(ctypes.CDLL(None).ptrace(16, {second}, 0, 0))"
        assert as_user(other, attach) == "-1\n"
    assert as_user(relative, f"os.kill({first}, 0); print('own')") == "own\n"


def test_workers_of_one_user_meet_and_what_they_leave_ends_with_the_last() -> None:
    config = "prestarted_workers = 0\n"
    with loopback(config=config) as host, ThreadPoolExecutor(3) as threads:
        programs = list(threads.map(lambda _: start_steady(host, 60), range(3)))  # at once
        try:
            workers = host.worker_pids()
            assert len(workers) == 3
            assert in_one_folder(workers), host.logs()
            file = shm_of(workers[0]) / "cuda.shm.kvgpu-test"
            file.write_text("here")
            assert (shm_of(workers[-1]) / file.name).read_text() == "here"
            uid = confinement.uid(workers[0])
            with subprocess.Popen(["sleep", "60"], user=uid, start_new_session=True) as left:
                programs[0].kill()
                assert eventually(lambda: len(sessions(host)) == 2)
                programs.append(start_steady(host, 60))
                assert in_one_folder(host.worker_pids())
                assert left.poll() is None
                for program in programs:
                    program.kill()
                assert left.wait(10) == -signal.SIGKILL
        finally:
            for program in programs:
                program.kill()
                program.communicate(timeout=20)
        assert eventually(lambda: not sessions(host))
        host.check(PROGRAMS / "demo")


def test_uid_of_an_adopted_worker_stays_its_owner_s() -> None:
    with loopback(config='worker_uids = "2147200000-2147200000"\nprestarted_workers = 0\n') as host:
        first = start_steady(host, 60)
        second = None
        try:
            (kept,) = host.worker_pids()
            uid = confinement.uid(kept)
            host.stop_kvgpud(signal.SIGKILL)
            host.start_kvgpud()
            second = start_steady(host, 60)
            assert in_one_folder(host.worker_pids())
            os.kill(kept, signal.SIGKILL)
            assert eventually(lambda: len(sessions(host)) == 1)
            second.kill()
            assert eventually(lambda: not sessions(host))
            assert eventually(lambda: not has_processes(uid))  # init collects it when it likes to
            host.check(PROGRAMS / "demo")
        finally:
            for program in filter(None, (first, second)):
                program.kill()
                program.communicate(timeout=20)


def test_host_without_cgroups_says_so_once(host: Loopback) -> None:
    log = (host.runtime_dir / "kvgpud.log").read_text()
    said = re.findall(r"workers have no cgroups: (.*)", log)
    has_v2 = "memory" in _controllers()
    assert len(said) == (0 if has_v2 else 1), log


def test_worker_is_in_a_group_with_memory_and_pids(workers: list[int]) -> None:
    if "memory" not in _controllers():
        for worker in workers:
            assert confinement.cgroup(worker) is None
        return  # the groups themselves: tests/unit/test_confinement.py, tests/vm
    for worker in workers:
        group = confinement.cgroup(worker)
        assert group is not None
        assert int((group / "memory.max").read_text()) >= 8 << 30
        assert (group / "pids.max").read_text() == "1024\n"


def _controllers() -> list[str]:
    try:
        return Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    except OSError:
        return []


def test_full_disk_for_logs_costs_the_logs_only(tmp_path: Path) -> None:
    small = tmp_path / "log"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "kvgpu-test", small], check=True)
    try:
        (small / "filler").write_bytes(b"x" * 8192)
        with loopback(config=f'log_dir = "{small}"\n') as host:
            (small / "more").write_bytes(b"x" * 4096)
            for _ in range(3):
                host.check(PROGRAMS / "demo")
            log = (host.runtime_dir / "kvgpud.log").read_text()
            assert f"{small}: no space is left: the sessions' logs end early" in log
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)
