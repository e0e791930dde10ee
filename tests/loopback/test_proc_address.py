# SPDX-License-Identifier: Apache-2.0
"""cuGetProcAddress, both forms, and cuDriverGetVersion: what driver 580 answered, name by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from framework.loopback import BUILD, Loopback, loopback

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests/data/driver-580-getprocaddress.tsv"
NAMES = (ROOT / "tests/data/names-cuda13.txt").read_text().split()
ASKER = Path(__file__).with_name("proc_addresses.py")
# The driver is asked for each release, and a version between two.
VERSIONS = (
    2000,
    3019,
    3020,
    4000,
    5050,
    6999,
    7000,
    9020,
    11030,
    11080,
    12000,
    12040,
    12080,
    13000,
)
ABOVE = (13010, 13030, 14000)
OLDER = 12040
OLDER_DRIVER = BUILD / "tests/loopback/libolder_driver.so"
NEWER_DRIVER = BUILD / "tests/loopback/libnewer_driver.so"

Rules = dict[tuple[str, int], list[tuple[int, str]]]  # (name, flags) -> from version, symbol
Question = tuple[str, str, int, int]  # form, name, flags, version


def read_table() -> Rules:
    """Read driver-580-getprocaddress.tsv; a name that never resolves has no rules."""
    rules: Rules = {}
    for line in TABLE.read_text().splitlines():
        if line.startswith(("#", "name\t")):
            continue
        name, flags, version, _, symbol = line.split("\t")
        for flag in flags.split(","):
            known = rules.setdefault((name, int(flag)), [])
            if version != "-":
                known.append((int(version), symbol))
    return rules


RULES = read_table()


def expect(question: Question, driver_version: int = 13000) -> str:
    """Return what a driver of this version answers, by the table and the rules in its header."""
    form, name, flags, version = question
    if version > driver_version:
        return "1/- untouched"
    # A driver knows no name of a later release.
    rules = [r for r in RULES.get((name, flags), []) if r[0] <= driver_version]
    symbol = next((s for since, s in reversed(rules) if since <= version), "-")
    status = 0 if symbol != "-" else 2 if rules else 1
    if form == "5":
        return f"0/{status} {symbol}"
    return f"{0 if status == 0 else 500}/- {symbol}"  # 11.3: CUDA_ERROR_NOT_FOUND


def questions(forms: str = "45") -> list[Question]:
    """Return each line of the table at its own version and around it, and names that are none."""
    asked: list[Question] = []
    for form in forms:
        for (name, flags), rules in RULES.items():
            own = {v for since, _ in rules for v in (since - 10, since)}
            asked += [(form, name, flags, v) for v in sorted(own | {2000, 13000})]
        suffixed = [n for n in NAMES if (n, 0) not in RULES]
        others = [*suffixed, "''", "cuAbsent", "cudaMalloc", "cuInit2", "cuini"]
        asked += [(form, name, flags, 13000) for name in others for flags in (0, 1, 2)]
    return asked


def ask(host: Loopback, asked: Iterable[Question]) -> tuple[int, list[str]]:
    """Let a program ask; return the driver's version and the answers."""
    done = subprocess.run(
        host.command(sys.executable, ASKER),
        env=host.environment,
        input="".join(" ".join(map(str, q)) + "\n" for q in asked),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr}\n{host.logs()}"
    version, *answers = done.stdout.splitlines()
    return int(version), answers


def differences(asked: list[Question], answers: list[str], version: int = 13000) -> list[str]:
    assert len(answers) == len(asked)
    pairs = zip(asked, answers, strict=True)
    return [f"{q}: {a}, not {expect(q, version)}" for q, a in pairs if a != expect(q, version)]


def test_tsv_every_line_both_forms(host: Loopback) -> None:
    asked = questions()
    lines = sum(len(rules) for rules in RULES.values())
    assert lines > 1500
    assert len(asked) > 2 * lines
    _, answers = ask(host, asked)
    assert differences(asked, answers) == []


def test_tsv_every_name_at_every_release(host: Loopback) -> None:
    asked = [("5", name, flags, v) for name, flags in RULES for v in (*VERSIONS, *ABOVE)]
    _, answers = ask(host, asked)
    assert differences(asked, answers) == []


def test_unknown_flags_and_null_pointers_are_refused(host: Loopback) -> None:
    script = (
        "import ctypes\n"
        "cuda = ctypes.CDLL('libcuda.so.1')\n"
        "p = ctypes.c_void_p()\n"
        "def ask(name, pointer, flags):\n"
        "    return cuda.cuGetProcAddress_v2(name, pointer, 13000, ctypes.c_uint64(flags), None)\n"
        "r = [ask(b'cuInit', ctypes.byref(p), 3), ask(None, ctypes.byref(p), 0)]\n"
        "r += [ask(b'cuInit', None, 0)]\n"
        "assert r == [1, 1, 1], r\n"
        "text = ctypes.c_char_p()\n"
        "assert cuda.cuGetErrorName(1, ctypes.byref(text)) == 0\n"
        "assert text.value == b'CUDA_ERROR_INVALID_VALUE'\n"
        "assert cuda.cuGetErrorString(1, ctypes.byref(text)) == 0 and text.value\n"
    )
    host.check(sys.executable, "-c", script)


@pytest.fixture(scope="module")
def older_host() -> Iterator[Loopback]:
    with loopback(str(OLDER_DRIVER), jail=False) as running:
        yield running


def test_version_is_the_library_s_own_on_a_host_as_new(host: Loopback) -> None:
    version, _ = ask(host, [])
    assert version == 13000


def test_version_is_the_library_s_own_on_a_newer_host() -> None:
    with loopback(str(NEWER_DRIVER), jail=False) as newer_host:
        version, _ = ask(newer_host, [])
    assert version == 13000


def test_version_of_an_older_host_is_the_host_s(older_host: Loopback) -> None:
    """Before cuInit, and after it."""
    version, _ = ask(older_host, [])
    assert version == OLDER
    after_init = (
        "import ctypes\n"
        "cuda = ctypes.CDLL('libcuda.so.1')\n"
        "v = ctypes.c_int()\n"
        "assert cuda.cuInit(0) == 0 and cuda.cuDriverGetVersion(ctypes.byref(v)) == 0\n"
        f"assert v.value == {OLDER}, v.value\n"
    )
    older_host.check(sys.executable, "-c", after_init)


def test_version_costs_no_session(host: Loopback) -> None:
    """A program that only looks (a library that is imported) starts no worker."""
    before = len(list((host.runtime_dir / "log").glob("*")))
    version, _ = ask(host, [("5", "cuInit", 0, 2000)])
    assert version == 13000
    assert len(list((host.runtime_dir / "log").glob("*"))) == before


def test_version_where_nobody_answers_is_the_library_s_own() -> None:
    done = subprocess.run(
        [sys.executable, str(ASKER)],
        env={"LD_LIBRARY_PATH": str(BUILD / "guest/libcuda"), "KVGPU_SOCKET": "/nonexistent"},
        input="5 cuInit 0 2000\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split("\n")[:2] == ["13000", "0/0 cuInit"]


def test_what_an_older_host_lacks_resolves_as_there(older_host: Loopback) -> None:
    asked = questions("5")
    asked += [("5", name, flags, v) for name, flags in RULES for v in (12030, OLDER, OLDER + 10)]
    _, answers = ask(older_host, asked)
    assert differences(asked, answers, OLDER) == []
    lacking = [q for q, a in zip(asked, answers, strict=True) if q[3] == OLDER and a == "0/1 -"]
    assert ("5", "cuCtxGetDevice", 0, OLDER) not in lacking
    assert ("5", "cuStreamGetDevice", 0, OLDER) in lacking


def test_work_on_a_host_that_lacks_newer_functions(older_host: Loopback) -> None:
    older_host.check(sys.executable, Path(__file__).with_name("older_host_program.py"))
