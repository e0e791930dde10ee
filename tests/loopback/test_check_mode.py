# SPDX-License-Identifier: Apache-2.0
"""KVGPU_SOFTWARE_GPU_CHECK=1 names the lines of bugs in kernels, and is silent without any."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from framework.loopback import LIMIT_S, PROGRAMS, ROOT, Loopback, loopback

MARK = "kvgpu software GPU check: "
SOURCES = ROOT / "tests/programs"
KINDS = {
    "race": "race",
    "overwrite": "race",
    "warp": "race",
    "lock": "race",
    "uninitialised": "uninitialised read",
    "bounds": "out of bounds",
    "shared_bounds": "out of bounds",
}


@pytest.fixture(scope="module")
def host() -> Iterator[Loopback]:
    with loopback(KVGPU_SOFTWARE_GPU_CHECK="1") as running:
        yield running


def findings_in(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.startswith(MARK)]
    return [line.removeprefix(MARK) for line in lines]


def run(host: Loopback, program: str, *arguments: str) -> tuple[str, list[str]]:
    """The program's output, and what check mode said of it in the logs of its sessions."""
    log_dir = host.runtime_dir / "log"
    earlier = set(log_dir.iterdir())
    output = host.check(PROGRAMS / program, *arguments)
    logs = sorted(set(log_dir.iterdir()) - earlier)
    assert logs
    return output, findings_in("".join(log.read_text() for log in logs))


def line_of(kernel: str, source: Path) -> int:
    lines = source.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if f"void {kernel}(" in line)
    return next(i for i in range(start, len(lines)) if lines[i].endswith("// found")) + 1


def check_report(kernel: str, said: list[str]) -> None:
    """One of the findings is of the bug's kind and names its place; then they are counted."""
    source = SOURCES / "bugs.cu"
    findings, counts = said[:-1], said[-1]
    place = f"{re.escape(str(source))}:{line_of(kernel, source)}"
    thread = r"\(\d+,0,0\)"
    form = rf"{KINDS[kernel]}: kernel \w*{kernel}\w*, {place}, block \(0,0,0\), thread {thread}: "
    assert any(re.match(form, finding) for finding in findings), said
    assert len(findings) == len(set(findings))
    assert re.match(r"kernel \w+ found \d+ times racing, ", counts)


@pytest.mark.parametrize("kernel", KINDS)
def test_bug_is_reported_once_with_its_line(host: Loopback, kernel: str) -> None:
    _, said = run(host, "bugs", kernel)
    check_report(kernel, said)


@pytest.mark.parametrize("kernel", KINDS)
def test_without_the_bug_it_is_silent(host: Loopback, kernel: str) -> None:
    output, said = run(host, "bugs", kernel, "fixed")
    assert said == []
    assert output == f"{kernel}: no error\n"


def test_out_of_bounds_says_how_far_from_what(host: Loopback) -> None:
    _, said = run(host, "bugs", "bounds")
    assert re.search(r"0 bytes after the end of the 4096 bytes at 0x[0-9a-f]+$", said[0]), said


@pytest.mark.parametrize("program", ["demo", "printf", "hostfunc", "capture", "memory"])
def test_correct_program_is_silent(host: Loopback, program: str) -> None:
    output, said = run(host, program)
    assert said == []
    assert output.splitlines()[-1] == f"{program}: all results correct"


def test_the_only_finding_in_errors_is_the_fault_that_it_makes(host: Loopback) -> None:
    output, said = run(host, "errors")
    assert output.splitlines()[-1] == "errors: all results correct"
    assert {line.split(":")[0] for line in said[:-1]} == {"out of bounds"}, said
    assert all("touch" in line for line in said), said


def test_run_with_a_kvgpud_of_its_own_says_it_on_standard_error(host: Loopback) -> None:
    command = [sys.executable, "-m", "kvgpu.host.cli", "run", "--driver", "software", "--"]
    done = subprocess.run(
        [*command, PROGRAMS / "bugs", "race"],
        env=host.environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    check_report("race", findings_in(done.stderr))
    assert done.stdout == "race: no error\n"
    assert done.stderr.startswith(MARK)
