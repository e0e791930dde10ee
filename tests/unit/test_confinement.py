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
    groups.enter("worker-1-4711", 4711, GIB)
    group = root / "kvgpu" / "worker-1-4711"
    assert (group / "memory.max").read_text() == str(9 * GIB)
    assert (group / "pids.max").read_text() == "1024"
    assert (group / "cgroup.procs").read_text() == "4711"
    groups.allow_memory(group.name, 2 * GIB)
    assert (group / "memory.max").read_text() == str(10 * GIB)
    assert not groups.ran_out_of_memory(group.name)
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 17\noom 1\noom_kill 1\n")
    assert groups.ran_out_of_memory(group.name)


def test_host_that_can_make_no_groups_says_why(root: Path, tmp_path: Path) -> None:
    assert "is no cgroup v2" in WorkerCgroups(tmp_path / "no" / "kvgpu", GIB, 64).problem
    assert "worker_cgroup" in WorkerCgroups(None, GIB, 64).problem
    (root / "cgroup.controllers").write_text("cpu memory\n")
    groups = WorkerCgroups(root / "kvgpu", GIB, 64)
    assert groups.problem == f"{root} has no controller pids"
    groups.enter("worker-1-1", os.getpid(), 0)
    assert list((root / "kvgpu").iterdir()) == [root / "kvgpu" / "cgroup.subtree_control"]


def test_group_that_cannot_be_written_says_which(root: Path) -> None:
    switch = root / "kvgpu" / "cgroup.subtree_control"
    switch.unlink()
    switch.mkdir()
    problem = WorkerCgroups(root / "kvgpu", GIB, 64).problem
    assert problem == f"{switch}: Is a directory"


def test_group_that_is_still_in_use_is_removed_with_a_later_one(root: Path) -> None:
    groups = WorkerCgroups(root / "kvgpu", GIB, 64)
    for name in ("worker-1-1", "worker-1-2"):
        (root / "kvgpu" / name).mkdir()
    dying = root / "kvgpu" / "worker-1-1" / "cgroup.kill"
    dying.write_text("")
    groups.remove("worker-1-1")
    assert dying.read_text() == "1"
    dying.unlink()
    groups.remove("worker-1-2")
    assert not list((root / "kvgpu").glob("worker-*"))


@pytest.fixture
def jails(root: Path, lock_file: Path) -> Jails:
    groups = WorkerCgroups(root / "kvgpu", GIB, 64)
    return Jails(1000, WorkerUids(UIDS, lock_file), groups, 6400)


def test_uid_and_group_are_given_back(root: Path, jails: Jails) -> None:
    jail = jails.make(GIB, None)
    limits = ["--uid", str(FIRST), "--gid", "1000", "--max-tasks", "6400"]
    assert jail.options() == limits
    jail.enter(1)
    group = root / "kvgpu" / f"worker-{FIRST}-1"
    for file in group.iterdir():
        file.unlink()
    jail.release()
    assert not group.exists()
    assert [jails.make(0, None).uid for _ in UIDS] == [SECOND, THIRD, FIRST]


def test_workers_of_an_owner_have_one_uid_and_meet(jails: Jails) -> None:
    first, other = jails.make(0, "vm/1"), jails.make(0, "vm/2")
    first.enter(11)
    waited = jails.make(0, None)
    waited.enter(13)
    assert (first.uid, other.uid, waited.uid) == (FIRST, SECOND, THIRD)
    assert jails.has("vm/1")
    second = jails.make(0, "vm/1")
    assert second.options()[:2] == ["--uid", str(FIRST)]
    assert second.options()[-2:] == ["--join", "11"]
    second.enter(12)
    first.release()
    assert jails.make(0, "vm/1").options()[-2:] == ["--join", "12"]
    waited.give_to("user/0")
    assert jails.make(0, "user/0").options()[-2:] == ["--join", "13"]


def test_uid_is_its_owner_s_until_the_last_worker_has_gone(root: Path, jails: Jails) -> None:
    before = [jails.adopt(SECOND, pid, "vm/1") for pid in (21, 22)]  # an earlier kvgpud's
    assert [jails.make(0, None).uid for _ in range(2)] == [FIRST, THIRD]
    before[0].release()
    assert jails.make(0, "vm/1").options()[-2:] == ["--join", "22"]
    with pytest.raises(KvgpuError, match="uids for workers are in use"):
        jails.make(0, "vm/2")
    before[1].release()
    assert jails.has("vm/1")  # by the one that was made last


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
