# SPDX-License-Identifier: Apache-2.0
"""Uids and control groups of workers. tests/loopback/test_confinement.py has real workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvgpu.host.config import HostConfig
from kvgpu.host.confinement import Jails
from kvgpu.host.errors import KvgpuError
from kvgpu.host.shared_folders import SharedFolders
from kvgpu.host.units import GIB
from kvgpu.host.worker_cgroup import WorkerCgroups
from kvgpu.host.worker_uids import WorkerUids, end_processes, has_processes

UIDS = range(2147300000, 2147300003)
FIRST, SECOND, THIRD = UIDS


@pytest.fixture
def lock_file(tmp_path: Path) -> Path:
    return tmp_path / "run" / "uids.lock"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """What stands in for the root of a cgroup v2 hierarchy."""
    root = tmp_path / "cgroup"
    (root / "kvgpu").mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpu io memory pids\n")
    (root / "cgroup.subtree_control").write_text("memory\n")
    (root / "kvgpu" / "cgroup.subtree_control").write_text("")
    return root


def test_uids_come_in_turn_and_again_when_given_back(lock_file: Path) -> None:
    uids = WorkerUids(UIDS, lock_file)
    assert [uids.take() for _ in UIDS] == list(UIDS)
    with pytest.raises(KvgpuError, match="all 3 uids for workers are in use"):
        uids.take()
    uids.give_back(SECOND)
    assert uids.take() == SECOND


def test_two_kvgpuds_never_share_a_uid(lock_file: Path) -> None:
    one, other = WorkerUids(UIDS, lock_file), WorkerUids(UIDS, lock_file)
    assert [one.take(), other.take(), one.take()] == list(UIDS)
    with pytest.raises(KvgpuError):
        other.take()
    one.close()  # killed
    assert [other.take(), other.take()] == [THIRD, FIRST]


def test_uid_that_is_kept_for_an_earlier_session_is_taken(lock_file: Path) -> None:
    uids = WorkerUids(UIDS, lock_file)
    uids.keep(FIRST)
    assert uids.take() == SECOND


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_uid_of_which_a_process_is_left_is_not_given(lock_file: Path) -> None:
    code = f"import os, sys; os.setuid({FIRST}); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        assert has_processes(FIRST)
        assert WorkerUids(UIDS, lock_file).take() == SECOND
        process.kill()
    assert not has_processes(FIRST)
    assert WorkerUids(UIDS, lock_file).take() == FIRST


def test_group_of_a_worker_has_its_limits_and_the_worker(root: Path) -> None:
    groups = WorkerCgroups(root / "kvgpu", 8 * GIB, 1024)
    assert groups.problem == ""
    assert (root / "cgroup.subtree_control").read_text() == "+pids"
    assert (root / "kvgpu" / "cgroup.subtree_control").read_text() == "+memory +pids"
    groups.enter(FIRST, 4711, GIB)
    group = root / "kvgpu" / f"worker-{FIRST}"
    assert (group / "memory.max").read_text() == str(9 * GIB)
    assert (group / "pids.max").read_text() == "1024"
    assert (group / "cgroup.procs").read_text() == "4711"
    groups.allow_memory(FIRST, 2 * GIB)
    assert (group / "memory.max").read_text() == str(10 * GIB)
    assert not groups.ran_out_of_memory(FIRST)
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 17\noom 1\noom_kill 1\n")
    assert groups.ran_out_of_memory(FIRST)


def test_host_that_can_make_no_groups_says_why(root: Path, tmp_path: Path) -> None:
    assert "is no cgroup v2" in WorkerCgroups(tmp_path / "no" / "kvgpu", GIB, 64).problem
    assert "worker_cgroup" in WorkerCgroups(None, GIB, 64).problem
    (root / "cgroup.controllers").write_text("cpu memory\n")
    groups = WorkerCgroups(root / "kvgpu", GIB, 64)
    assert groups.problem == f"{root} has no controller pids"
    groups.enter(FIRST, os.getpid(), 0)
    assert list((root / "kvgpu").iterdir()) == [root / "kvgpu" / "cgroup.subtree_control"]


def test_group_that_cannot_be_written_says_which(root: Path) -> None:
    switch = root / "kvgpu" / "cgroup.subtree_control"
    switch.unlink()
    switch.mkdir()
    problem = WorkerCgroups(root / "kvgpu", GIB, 64).problem
    assert problem == f"{switch}: Is a directory"


def test_uid_and_group_are_given_back(root: Path, lock_file: Path) -> None:
    groups = WorkerCgroups(root / "kvgpu", GIB, 64)
    folders = SharedFolders(root / "shm")
    jails = Jails(1000, WorkerUids(UIDS, lock_file), groups, folders, 64)
    jail = jails.make(GIB)
    *limits, _, shm = jail.options()
    assert limits == ["--uid", str(FIRST), "--gid", "1000", "--max-tasks", "64"]
    assert shm == str(folders.link(FIRST))
    (root / "kvgpu" / f"worker-{FIRST}").mkdir()
    jail.release()
    assert not (root / "kvgpu" / f"worker-{FIRST}").exists()
    assert [jails.make(0).uid for _ in UIDS] == [SECOND, THIRD, FIRST]


def test_workers_meet_in_the_folder_of_their_owner(tmp_path: Path) -> None:
    root = tmp_path / "shm"
    folders = SharedFolders(root)
    for uid, owner in ((FIRST, "vm/1"), (SECOND, "vm/1"), (THIRD, "vm/2")):
        folders.lead(uid, owner)
    assert folders.link(FIRST).resolve() == folders.link(SECOND).resolve()
    assert folders.link(FIRST).resolve() != folders.link(THIRD).resolve()
    (folders.link(FIRST) / "cuda.shm.1").touch()
    again = SharedFolders(root)  # the next kvgpud's
    again.remove(FIRST)
    assert list(again.link(SECOND).iterdir()) == [again.link(SECOND) / "cuda.shm.1"]  # root's
    again.remove(SECOND)
    again.remove(THIRD)
    again.remove(THIRD)
    assert list(root.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_processes_that_a_worker_leaves_are_ended() -> None:
    with subprocess.Popen(["sleep", "60"], user=FIRST) as left:
        end_processes(SECOND)
        assert left.poll() is None
        end_processes(FIRST)
        assert left.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize("uids", ["1000-2000", "3", "70000-69999", "70000-4294967295", "a-b"])
def test_range_that_is_none_or_belongs_to_accounts_is_refused(uids: str) -> None:
    with pytest.raises(ValueError, match="worker_uids"):
        HostConfig(worker_uids=uids)


def test_default_range_is_nobody_s() -> None:
    """By systemd's UIDS-GIDS; subuids lie below, in 100000-600100000 (login.defs)."""
    first, _, last = HostConfig().worker_uids.partition("-")
    assert 1879048192 <= int(first) < int(last) <= 2147483647
