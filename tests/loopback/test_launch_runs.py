# SPDX-License-Identifier: Apache-2.0
"""Launches that come again and again are a graph for the driver, or one by one where it refuses."""

from __future__ import annotations

import pytest
from framework.loopback import LOOPBACK, case_filter, loopback

DRIVER = str(LOOPBACK / "libfault_driver.so")
IN_A_ROW = "launches in a row: each has its own parameters"  # 1,606 of them
ONE_BY_ONE = "launches one by one: each has its own parameters"  # 400 of them
OUT_OF_MEMORY = 2
SLOW = "cuLaunchKernel:100"  # µs: a worker that is not behind gives launches one by one


def fails_with(fault: str, case: str, **variables: str) -> bool:
    """Whether the driver came to the planted failure; the program does not see it."""
    with loopback(driver=DRIVER, jail=False, KVGPU_FAULT=fault, **variables) as host:
        output = host.check(LOOPBACK / "driver_cases", case_filter(case))
        assert "1 passed" in output
        return "fault_driver:" in host.logs()


def test_most_of_those_in_a_row_are_no_launches_of_the_driver() -> None:
    assert not fails_with(f"cuLaunchKernel:800:{OUT_OF_MEMORY}", IN_A_ROW, KVGPU_SLOW=SLOW)


def test_most_that_come_one_by_one_are_no_launches_of_the_driver() -> None:
    assert not fails_with(f"cuLaunchKernel:40:{OUT_OF_MEMORY}", ONE_BY_ONE)


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
    assert fails_with(f"{call}:{OUT_OF_MEMORY}", IN_A_ROW, KVGPU_SLOW=SLOW)
    assert fails_with(f"{call}:{OUT_OF_MEMORY}", ONE_BY_ONE)
