# SPDX-License-Identifier: Apache-2.0
"""The client's settings: environment, the user's file, the system's; and the log they turn on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from framework.loopback import LOOPBACK, Loopback, loopback
from framework.settings import probe, user_file

OUT_OF_MEMORY = 2
N_CALLS = 2000


@pytest.fixture(scope="module")
def two_devices() -> Iterator[Loopback]:
    with loopback(KVGPU_SOFTWARE_GPU_DEVICES="2", XDG_CONFIG_HOME="/nonexistent") as running:
        yield running


def test_without_settings_all_is_there_and_nothing_is_said(two_devices: Loopback) -> None:
    seen, done = probe(two_devices)
    assert seen["init"] == "0"
    assert seen["devices"] == "2"
    assert seen["alloc"] == "0 0 0"
    assert done.stderr == ""


def test_fewer_devices_and_less_memory_are_seen_and_enforced(two_devices: Loopback) -> None:
    seen, _ = probe(two_devices, KVGPU_DEVICES="1", KVGPU_MEMORY_MIB="63")
    assert seen["devices"] == "1"
    assert seen["total"] == "63"
    assert seen["alloc"] == f"0 0 {OUT_OF_MEMORY}"
    assert seen["info"] == "61 63"


def test_more_than_the_vm_has_gives_what_it_has(two_devices: Loopback) -> None:
    plain, _ = probe(two_devices)
    greedy, _ = probe(two_devices, KVGPU_DEVICES="16", KVGPU_MEMORY_MIB="16777216")
    assert greedy == plain


def test_environment_comes_before_the_user_s_file(two_devices: Loopback, tmp_path: Path) -> None:
    file = user_file(tmp_path, "# mine\ndevices = 1\nmemory_mib = 100  # of 80 GiB\n")
    seen, _ = probe(two_devices, **file)
    assert (seen["devices"], seen["total"]) == ("1", "100")
    seen, _ = probe(two_devices, **file, KVGPU_DEVICES="2")
    assert (seen["devices"], seen["total"]) == ("2", "100")


def test_home_is_where_the_user_s_file_is(two_devices: Loopback, tmp_path: Path) -> None:
    user_file(tmp_path / ".config", "memory_mib = 70\n")
    seen, _ = probe(two_devices, HOME=str(tmp_path), XDG_CONFIG_HOME="")
    assert seen["total"] == "70"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to put a file into /etc")
def test_user_s_file_comes_before_the_system_s(two_devices: Loopback, tmp_path: Path) -> None:
    file = user_file(tmp_path / "user", "memory_mib = 90\n")
    user_file(tmp_path / "system", "memory_mib = 80\ndevices = 1\n")
    # In a mount namespace of its own; the folder is there only while the test runs.
    script = 'mount --bind "$1" /etc/kvgpu; shift; exec "$@"'
    prefix = [
        *("unshare", "--mount", "--propagation", "private", "bash", "-e", "-c", script, "-"),
        str(tmp_path / "system/kvgpu"),
    ]
    folder = Path("/etc/kvgpu")
    was_there = folder.exists()
    folder.mkdir(exist_ok=True)
    try:
        seen, _ = probe(two_devices, *prefix)
        assert (seen["devices"], seen["total"]) == ("1", "80")
        seen, _ = probe(two_devices, *prefix, **file)
        assert (seen["devices"], seen["total"]) == ("1", "90")
    finally:
        if not was_there:
            folder.rmdir()


def test_compute_percent_says_that_it_is_not_enforced(two_devices: Loopback) -> None:
    seen, done = probe(two_devices, KVGPU_COMPUTE_PERCENT="50")
    assert seen["init"] == "0"
    assert done.stderr == "kvgpu: compute_percent is not enforced yet\n"


def counts(output: str) -> tuple[int, int]:
    found = re.match(r"formatted (\d+)\nwritten (\d+)\ntimed \d+\n", output)
    assert found, output
    return int(found[1]), int(found[2])


def test_log_costs_nothing_by_default(two_devices: Loopback) -> None:
    """Nothing is formatted or written for a call; the same check sees the cost of a log."""
    quiet = two_devices.check(LOOPBACK / "log_cost", str(N_CALLS))
    assert counts(quiet) == (0, 0)
    loud = two_devices.check(
        LOOPBACK / "log_cost", str(N_CALLS), KVGPU_LOG="trace", KVGPU_LOG_FILE="/dev/null"
    )
    assert min(counts(loud)) >= N_CALLS
    print("figure: a call without a log", quiet.splitlines()[-1], "and with", loud.splitlines()[-1])


def test_log_file_takes_the_lines_of_the_level(two_devices: Loopback, tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = user_file(tmp_path, f'log = "info"\nlog_file = "{path}"\n')
    _, done = probe(two_devices, **file)
    assert done.stderr == ""
    assert re.fullmatch(
        r"kvgpu\[\d+\]: session \d+: 2 of 2 devices, driver \d+\n", path.read_text()
    )
    path.unlink()
    probe(two_devices, **file, KVGPU_LOG="trace")
    assert "opcode" in path.read_text()


def test_log_on_standard_error(two_devices: Loopback) -> None:
    _, done = probe(two_devices, KVGPU_LOG="info")
    assert "kvgpu: session " in done.stderr


def test_log_off_silences_all(two_devices: Loopback) -> None:
    seen, done = probe(two_devices, KVGPU_LOG="off", KVGPU_COMPUTE_PERCENT="50")
    assert seen["init"] == "0"
    assert done.stderr == ""
