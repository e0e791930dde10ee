# SPDX-License-Identifier: Apache-2.0
"""A deferred error poisons the session until it has been returned (fault_driver plants it)."""

from __future__ import annotations

import pytest
from framework.loopback import LOOPBACK, case_filter, loopback

OUT_OF_MEMORY, ILLEGAL_STATE, LAUNCH_FAILED = 2, 401, 719
LISTED_CASE = "poison: nothing after the failed record runs until the error has been returned, once"


@pytest.mark.parametrize(
    ("case", "error"),
    [
        (LISTED_CASE, OUT_OF_MEMORY),
        ("poison: a copy back never brings stale data with success", OUT_OF_MEMORY),
        (
            "poison: who waits for a number behind the failure gets the error, too",
            OUT_OF_MEMORY,
        ),
        (
            "poison: a thread that comes late is told as long as one that was there is not",
            OUT_OF_MEMORY,
        ),
        ("sticky: after a corrupted context every call returns its error", LAUNCH_FAILED),
    ],
)
def test_poison(case: str, error: int) -> None:
    fault = f"cuLaunchKernel:2:{error}"
    driver = str(LOOPBACK / "libfault_driver.so")
    # No jail: it shows the worker one driver folder, and this driver lies in two.
    with loopback(driver=driver, jail=False, KVGPU_FAULT=fault) as host:
        output = host.check(LOOPBACK / "poison_cases", case_filter(case))
        assert "1 passed" in output


def test_one_of_many_launches_fails() -> None:
    driver = str(LOOPBACK / "libfault_driver.so")
    fault = f"cuLaunchKernel:300:{OUT_OF_MEMORY}"
    with loopback(driver=driver, jail=False, KVGPU_FAULT=fault) as host:
        case = "poison: one of many launches fails, those behind it are skipped"
        assert "1 passed" in host.check(LOOPBACK / "poison_cases", case_filter(case))


@pytest.mark.parametrize(
    ("case", "error", "is_bug"),
    [
        (LISTED_CASE, OUT_OF_MEMORY, False),
        ("deferred: an error that no list has poisons as any other does", ILLEGAL_STATE, True),
        ("sticky: after a corrupted context every call returns its error", LAUNCH_FAILED, False),
    ],
)
def test_deferred_lists_are_enforced(case: str, error: int, is_bug: bool) -> None:
    """The worker says BUG where a record answers late what api.toml does not list, and poisons."""
    driver = str(LOOPBACK / "libfault_driver.so")
    with loopback(driver=driver, jail=False, KVGPU_FAULT=f"cuLaunchKernel:2:{error}") as host:
        host.check(LOOPBACK / "poison_cases", case_filter(case))
        assert ("BUG: cuLaunchKernel may not answer" in host.logs()) == is_bug, host.logs()


def test_sync_mode_returns_the_error_from_the_call_that_failed() -> None:
    """Several times: without KVGPU_SYNC the error would come later, if not always."""
    driver = str(LOOPBACK / "libfault_driver.so")
    with loopback(
        driver=driver, jail=False, KVGPU_FAULT=f"cuLaunchKernel:2:{OUT_OF_MEMORY}"
    ) as host:
        for _ in range(5):
            output = host.check(LOOPBACK / "poison_cases", "--test-case=sync:*", KVGPU_SYNC="1")
            assert "1 passed" in output


def test_skipped_host_functions_are_not_waited_for() -> None:
    """For every one a thread would look at the event ring each 2 ms from then on."""
    driver = str(LOOPBACK / "libfault_driver.so")
    fault = f"cuLaunchKernel:2:{OUT_OF_MEMORY}:200"
    with loopback(driver=driver, jail=False, KVGPU_FAULT=fault) as host:
        output = host.check(LOOPBACK / "poison_cases", "--test-case=skipped functions:*")
        assert "1 passed" in output
        print(next(line for line in output.splitlines() if line.startswith("figure: ")))
