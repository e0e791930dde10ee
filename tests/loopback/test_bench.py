# SPDX-License-Identifier: Apache-2.0
"""`make bench` on the software GPU: native and remoted figures of each kind of subject."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from framework.loopback import ROOT

ONLY = "launch,memory,start,cost"


def test_each_kind_of_subject_gives_its_rows(tmp_path: Path) -> None:
    path = f"{ROOT}/packaging/python:{ROOT}/tests:{ROOT}"
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "benchmarks", "--driver", "software", "--pairs", "1"),
            *("--effort", "0.002", "--only", ONLY, "--out", str(tmp_path)),
        ],
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["missing"] == {}
    rows = written["rows"]
    assert {"launch_call", "alloc_async", "first_kernel"} <= set(rows)
    assert {"idle_session", "busy_session", "resident"} <= set(rows)
    assert all(row["remoted"][0] >= 0 for row in rows.values())
    assert all(row["native"][0] > 0 for row in rows.values() if row["of"] == "ratio")
    assert "host process" in (tmp_path / "bench.md").read_text()
