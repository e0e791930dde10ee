# SPDX-License-Identifier: Apache-2.0
"""`make bench` and `make bench-builds` on the software GPU: native and remoted figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from framework.loopback import BUILD, ROOT

ONLY = "launch,memory,start,cost"


def run(module: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    path = f"{ROOT}/packaging/python:{ROOT}/tests:{ROOT}"
    options = ("--driver", "software", "--effort", "0.002")
    return subprocess.run(
        [sys.executable, "-P", "-m", module, *options, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_each_kind_of_subject_gives_its_rows(tmp_path: Path) -> None:
    done = run("benchmarks", "--pairs", "1", "--only", ONLY, "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["missing"] == {}
    rows = written["rows"]
    assert {"launch_call", "alloc_async", "first_kernel"} <= set(rows)
    assert {"idle_session", "busy_session", "resident"} <= set(rows)
    assert all(row["remoted"][0] >= 0 for row in rows.values())
    assert all(row["native"][0] > 0 for row in rows.values() if row["of"] == "ratio")
    assert "host process" in (tmp_path / "bench.md").read_text()


def test_builds_are_measured_beside_native(tmp_path: Path) -> None:
    builds = [option for name in ("a", "b") for option in ("--build", f"{name}={BUILD}")]
    done = run("benchmarks.builds", *builds, "--only", "memory", "--rounds", "2", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (rounds,) = json.loads((tmp_path / "builds.json").read_text()).values()
    assert len(rounds) == 2
    assert all(set(each) == {"native", "a", "b"} for each in rounds)
    assert all(side["alloc_async"] > 0 for each in rounds for side in each.values())
    assert "memory alloc_async: native" in done.stdout


def test_folder_without_a_build_is_refused(tmp_path: Path) -> None:
    done = run("benchmarks.builds", "--build", f"a={tmp_path}")
    assert done.returncode == 2
    assert "has no host/worker/kvgpu-worker: is it a build?" in done.stderr


def test_unknown_subject_is_named(tmp_path: Path) -> None:
    done = run("benchmarks.builds", "--build", f"a={BUILD}", "--only", "lanch", "--out", tmp_path)
    assert done.returncode == 1
    assert "builds: no subject or row lanch" in done.stderr
