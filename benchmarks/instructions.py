# SPDX-License-Identifier: Apache-2.0
"""Instructions that a launch costs: in the ring, in the guest's library, in the worker; and a copy.

Counted by callgrind, so that what else runs on the machine does not matter; against a driver that
does nothing. Exit status 1 where a count is no longer the one of instructions.toml.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import tomlkit
from framework.loopback import BUILD, loopback
from framework.waiting import eventually

from benchmarks.sides import DRIVER_PROGRAMS

BASELINE = Path(__file__).with_name("instructions.toml")
LIMIT_S = 120
N_RING = 25_600
PROFILED = re.compile(r"^ *([\d,]+) \([^)]*\)  [^:\n]+:(.+?)(?: \[[^]]*\])?$", re.MULTILINE)
ARGUMENTS = re.compile(r"\((?!anonymous).*|<.*")
N_PROFILED = 25
COLLECTED = re.compile(r"Collected : (\d+)")
CALLED = re.compile(r"^counted (\d+)", re.MULTILINE)
# Of one device the thread that reads a record executes it; it waits elsewhere.
WORKER_FUNCTIONS = ("kvgpu::worker::Session::handle_record*",)
# valgrind knows no limit below the hard one, which the worker sets for itself (jail.h).
WORKER_SCRIPT = """#!/bin/bash
case "$*" in *--session*) ;; *) exec {worker} "$@" ;; esac
ulimit -n 8192
exec {valgrind} {worker} "$@"
"""


def callgrind(log: Path, functions: Sequence[str] = ()) -> list[str]:
    return [
        *("valgrind", "--tool=callgrind", f"--log-file={log}", f"--callgrind-out-file={log}.out"),
        *(f"--toggle-collect={function}" for function in functions),
    ]


def collected(log: Path) -> int:
    found = COLLECTED.search(log.read_text())
    if found is None:
        raise SystemExit(f"instructions: callgrind counted nothing\n{log.read_text()}")
    return int(found[1])


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise SystemExit(f"instructions: {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def ring(folder: Path) -> float:
    """Of one record through the ring, written and read; the program's own start is subtracted."""
    counts = []
    for n in (N_RING, 2 * N_RING):
        log = folder / f"ring-{n}"
        run([*callgrind(log), str(DRIVER_PROGRAMS / "bench_ring"), str(n)])
        counts.append(collected(log))
    return (counts[1] - counts[0]) / N_RING


def calls(folder: Path, name: str, subject: str, function: str = "") -> float:
    """Of one call: in `function` of the guest's library, without one in the worker."""
    log = folder / name
    worker = BUILD / "host/worker/kvgpu-worker"
    program = [str(DRIVER_PROGRAMS / "bench_driver"), subject]
    if not function:
        script = folder / "worker.sh"
        valgrind = " ".join(f"'{word}'" for word in callgrind(log, WORKER_FUNCTIONS))
        script.write_text(WORKER_SCRIPT.format(worker=worker, valgrind=valgrind))
        script.chmod(0o755)
        worker = script
    else:
        program = [*callgrind(log, (function,)), *program]
    driver = str(DRIVER_PROGRAMS / "libnull_driver.so")
    # A jail would keep valgrind from its own files.
    none_waits = "prestarted_workers = 0\n"
    with loopback(driver, jail=False, config=none_waits, KVGPU_WORKER=str(worker)) as host:
        output = run(host.command(*program), host.environment)
        eventually(lambda: log.exists() and COLLECTED.search(log.read_text()), LIMIT_S)
    called = CALLED.search(output)
    if called is None:
        raise SystemExit(f"instructions: {program[-1]} called nothing\n{output}")
    return collected(log) / int(called[1])


def count(folder: Path) -> dict[str, float]:
    return {
        "ring": ring(folder),
        "guest_launch": calls(folder, "guest", "counted", "cuLaunchKernel"),
        "worker_launch": calls(folder, "worker", "counted"),
        "guest_copy": calls(folder, "copy", "counted_copies", "cuMemcpyHtoD_v2"),
    }


def profile(folder: Path, counts: Mapping[str, float]) -> None:
    """Print the share of each function in a call, the largest first."""
    for name, counted in (
        ("guest", "guest_launch"),
        ("worker", "worker_launch"),
        ("copy", "guest_copy"),
    ):
        listed = run(["callgrind_annotate", "--auto=no", "--threshold=100", f"{folder / name}.out"])
        of_functions: Counter[str] = Counter()
        for number, function in PROFILED.findall(listed):
            of_functions[ARGUMENTS.sub("", function)] += int(number.replace(",", ""))
        n = sum(of_functions.values()) / counts[counted]
        print(f"{counted}: by function")
        for function, number in of_functions.most_common(N_PROFILED):
            print(f"  {number / n:6.0f}  {function}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the counts down")
    parser.add_argument("--profile", action="store_true", help="which functions they are in")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("instructions: nothing was counted: apt install valgrind")
        return 0
    baseline = tomlkit.parse(BASELINE.read_text())
    expected, tolerance = baseline["record"], float(str(baseline["tolerance"]))
    assert isinstance(expected, tomlkit.items.Table)
    wrong = False
    with tempfile.TemporaryDirectory(prefix="kvgpu-instructions-") as folder:
        counts = count(Path(folder))
        if options.profile:
            profile(Path(folder), counts)
    for name, counted in counts.items():
        before = float(str(expected.get(name, 0)))
        is_same = before > 0 and abs(counted - before) <= tolerance * before
        wrong |= not is_same
        print(f"figure: {name} {counted:.0f} instructions a record, was {before:.0f}")
        expected[name] = round(counted)
    if options.record:
        BASELINE.write_text(tomlkit.dumps(baseline))
    elif wrong:
        print(
            "instructions: not as in instructions.toml: see why, then make bench-cpu ARGS=--record"
        )
    return int(wrong and not options.record)


if __name__ == "__main__":
    sys.exit(main())
