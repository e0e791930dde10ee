# SPDX-License-Identifier: Apache-2.0
"""Launches that come again and again are a graph for the driver, or one by one where it refuses."""

from __future__ import annotations

import pytest
from framework.loopback import LOOPBACK, case_filter, loopback

DRIVER = str(LOOPBACK / "libfault_driver.so")
CASE = "launches in a row: each has its own parameters"  # 1,606 of them
OUT_OF_MEMORY = 2
SLOW = "cuLaunchKernel:100"  # µs: a worker that is not behind gives launches one by one


def fails_with(fault: str) -> bool:
    """Whether the driver came to the planted failure; the program does not see it."""
    with loopback(driver=DRIVER, jail=False, KVGPU_FAULT=fault, KVGPU_SLOW=SLOW) as host:
        output = host.check(LOOPBACK / "driver_cases", case_filter(CASE))
        assert "1 passed" in output
        return "fault_driver:" in host.logs()


def test_most_are_no_launches_of_the_driver() -> None:
    assert not fails_with(f"cuLaunchKernel:800:{OUT_OF_MEMORY}")


@pytest.mark.parametrize(
    "call",
    [
        "cuGraphInstantiateWithFlags:1",
        "cuGraphExecKernelNodeSetParams_v2:1",
        "cuGraphExecKernelNodeSetParams_v2:77",
        "cuGraphLaunch:1",
        "cuGraphLaunch:9",
    ],
)
def test_what_the_driver_refuses_as_a_graph_is_launched(call: str) -> None:
    assert fails_with(f"{call}:{OUT_OF_MEMORY}")
