# SPDX-License-Identifier: Apache-2.0
"""Good and bad calls of every entry point, natively and through kvgpu: the same CUresults.

python -P tests/differential/errors.py [--driver nvidia] [--out DIR] [ENTRY_POINT...]
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
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from differential.differences import Results, differing, either, unexplained
from differential.rows import GOOD, Row, batches, few, functions

CALLS = Path(__file__).resolve().with_name("error_calls.py")
START_LIMIT_S = 120.0
CALL_LIMIT_S = 40.0  # on a loaded machine, too


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
            _, *outcome = line.split("\t")
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


class Run:
    """All rows with one driver, several processes at once; what is known so far is in a file."""

    def __init__(self, environment: Mapping[str, str], file: Path, limit_s: float) -> None:
        self.environment, self.file = environment, file
        self.end_s = time.monotonic() + limit_s
        self.results: Results = {}
        self.mutex = threading.Lock()

    def all(self, todo: list[list[Row]], n_processes: int) -> Results:
        """Make the calls of all batches."""
        # Some of the calls write files.
        with ThreadPoolExecutor(n_processes) as pool, tempfile.TemporaryDirectory() as folder:
            environment = {**self.environment, "TMPDIR": folder}
            list(pool.map(lambda rows: self.batch(environment, rows), todo))
        return self.results

    def batch(self, environment: Mapping[str, str], rows: list[Row]) -> None:
        """As many processes one after another as these rows end."""
        said: list[str] = []
        while len(said) < len(rows) and time.monotonic() < self.end_s:
            said += run_some([sys.executable, "-P", str(CALLS)], environment, rows[len(said) :])
        with self.mutex:
            for (name, what), outcome in zip(rows, said, strict=False):
                self.results.setdefault(name, {})[what] = outcome
            self.file.write_text(text_of(self.results))


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
    n_good = sum(rows.get(GOOD, "").split(" ")[0] == "0" for rows in results.values())
    return (
        f"{side}: {n} calls of {len(results)} entry points, the good one of {n_good} works;"
        f" {time.monotonic() - begun_s:.0f} s"
    )


@contextmanager
def drivers(driver: str) -> Iterator[dict[str, dict[str, str]]]:
    """The environment of programs, by side."""
    from framework.loopback import BUILD, loopback

    native = dict(os.environ)
    if driver == "software":
        native["LD_LIBRARY_PATH"] = str(BUILD / "host/software_gpu")
    with loopback(driver=driver) as host, host.open_run() as socket:
        library = {"KVGPU_SOCKET": socket, "LD_LIBRARY_PATH": host.environment["KVGPU_LIBCUDA_DIR"]}
        yield {"native": native, "remoted": host.environment | library}


class Sides:
    """The driver, or what was recorded of one, beside kvgpu."""

    def __init__(self, options: argparse.Namespace, environments: dict[str, Any]) -> None:
        self.options, self.environments = options, environments
        self.software = options.driver == "software"
        self.is_complete = True

    def run(self, side: str, todo: list[list[Row]], suffix: str) -> Results:
        begun_s, file = time.monotonic(), self.options.out / f"{side}{suffix}.tsv"
        run = Run(self.environments[side], file, self.options.limit_s)
        results = run.all(todo, self.options.jobs)
        print(said_of(side, results, begun_s), flush=True)
        return results

    def unexplained(self, todo: list[list[Row]], suffix: str = "") -> dict[str, tuple[str, str]]:
        """Make the calls on both sides at once; what differs without a known reason."""
        with ThreadPoolExecutor(2) as pool:
            sides = [pool.submit(self.run, s, todo, suffix) for s in ("native", "remoted")]
        native, remoted = (side.result() for side in sides)
        wanted = [row for rows in todo for row in rows]
        for side, results in (("native", native), ("remoted", remoted)):
            n_late = sum(what not in results.get(name, {}) for name, what in wanted)
            if n_late:
                print(f"late     {n_late} {side} calls: not in {self.options.limit_s:.0f} s")
                self.is_complete = False
        if self.options.recorded:
            native = either(native, read(self.options.recorded))
        found = unexplained(native, remoted, software=self.software)
        n = len(differing(native, remoted))
        print(f"figure: {n} differences, {len(found)} of them without a known reason", flush=True)
        return found


def compare(options: argparse.Namespace) -> int:
    """Say what differs twice without a known reason."""
    with drivers(options.driver) as environments:
        sides = Sides(options, environments)
        todo = batches(options.names or functions(), careful=not sides.software)
        found = sides.unexplained(todo)
        # What a crash or a wrong handle has done to the driver may have shown in later calls.
        if found:
            again = [(name, what) for name, _, what in (row.partition(": ") for row in found)]
            found = sides.unexplained(few(again), ".again")
    for row, (mine, yours) in found.items():
        print(f"differs  {row}: {mine} natively, {yours} remoted")
    return 1 if found or not sides.is_complete else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="ENTRY_POINT")
    parser.add_argument("--driver", default="software", choices=["software", "nvidia"])
    parser.add_argument("--out", type=Path, default=Path("build/errors"))
    parser.add_argument("--recorded", type=Path, help="as good: what another driver gave")
    parser.add_argument("--native-only", action="store_true", help="needs nothing of kvgpu")
    parser.add_argument("--limit-s", type=float, default=120.0, help="start no process later")
    parser.add_argument("--jobs", type=int, default=min(16, os.cpu_count() or 1))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.native_only:
        return compare(options)
    begun_s = time.monotonic()
    run = Run(os.environ, options.out / "native.tsv", options.limit_s)
    names = options.names or functions()
    print(said_of("native", run.all(batches(names), options.jobs), begun_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
