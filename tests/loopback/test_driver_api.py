# SPDX-License-Identifier: Apache-2.0
"""The cases of cases/*.cpp through `kvgpu run`; tests/gpu runs them on a real GPU, natively too."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

import pytest
from framework.loopback import BUILD, LOOPBACK, Loopback, case_filter, case_names, loopback

TWO_IN_TURN = "peers: two devices in turn, each behind the other's events"


def test_cases_are_built() -> None:
    assert len(case_names()) >= 20, f"{LOOPBACK}/driver_cases is missing or short: make build"


@pytest.mark.parametrize("case", case_names())
def test_case(host: Loopback, case: str) -> None:
    output = host.check(LOOPBACK / "driver_cases", case_filter(case))
    assert "1 passed" in output


def test_cases_one_after_another_in_one_process(host: Loopback) -> None:
    """All cases but those that corrupt the context, one after another in one process."""
    skip = "--test-case-exclude=error:*,initialisation:*,context:*"
    output = host.check(LOOPBACK / "driver_cases", skip)
    assert "0 failed" in output


def check_on_the_software_gpu_itself(case: str, **variables: str) -> None:
    environment = os.environ | {"LD_LIBRARY_PATH": str(BUILD / "host/software_gpu")} | variables
    command = [str(LOOPBACK / "driver_cases"), case_filter(case)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert re.search(r"test cases: +1 \| +1 passed", done.stdout), done.stdout + done.stderr


@pytest.fixture(scope="module")
def two_devices() -> Iterator[Loopback]:
    with loopback(KVGPU_SOFTWARE_GPU_DEVICES="2") as running:
        yield running


@pytest.mark.parametrize("case", [c for c in case_names() if "peers" in c])
def test_case_on_two_devices(two_devices: Loopback, case: str) -> None:
    check_on_the_software_gpu_itself(case, KVGPU_SOFTWARE_GPU_DEVICES="2")
    assert "1 passed" in two_devices.check(LOOPBACK / "driver_cases", case_filter(case))


def test_devices_have_a_thread_each_once_several_have_work(two_devices: Loopback) -> None:
    for case, told in (("peers: a device is no peer of itself", 0), (TWO_IN_TURN, 1)):
        earlier = two_devices.logs().count("a thread each")
        two_devices.check(LOOPBACK / "driver_cases", case_filter(case))
        assert two_devices.logs().count("a thread each") - earlier == told


@pytest.mark.parametrize("case", [c for c in case_names() if c.startswith(("event", "progress"))])
def test_progress_as_records(case: str) -> None:
    """The general form of progress: PROGRESS records instead of words that the GPU writes."""
    with loopback(KVGPU_PROGRESS="records") as host:
        host.check(LOOPBACK / "driver_cases", case_filter(case))


def test_executor_blocked_call_stops_no_other_thread(host: Loopback) -> None:
    host.check(LOOPBACK / "poison_cases", "--test-case=executor:*")


def test_devices_are_ordered_by_events() -> None:
    with loopback(KVGPU_SOFTWARE_GPU_DEVICES="2") as host:
        host.check(LOOPBACK / "poison_cases", "--test-case=devices:*")
