# SPDX-License-Identifier: Apache-2.0
"""The memory type of the region: measured where a program attaches; streaming copies elsewhere."""

from __future__ import annotations

import re

import pytest
from framework.loopback import PROGRAMS, Loopback

STREAMED = {"into the region", "out of the region"}
TYPES = {"wb": "write-back", "wc": "write-combining", "uc": "uncached"}


def run(host: Loopback, program: str, *arguments: str, **variables: str) -> tuple[str, str]:
    done = host.run(PROGRAMS / program, *arguments, KVGPU_LOG="debug", **variables)
    assert done.returncode == 0, done.stdout + done.stderr + host.logs()
    return done.stdout, done.stderr


def memory_type(log: str) -> str:
    found = re.findall(r"memory type of the region: ([a-z-]+) \(measured; reads \d+ MB/s;", log)
    assert len(found) == 1, log
    return str(found[0])


def test_shared_memory_of_a_host_process_is_measured_write_back(host: Loopback) -> None:
    _, log = run(host, "demo")
    assert memory_type(log) == "write-back"
    assert "streaming copy" not in log


def test_measuring_delays_no_start(host: Loopback) -> None:
    """Some microseconds; a loaded machine may interrupt it, the best of three says more."""
    logs = [run(host, "demo")[1] for _ in range(3)]
    took_us = min(int(re.findall(r"(\d+) us to find out", log)[0]) for log in logs)
    print(f"figure: memory type found in {took_us} us")
    assert took_us < 2000


@pytest.mark.parametrize("told", TYPES)
def test_streaming_copies_give_the_same_results(host: Loopback, told: str) -> None:
    expected, _ = run(host, "memory")
    output, log = run(host, "memory", KVGPU_MEMORY_TYPE=told)
    assert output == expected
    assert f"memory type of the region: {TYPES[told]} (told;" in log
    streamed = {what for what in STREAMED if f"the first streaming copy {what}" in log}
    assert streamed == (set() if told == "wb" else STREAMED)


def test_host_functions_and_events_work_in_streaming_mode(host: Loopback) -> None:
    for program in ("hostfunc", "capture", "printf"):
        expected, _ = run(host, program)
        output, _ = run(host, program, KVGPU_MEMORY_TYPE="wc")
        assert output == expected


def test_unknown_memory_type_is_said_and_measured(host: Loopback) -> None:
    _, log = run(host, "demo", KVGPU_MEMORY_TYPE="fast")
    assert "KVGPU_MEMORY_TYPE=fast is none of wb, wc, uc: measured instead" in log
    assert memory_type(log) == "write-back"
