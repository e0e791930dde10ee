# SPDX-License-Identifier: Apache-2.0
"""KVGPU_SOFTWARE_GPU_CHECK=1 names the lines of bugs in kernels, and is silent without any."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from framework.loopback import BUILD, LIMIT_S, PROGRAMS, ROOT

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


def run(program: str, *arguments: str) -> tuple[str, list[str]]:
    """The program's output on the software GPU in check mode, and what check mode said."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(BUILD / "host/software_gpu"),
        "KVGPU_SOFTWARE_GPU_CHECK": "1",
    }
    done = subprocess.run(
        [PROGRAMS / program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith(MARK)]
    return done.stdout, [line.removeprefix(MARK) for line in lines]


def line_of(kernel: str, source: Path) -> int:
    lines = source.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if f"void {kernel}(" in line)
    return next(i for i in range(start, len(lines)) if lines[i].endswith("// found")) + 1


@pytest.mark.parametrize("kernel", KINDS)
def test_bug_is_reported_once_with_its_line(kernel: str) -> None:
    source = SOURCES / "bugs.cu"
    _, said = run("bugs", kernel)
    findings, counts = said[:-1], said[-1]
    place = f"{re.escape(str(source))}:{line_of(kernel, source)}"
    thread = r"\(\d+,0,0\)"
    form = rf"{KINDS[kernel]}: kernel \w*{kernel}\w*, {place}, block \(0,0,0\), thread {thread}: "
    assert any(re.match(form, finding) for finding in findings), said
    assert len(findings) == len(set(findings))
    assert re.match(r"kernel \w+ found \d+ times racing, ", counts)


@pytest.mark.parametrize("kernel", KINDS)
def test_without_the_bug_it_is_silent(kernel: str) -> None:
    output, said = run("bugs", kernel, "fixed")
    assert said == []
    assert output == f"{kernel}: no error\n"


def test_out_of_bounds_says_how_far_from_what() -> None:
    _, said = run("bugs", "bounds")
    assert re.search(r"0 bytes after the end of the 4096 bytes at 0x[0-9a-f]+$", said[0]), said


@pytest.mark.parametrize("program", ["demo", "printf", "hostfunc", "capture", "memory"])
def test_correct_program_is_silent(program: str) -> None:
    output, said = run(program)
    assert said == []
    assert output.splitlines()[-1] == f"{program}: all results correct"


def test_the_only_finding_in_errors_is_the_fault_that_it_makes() -> None:
    output, said = run("errors")
    assert output.splitlines()[-1] == "errors: all results correct"
    assert {line.split(":")[0] for line in said[:-1]} == {"out of bounds"}, said
    assert all("touch" in line for line in said), said
