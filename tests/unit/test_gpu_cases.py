# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/cases.py finds the cases that fail, whatever they do to the process they share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from gpu import cases

SAID = """\
===============================================================================
cases/one.cpp:5:
TEST CASE:  one

0.000009 s: one
===============================================================================
cases/one.cpp:6:
TEST CASE:  copies, and more

cases/one.cpp:6: ERROR: CHECK( 1 == 2 ) is NOT correct!
  values: CHECK( 1 == 2 )

cases/support.h:9: FATAL ERROR: REQUIRE( 1 == 3 ) is NOT correct!

1.500000 s: copies, and more
===============================================================================
cases/one.cpp:7:
TEST CASE:  crash

cases/one.cpp:7: FATAL ERROR: test case CRASHED: SIGSEGV - Segmentation violation signal

0.000040 s: crash
[doctest] Status: FAILURE!
"""

# Like driver_cases, of cases that do what their names say.
PROGRAM = r"""
import os, re, signal, sys, time
names = re.split(r"(?<!\\),", sys.argv[1].removeprefix("--test-case="))
for name in (name.replace("\\,", ",") for name in names):
    print(f"TEST CASE:  {name}\n", flush="vanish" not in name)
    if "vanish" in name:
        os._exit(0)
    if "hang" in name:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
    if "crash" in name:
        print("a.cpp:1: FATAL ERROR: test case CRASHED: SIGSEGV", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if "worker" in name:
        gone = True
    elif "gone" in globals():
        print("support.cpp:26: FATAL ERROR: REQUIRE( retain == CUDA_SUCCESS ) is NOT correct!")
        print("  values: REQUIRE( 999 == 0 )")
        print("  logged: cuDevicePrimaryCtxRetain(&context, device)")
    if "fail" in name:
        print("a.cpp:1: ERROR: CHECK( false ) is NOT correct!")
    print(f"0.100000 s: {name}", flush=True)
"""


@pytest.fixture
def side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> cases.Side:
    program = tmp_path / "driver_cases"
    program.write_text(f"#!{sys.executable}{PROGRAM}")
    program.chmod(0o755)
    monkeypatch.setattr(cases, "LOOPBACK", tmp_path)
    return cases.Side("native", tmp_path, {}, None)


def test_each_case_has_its_errors_and_its_time() -> None:
    output = cases.parse(SAID)
    assert output.failed == ["copies, and more", "crash"]
    assert output.seconds == {"one": 0.000009, "copies, and more": 1.5, "crash": 0.00004}


def test_what_a_crash_leaves_out_runs_in_another_process(side: cases.Side) -> None:
    assert side.together(["one", "fail, then go on", "crash", "two", "three"]) == [
        "fail, then go on",
        "crash",
    ]
    assert side.n_processes == 2
    assert side.seconds.keys() == {"one", "fail, then go on", "two", "three"}


def test_case_that_ends_the_process_without_a_word_is_found(side: cases.Side) -> None:
    names = ["one", "vanish", "two", "three", "four"]
    assert side.together(names) == ["vanish"]
    assert side.seconds.keys() == set(names) - {"vanish"}
    assert not side.alone("vanish")
    assert side.alone("two")


def test_case_that_takes_the_worker_along_is_found(side: cases.Side) -> None:
    names = ["one", "fail", "worker goes", "two", "three", "worker ends", "fail too"]
    assert side.together(names) == ["fail", "worker goes", "worker ends", "fail too"]
    assert side.n_processes == 3
    assert side.seconds.keys() == set(names)


def test_case_that_hangs_is_ended(side: cases.Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "END_LIMIT_S", 0.1)
    output, status = side.run(["hang"], 0.5)
    assert status < 0
    assert not output.seconds
