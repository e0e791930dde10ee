# SPDX-License-Identifier: Apache-2.0
"""Good and bad calls of every entry point: kvgpu answers what the software GPU below it answers, or
what driver 580 has answered on an H200.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from framework.loopback import ROOT
from framework.recorded import RECORDED

TOOL = ROOT / "tests/differential/errors.py"
BAD_CALLS = RECORDED / "bad_calls.tsv"
LIMIT_S = 280


def test_results_of_bad_calls_are_the_drivers(tmp_path: Path) -> None:
    command = [sys.executable, "-P", str(TOOL), "--out", str(tmp_path), "--limit-s", "200"]
    if BAD_CALLS.exists():
        command += ["--recorded", str(BAD_CALLS)]
    packages = [str(ROOT / "packaging/python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": ":".join(packages)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    works = re.search(r"^remoted: .* the good one of (\d+) works", done.stdout, re.M)
    assert works
    assert int(works[1]) > 400, done.stdout
