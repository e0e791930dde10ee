# SPDX-License-Identifier: Apache-2.0
"""Run an acceptance ledger: one row per demand, each with the command that shows it.

Rows whose `where` this machine offers are run; the others are printed with the commit at which they
were last seen. Exit status 1 while a row is open or fails, or while a row seen on a GPU is older
than the last commit that touched what it ran.
"""

import argparse
import datetime
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import tomlkit
from tomlkit.items import Table

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("here", "h200", "chroot", "vm")
STATES = ("open", "holds", "refused")
RUN_HERE = ("here", "vm")
ROW_TIMEOUT_S = 3 * 3600  # all VM tests, emulated
SKIPPED = re.compile(r"\b[1-9]\d* skipped(,| in )")  # in what pytest prints
GPU_PATHS = ("guest", "host/worker", "protocol")  # what a row seen on a GPU ran
FIGURE = re.compile(r"^figure: (.+)$", re.MULTILINE)  # a command prints this to be quoted


class LedgerError(Exception):
    """A row that cannot be right."""


@dataclass(frozen=True, slots=True)
class Row:
    """One demand."""

    id: str
    demand: str
    command: str
    where: str
    state: str
    why: str = ""
    commit: str = ""
    figure: str = ""
    date: str = ""

    def check(self) -> None:
        """Raise LedgerError unless the row says what a row must say."""
        if not self.demand or not self.command:
            raise LedgerError(f"{self.id}: needs a demand and a command")
        if self.where not in PLACES:
            raise LedgerError(f"{self.id}: where = {self.where!r}, not one of {PLACES}")
        if self.state not in STATES:
            raise LedgerError(f"{self.id}: state = {self.state!r}, not one of {STATES}")
        if self.state == "refused" and not self.why:
            raise LedgerError(f"{self.id}: refused needs a `why`")
        if self.state == "holds" and not self.commit:
            raise LedgerError(f"{self.id}: holds needs the commit at which it was seen")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of a row's command gave."""

    passed: bool
    output: str

    @property
    def figure(self) -> str:
        found: list[str] = FIGURE.findall(self.output)
        return "; ".join(found)


def read_ledger(path: Path) -> tuple[tomlkit.TOMLDocument, list[Row]]:
    """Read and check the ledger; the document keeps comments and order for writing back."""
    document = tomlkit.parse(path.read_text())
    rows = []
    for table in document.get("row", []):
        known = {key: str(value) for key, value in table.items() if key in Row.__slots__}
        unknown = set(table) - set(known)
        if unknown:
            raise LedgerError(f"{path.name}: {table.get('id')}: unknown fields {sorted(unknown)}")
        try:
            row = Row(**known)
        except TypeError as error:
            raise LedgerError(f"{path.name}: {table.get('id')}: {error}") from error
        row.check()
        rows.append(row)
    ids = [row.id for row in rows]
    twice = {name for name in ids if ids.count(name) > 1}
    if not rows or twice:
        raise LedgerError(f"{path.name}: no rows" if not rows else f"twice: {sorted(twice)}")
    return document, rows


def git(*arguments: str) -> str:
    run = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return run.stdout.strip()


def is_stale(row: Row) -> bool:
    """Whether what the row ran on a GPU has changed since it was seen."""
    try:
        return git("log", "--format=%h", f"{row.commit}..HEAD", "--", *GPU_PATHS) != ""
    except subprocess.CalledProcessError:
        return True  # not a commit of this history


def run_row(row: Row, limit_s: float = ROW_TIMEOUT_S) -> Outcome:
    """Run the row's command in the repository's root; what is over the limit ends, whole."""
    with subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", row.command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit_s)
        except BaseException as error:  # Ctrl-C, too
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return Outcome(False, f"no end after {limit_s} s")
    # A test that was skipped has shown nothing.
    return Outcome(process.returncode == 0 and not SKIPPED.search(output), output)


def record(document: tomlkit.TOMLDocument, row: Row, outcome: Outcome) -> None:
    """Write the outcome into the row's table; a refused row stays refused."""
    tables = cast(Sequence[Table], document["row"])
    table = next(table for table in tables if table["id"] == row.id)
    if row.state == "refused":
        return
    table["state"] = "holds" if outcome.passed else "open"
    if outcome.passed:
        table["commit"] = git("rev-parse", "--short=12", "HEAD")
        table["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
        if outcome.figure:
            table["figure"] = outcome.figure


def report_unrun(row: Row) -> bool:
    """Print a row that was not run; return whether it holds as far as is known."""
    if row.state == "refused":
        print(f"refused {row.id}: {row.demand}\n        because {row.why}")
        return True
    if row.state == "open":
        print(f"open    {row.id} ({row.where}): {row.demand}")
        return False
    stale = row.where == "h200" and is_stale(row)
    seen = f"seen {row.date} at {row.commit}" + (f", {row.figure}" if row.figure else "")
    print(
        f"{'stale  ' if stale else 'holds  '} {row.id} ({row.where}): {row.demand}\n        {seen}"
    )
    return not stale


def report_run(row: Row, outcome: Outcome, written: bool) -> bool:
    """Print what a run gave; return whether the ledger, as it is now, says that the row holds."""
    passed = outcome.passed and (written or row.state != "open")
    word = "holds  " if outcome.passed else "FAILED "
    print(f"{word} {row.id}: {row.demand}")
    if outcome.figure:
        print(f"        {outcome.figure}")
    if not outcome.passed:
        print("\n".join(f"        | {line}" for line in outcome.output.splitlines()[-15:]))
    elif not passed:
        print("        the ledger still says open; --record writes it down")
    return passed


def settle(
    path: Path, places: Sequence[str], only: Sequence[str] = (), write: bool = False
) -> bool:
    """Go through the ledger; return whether every row holds or is refused with a reason."""
    document, rows = read_ledger(path)
    unknown = set(only) - {row.id for row in rows}
    if unknown:
        raise LedgerError(f"{path.name} has no row {sorted(unknown)}")
    results = []
    outcomes: dict[str, Outcome] = {}  # one run shows all the demands that name its command
    for row in rows:
        if only and row.id not in only:
            continue
        if row.where not in places or row.state == "refused":
            results.append(report_unrun(row))
            continue
        outcome = outcomes.get(row.command) or run_row(row)
        outcomes[row.command] = outcome
        if write:
            record(document, row, outcome)
            path.write_text(tomlkit.dumps(document))  # at once: later rows may be interrupted
        results.append(report_run(row, outcome, write))
    print(f"accept: {path.stem}: {sum(results)} of {len(results)} rows hold", flush=True)
    return all(results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subject", help="name of the ledger, tests/acceptance/SUBJECT.toml")
    parser.add_argument(
        "--where", action="append", choices=PLACES, help="run these rows (default: here and vm)"
    )
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="these rows")
    parser.add_argument("--record", action="store_true", help="write state, commit, figure, date")
    options = parser.parse_args()
    path = Path(__file__).with_name(f"{options.subject}.toml")
    if not path.exists():
        print(f"accept: no ledger {path.relative_to(ROOT)}", file=sys.stderr)
        return 1
    try:
        holds = settle(path, options.where or RUN_HERE, options.only, options.record)
    except LedgerError as error:
        print(f"accept: {error}", file=sys.stderr)
        return 1
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
