# SPDX-License-Identifier: Apache-2.0
"""The driver API cases of tests/loopback on a GPU, natively and through kvgpu.

python -P tests/gpu/cases.py OUT [--driver nvidia] [--share K/N] [--only GLOB]: their output into
OUT/cases.log, what they called through kvgpu into OUT/reached.tsv. A process takes a second to
start on a GPU, so the cases that leave their context whole share one; those that fail there run
again alone.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from framework.loopback import BUILD, LOOPBACK, Loopback, case_names, loopback
from framework.traces import write_reached

ALONE = re.compile(r"(error|initialisation|context):|blocking")
UNDISTURBED = re.compile(r"blocking|.*memory comes back")  # others' memory and time count there
N_AT_ONCE = 3  # of the others
BEYOND_NATIVE = "beyond native"  # natively a thread in the driver keeps others out of it
TOGETHER_LIMIT_S, ALONE_LIMIT_S, END_LIMIT_S = 300.0, 120.0, 20.0
SLOW_S, SLOWER = 2.0, 3.0  # what is said of a case


@dataclass
class Output:
    """What one process of cases said."""

    failed: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # by case that came to its end
    without_session: str = ""  # the first case that found its worker gone


NO_SESSION = "values: REQUIRE( 999 == 0 )\n  logged: cuDevicePrimaryCtxRetain(&context, device)"


def parse(text: str) -> Output:
    """Read what driver_cases says with --duration=true, as far as it came.

    A worker that is gone fails all further cases of the process: they have not been run.
    """
    said, gone, _ = text.partition(NO_SESSION)
    output, case = Output(), ""
    if gone:
        said, _, unrun = said.rpartition("TEST CASE:")
        output.without_session = unrun.partition("\n")[0].strip()
    for line in said.splitlines():
        if line.startswith("TEST CASE:"):
            case = line.removeprefix("TEST CASE:").strip()
        elif re.search(r"(^|: )(FATAL )?ERROR: ", line) and case and case not in output.failed:
            output.failed.append(case)
        elif ended := re.match(r"(\d+\.\d+) s: (.*)", line):
            output.seconds[ended[2]] = float(ended[1])
    return output


def end(process: subprocess.Popen[bytes]) -> int:
    """End a process that hangs, with the programs that it has started."""
    process.send_signal(signal.SIGTERM)  # doctest then says where it was
    try:
        return process.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


class Side:
    """Runs cases natively or, with a host, through its kvgpud."""

    def __init__(self, name: str, folder: Path, environment: dict[str, str], host: Loopback | None):
        self.name, self.folder, self.environment, self.host = name, folder, environment, host
        self.seconds: dict[str, float] = {}
        self.n_processes = 0
        self._lock = threading.Lock()

    def run(self, names: Iterable[str], limit_s: float) -> tuple[Output, int]:
        """Run cases in one process; gives what it said and its status, negative where it hung."""
        with self._lock:
            self.n_processes += 1
            number = self.n_processes
        listed = ",".join(name.replace(",", "\\,") for name in names)
        program = [str(LOOPBACK / "driver_cases"), f"--test-case={listed}", "--duration=true"]
        environment = dict(self.environment)
        if self.host is not None:
            program = self.host.command(*program)
            environment["KVGPU_TRACE"] = str(self.folder / f"trace.{number}")
        log = self.folder / f"{self.name}.{number}.log"
        # Two files: a line of kvgpu's in the midst of one of doctest's would hide that.
        with log.open("w") as file, log.with_suffix(".err").open("w") as errors:
            process = subprocess.Popen(
                program, env=environment, stdout=file, stderr=errors, start_new_session=True
            )
            try:
                status = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                status = -abs(end(process) or 1)
        output = parse(log.read_text(errors="replace"))
        with self._lock:
            self.seconds |= output.seconds
        return output, status

    def together(self, names: list[str]) -> list[str]:
        """Run cases in as few processes as it takes; gives those that failed."""
        failed, left = [], list(names)
        while left:
            output, _ = self.run(left, TOGETHER_LIMIT_S)
            failed += output.failed
            if output.without_session and output.seconds:
                ended_it = list(output.seconds)[-1]
                failed += [ended_it] if ended_it not in failed else []
            rest = [n for n in left if n not in output.seconds and n not in output.failed]
            if len(rest) == len(left):  # one of them has ended the process without a word
                if len(left) == 1:
                    return failed + left
                half = len(left) // 2
                return failed + self.together(left[:half]) + self.together(left[half:])
            left = rest
        return failed

    def alone(self, name: str) -> bool:
        """Run one case; whether it passed."""
        output, status = self.run([name], ALONE_LIMIT_S)
        return status == 0 and not output.failed and name in output.seconds


def run_alone(native: Side, remoted: Side, name: str) -> list[str]:
    """Run one case on both sides; gives a line for each that it fails on."""
    sides = [remoted] if BEYOND_NATIVE in name else [native, remoted]
    return [f"{side.name}: {name}" for side in sides if not side.alone(name)]


def run(native: Side, remoted: Side, names: list[str]) -> list[str]:
    """Run the cases on both sides; gives a line for each that fails."""
    alone = [name for name in names if ALONE.match(name) or BEYOND_NATIVE in name]
    shared = [name for name in names if name not in alone]
    wrong_natively = native.together(shared)
    wrong_remoted = remoted.together(shared)
    failed = [f"remoted, among others: {n}" for n in wrong_remoted if n not in wrong_natively]
    left = list(dict.fromkeys([*wrong_natively, *wrong_remoted, *alone]))
    undisturbed = [name for name in left if UNDISTURBED.match(name)]
    with ThreadPoolExecutor(N_AT_ONCE) as pool:
        others = (name for name in left if name not in undisturbed)
        for lines in pool.map(lambda name: run_alone(native, remoted, name), others):
            failed += lines
    for name in undisturbed:
        failed += run_alone(native, remoted, name)
    return failed


def say_slow(native: Side, remoted: Side) -> None:
    for name, seconds in sorted(remoted.seconds.items(), key=lambda item: -item[1]):
        natively = native.seconds.get(name)
        if natively and seconds > max(SLOW_S, SLOWER * natively):
            print(f"slow    {name}: {natively:.2f} s natively, {seconds:.2f} s remoted")


def keep_logs(folder: Path, sides: Iterable[Side]) -> None:
    """One log in the place of many."""
    with (folder / "cases.log").open("w") as merged:
        for side in sides:
            for number in range(1, side.n_processes + 1):
                log = folder / f"{side.name}.{number}.log"
                merged.write(f"== {log.stem}\n")
                for part in (log, log.with_suffix(".err")):
                    merged.write(part.read_text(errors="replace"))
                    part.unlink()


def keep_session_logs(folder: Path) -> None:
    """Likewise."""
    with folder.with_suffix(".log").open("w") as merged:
        for log in sorted(folder.iterdir()):
            merged.write(f"== {log.name}\n{log.read_text(errors='replace')}")
    shutil.rmtree(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--driver", default="nvidia")
    parser.add_argument("--share", default="1/1")
    parser.add_argument("--only", default="*")
    options = parser.parse_args()
    share, n_shares = map(int, options.share.split("/"))
    names = [n for n in case_names() if fnmatch.fnmatch(n, options.only)][share - 1 :: n_shares]
    if not names:
        raise SystemExit(f"cases: none in {LOOPBACK}: run make build")
    options.out.mkdir(parents=True, exist_ok=True)
    natively = dict(os.environ)
    if options.driver == "software":
        natively["LD_LIBRARY_PATH"] = str(BUILD / "host/software_gpu")
    begun = time.monotonic()
    sessions = options.out.resolve() / "sessions"  # here also when this script is killed
    with loopback(driver=options.driver, config=f'log_dir = "{sessions}"\n') as host:
        native = Side("native", options.out, natively, None)
        remoted = Side("remoted", options.out, host.environment, host)
        failed = run(native, remoted, names)
    keep_logs(options.out, (native, remoted))
    keep_session_logs(sessions)
    write_reached(options.out)
    for line in failed:
        print(f"FAILED  {line}")
    say_slow(native, remoted)
    print(
        f"figure: {len(names)} cases natively and remoted, {len(failed)} failed, in "
        f"{time.monotonic() - begun:.0f} s: {sum(native.seconds.values()):.1f} s natively, "
        f"{sum(remoted.seconds.values()):.1f} s remoted"
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
