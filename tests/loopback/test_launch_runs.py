# SPDX-License-Identifier: Apache-2.0
"""Launches that come again and again are a graph for the driver, or one by one where it refuses."""

from __future__ import annotations

import pytest
from framework.loopback import LOOPBACK, case_filter, loopback

DRIVER = str(LOOPBACK / "libfault_driver.so")
IN_A_ROW = "launches in a row: each has its own parameters"  # 1,606 of them
ONE_BY_ONE = "launches one by one: each has its own parameters"  # 400 of them
OUT_OF_MEMORY = 2
# µs: of a worker that is behind. The first launches are graphs of one: some 80, until eight times
# eight have come in a row; then there are some 190 graphs of eight.
SLOW = "cuGraphLaunch:100"


def fails_with(fault: str, case: str, **variables: str) -> bool:
    """Whether the driver came to the planted failure; the program does not see it."""
    with loopback(driver=DRIVER, jail=False, KVGPU_FAULT=fault, **variables) as host:
        output = host.check(LOOPBACK / "driver_cases", case_filter(case))
        assert "1 passed" in output
        return "fault_driver:" in host.logs()


def test_most_of_those_in_a_row_are_graphs_of_eight() -> None:
    assert not fails_with(f"cuGraphLaunch:800:{OUT_OF_MEMORY}", IN_A_ROW, KVGPU_SLOW=SLOW)
    assert not fails_with(f"cuLaunchKernel:40:{OUT_OF_MEMORY}", IN_A_ROW, KVGPU_SLOW=SLOW)


def test_most_that_come_one_by_one_are_no_launches_of_the_driver() -> None:
    assert not fails_with(f"cuLaunchKernel:40:{OUT_OF_MEMORY}", ONE_BY_ONE)


@pytest.mark.parametrize(
    "call",
    [
        "cuGraphAddKernelNode_v2:2",
        "cuGraphAddKernelNode_v2:9",
        "cuGraphInstantiateWithFlags:2",
        "cuGraphExecKernelNodeSetParams_v2:500",
        "cuGraphLaunch:200",
    ],
)
def test_eight_that_the_driver_refuses_as_a_graph_are_launched(call: str) -> None:
    assert fails_with(f"{call}:{OUT_OF_MEMORY}", IN_A_ROW, KVGPU_SLOW=SLOW)


@pytest.mark.parametrize(
    "call",
    [
        "cuGraphAddKernelNode_v2:1",
        "cuGraphInstantiateWithFlags:1",
        "cuGraphExecKernelNodeSetParams_v2:1",
        "cuGraphExecKernelNodeSetParams_v2:77",
        "cuGraphLaunch:1",
        "cuGraphLaunch:9",
    ],
)
def test_what_the_driver_refuses_as_a_graph_is_launched(call: str) -> None:
    assert fails_with(f"{call}:{OUT_OF_MEMORY}", ONE_BY_ONE)
