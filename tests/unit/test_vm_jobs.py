# SPDX-License-Identifier: Apache-2.0
"""What tests/gpu/vm_jobs.py says of a run in a guest beside native ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu.vm_jobs import Job, compare, hand_over, library_path

JOB = Job("demo", "a program", "true")
REFUSED = Job("direct", "another", "true", refusal="read: EFAULT")


def leave(folder: Path, job: Job, output: str, status: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{job.name}.out").write_text(output)
    (folder / f"{job.name}.status").write_text(f"{status}\n")
    return folder


def problems(job: Job, tmp_path: Path, output: str, status: int = 0) -> list[str]:
    natives = [leave(tmp_path / name, job, "# 1 ms\nsum: 7\n") for name in ("native", "again")]
    return compare(job, natives, leave(tmp_path / "guest", job, output, status)).problems


def test_the_same_lines_are_the_same_result(tmp_path: Path) -> None:
    assert problems(JOB, tmp_path, "# 30 ms\nsum: 7\n") == []


def test_other_lines_or_another_status_are_problems(tmp_path: Path) -> None:
    assert problems(JOB, tmp_path, "sum: 8\n") == [
        "line 1: 'sum: 7' natively, 'sum: 8' in the guest"
    ]
    assert problems(JOB, tmp_path, "sum: 7\nmore\n") == ["1 lines natively, 2 in the guest"]
    assert problems(JOB, tmp_path, "sum: 7\n", 124) == ["status 124 in the guest"]


def test_a_job_that_left_nothing_is_a_problem(tmp_path: Path) -> None:
    natives = [leave(tmp_path / "native", JOB, "sum: 7\n")]
    assert compare(JOB, natives, tmp_path / "guest").problems == ["status none in the guest"]


def test_a_refusal_must_be_that_one(tmp_path: Path) -> None:
    assert problems(REFUSED, tmp_path, "read: EFAULT\n", 1) == []
    assert problems(REFUSED, tmp_path, "sum: 7\n") != []


def test_the_longest_jobs_share_their_lane_with_the_fewest(tmp_path: Path) -> None:
    jobs = [Job(name, "", "true") for name in "abcde"]
    hand_over(jobs, tmp_path, 3, 60)
    lanes = {path.name: sorted(p.name for p in path.iterdir()) for path in tmp_path.glob("jobs/*")}
    assert lanes == {"0": ["00-a"], "1": ["01-b", "04-e"], "2": ["02-c", "03-d"]}


def test_the_hosts_driver_is_in_no_library_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, other = tmp_path / "driver", tmp_path / "other"
    driver.mkdir()
    (driver / "libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{driver}:{other}:")
    assert library_path() == str(other)
