# SPDX-License-Identifier: Apache-2.0
"""Processes by descriptors, not by numbers."""

from __future__ import annotations

import os
import signal
import subprocess

from kvgpu.host.processes import kill


def test_kill_of_one_that_runs_and_of_one_that_was_reaped() -> None:
    process = subprocess.Popen(["/bin/sleep", "60"])
    pidfd = os.pidfd_open(process.pid)
    try:
        kill(pidfd)
        assert process.wait(timeout=10) == -signal.SIGKILL
        kill(pidfd)
    finally:
        os.close(pidfd)
