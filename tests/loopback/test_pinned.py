# SPDX-License-Identifier: Apache-2.0
"""Pinned memory where it is not in the region: KVGPU_PINNED=copy, and a region that is full."""

from __future__ import annotations

import subprocess
import sys

import pytest
from framework.loopback import LOOPBACK, Loopback, case_filter, case_names, loopback

# What of the cases needs neither mapped access nor a kernel that waits on pinned memory.
ORDINARY = [
    case
    for case in case_names()
    if case.startswith(("memory_1d", "memory_2d", "host_register"))
    and not case.startswith(
        (
            "memory_2d: captured",
            "host_register: private",
            "host_register: pinned copies are asynchronous",
        )
    )
]


def test_pinned_copy_gives_ordinary_pages(host: Loopback) -> None:
    case = case_filter("pinned_copy: ordinary pages, right copies, no mapped access")
    done = host.run(LOOPBACK / "poison_cases", case, KVGPU_PINNED="copy")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "1 passed" in done.stdout
    assert "mapped access to host memory" in done.stderr


def test_session_memory_after_a_context_that_failed_half_way() -> None:
    # No jail: it shows the worker one driver folder, and this driver lies in two.
    driver = str(LOOPBACK / "libfault_driver.so")
    with loopback(driver=driver, jail=False, KVGPU_FAULT="cuStreamCreate:1:2") as host:
        assert "1 passed" in host.check(LOOPBACK / "poison_cases", "--test-case=unprepared:*")


@pytest.mark.parametrize("case", ORDINARY)
def test_pinned_copy_runs_what_needs_no_mapping(host: Loopback, case: str) -> None:
    output = host.check(LOOPBACK / "driver_cases", case_filter(case), KVGPU_PINNED="copy")
    assert "1 passed" in output


def test_pinned_copy_names_an_unknown_mode(host: Loopback) -> None:
    case = case_filter("host_register: errors")
    done = host.run(LOOPBACK / "driver_cases", case, KVGPU_PINNED="somewhere")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "KVGPU_PINNED=somewhere" in done.stderr


def test_region_full(host: Loopback) -> None:
    """Out of memory, with a log line that says what to do; room again once it is freed."""
    case = case_filter("region_full: out of memory, and room again after freeing")
    run = [sys.executable, "-m", "kvgpu.host.cli", "run", "--pinned", "256MiB", "--"]
    done = subprocess.run(
        [*run, str(LOOPBACK / "poison_cases"), case],
        env=host.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{host.logs()}"
    assert "1 passed" in done.stdout
    assert "kvgpu vm xml --pinned" in done.stderr
