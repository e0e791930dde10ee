# SPDX-License-Identifier: Apache-2.0
"""Good and bad calls of every entry point, natively and through kvgpu: the same CUresults.

python -P tests/differential/errors.py [--driver nvidia] [--out DIR] [--side native] [ENTRY_POINT...]
Writes DIR/native.tsv and DIR/remoted.tsv, one line per entry point: `what: what it gave`. Says what
differs, but for what tests/data/error_differences.toml explains.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from differential.differences import Results, differing, unexplained
from differential.rows import GOOD, Row, batches, functions

CALLS = Path(__file__).resolve().with_name("error_calls.py")
START_LIMIT_S = 60.0
CALL_LIMIT_S = 20.0


class Caller:
    """A process that makes calls, and how far it has come."""

    def __init__(self, command: list[str], environment: Mapping[str, str], rows: list[Row]) -> None:
        self.process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=environment["TMPDIR"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(rows).encode())
        self.process.stdin.close()
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        self.text = b""

    def line(self, limit_s: float) -> str | None:
        """The next line; None at the end. TimeoutError when there is none in time."""
        assert self.process.stdout
        end_s = time.monotonic() + limit_s
        while b"\n" not in self.text:
            if not self.selector.select(max(0.0, end_s - time.monotonic())):
                raise TimeoutError
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                return None
            self.text += data
        line, _, self.text = self.text.partition(b"\n")
        return line.decode()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.selector.close()
        assert self.process.stdout
        self.process.stdout.close()


def run_some(command: list[str], environment: Mapping[str, str], rows: list[Row]) -> list[str]:
    """Start a process for these; what the calls gave that it came to."""
    caller = Caller(command, environment, rows)
    said: list[str] = []
    limit_s, verdict = START_LIMIT_S, "crashes"
    begun = False
    try:
        while (line := caller.line(limit_s)) is not None:
            number, *outcome = line.split("\t")
            limit_s = CALL_LIMIT_S
            begun = not outcome
            if outcome:
                said.append(outcome[0])
    except TimeoutError:
        verdict = "hangs"
    finally:
        caller.end()
    if begun or not said:
        said.append(verdict)
    return said


def run_batch(command: list[str], environment: Mapping[str, str], rows: list[Row]) -> list[str]:
    said: list[str] = []
    while len(said) < len(rows):
        said += run_some(command, environment, rows[len(said) :])
    return said


def run_all(
    environment: Mapping[str, str], names: list[str], n_processes: int, *, careful: bool
) -> Results:
    """Make all calls of these entry points."""
    command = [sys.executable, "-P", str(CALLS)]
    found: Results = {name: {} for name in names}
    todo = batches(names, careful=careful)
    with ThreadPoolExecutor(n_processes) as pool, tempfile.TemporaryDirectory() as folder:
        # Some of the calls write files.
        own = {**environment, "TMPDIR": folder}
        outcomes = pool.map(lambda rows: run_batch(command, own, rows), todo)
        for rows, said in zip(todo, outcomes, strict=True):
            for (name, what), outcome in zip(rows, said, strict=True):
                found[name][what] = outcome
    return found


def merged(runs: list[Results]) -> Results:
    """What several runs gave; `0 or 400` where they differ."""
    return {
        name: {
            what: " or ".join(sorted({run[name][what] for run in runs})) for what in runs[0][name]
        }
        for name in runs[0]
    }


def text_of(results: Results) -> str:
    lines = [
        "\t".join([name, *(f"{what}: {outcome}" for what, outcome in sorted(rows.items()))])
        for name, rows in sorted(results.items())
    ]
    return "\n".join(lines) + "\n"


def read(path: Path) -> Results:
    found: Results = {}
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            name, *rows = line.split("\t")
            found[name] = {what: said for what, _, said in (row.partition(": ") for row in rows)}
    return found


def said_of(side: str, results: Results, begun_s: float) -> str:
    n = sum(len(rows) for rows in results.values())
    n_good = sum(is_good(rows[GOOD]) for rows in results.values())
    return (
        f"{side}: {n} calls of {len(results)} entry points, the good one of {n_good} works;"
        f" {time.monotonic() - begun_s:.0f} s"
    )


def is_good(outcome: str) -> bool:
    return outcome.split(" ")[0] == "0"


def compare(native: Results, remoted: Results, *, software: bool) -> int:
    """Say what differs without a known reason. Returns the exit status."""
    found = unexplained(native, remoted, software=software)
    for row, (mine, yours) in found.items():
        print(f"differs  {row}: {mine} natively, {yours} remoted")
    n = len(differing(native, remoted))
    print(f"figure: {n} differences, {len(found)} of them without a known reason")
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="ENTRY_POINT")
    parser.add_argument("--driver", default="software", choices=["software", "nvidia"])
    parser.add_argument("--out", type=Path, default=Path("build/errors"))
    parser.add_argument("--side", choices=["native", "remoted", "both"], default="both")
    parser.add_argument("--runs", type=int, default=1, help="how often natively")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = options.names or functions()
    sides: dict[str, Results] = {}
    for side, run in (("native", natively), ("remoted", remotely)):
        if options.side in (side, "both"):
            begun_s, n = time.monotonic(), options.runs if side == "native" else 1
            sides[side] = merged([run(names, options.driver, options.jobs) for _ in range(n)])
            (options.out / f"{side}.tsv").write_text(text_of(sides[side]))
            print(said_of(side, sides[side], begun_s), flush=True)
    if len(sides) < 2:
        return 0
    return compare(sides["native"], sides["remoted"], software=options.driver == "software")


def natively(names: list[str], driver: str, jobs: int) -> Results:
    environment = dict(os.environ)
    if driver == "software":
        from framework.loopback import BUILD

        environment["LD_LIBRARY_PATH"] = str(BUILD / "host/software_gpu")
    return run_all(environment, names, jobs, careful=True)


def remotely(names: list[str], driver: str, jobs: int) -> Results:
    from framework.loopback import BUILD, loopback

    with loopback(driver=driver) as host, host.open_run() as socket:
        environment = host.environment | {
            "KVGPU_SOCKET": socket,
            "LD_LIBRARY_PATH": host.environment["KVGPU_LIBCUDA_DIR"],
        }
        return run_all(environment, names, jobs, careful=False)


if __name__ == "__main__":
    sys.exit(main())
