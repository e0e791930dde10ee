# SPDX-License-Identifier: Apache-2.0
"""How the answers of a program's two sides differ, and which differences are explained."""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from differential.executor import ABSENT
from differential.sides import Answers, Call, Sides
from framework.loopback import Loopback

EXPLAINED = Path(__file__).with_name("explained.toml")
N_AGAIN = 3  # programs of a kind of difference that are run again


@dataclass
class Count:
    """What has been compared, and by kind of difference an example and its program."""

    done: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)
    found: dict[str, tuple[str, list[Call]]] = field(default_factory=dict)
    n_found: Counter[str] = field(default_factory=Counter)

    def add(self, other: Count) -> None:
        self.done.update(other.done)
        self.explained.update(other.explained)
        self.n_found.update(other.n_found)
        for kind, (example, program) in other.found.items():
            self.note(kind, example, program)

    def note(self, kind: str, example: str, program: list[Call]) -> None:
        """Keep the shortest program."""
        if kind not in self.found or len(program) < len(self.found[kind][1]):
            self.found[kind] = (example, program)


@dataclass
class Difference:
    kind: str
    example: str
    number: int  # of the call


def explained() -> dict[tuple[str, int, int], dict[str, Any]]:
    listed = tomllib.loads(EXPLAINED.read_text()).get("difference", [])
    return {(one["call"], one["native"], one["remoted"]): one for one in listed}


class Pair:
    """Runs programs on both sides and holds kvgpu's answers against the native ones."""

    def __init__(self, host: Loopback, driver: str) -> None:
        self.sides = Sides(host, driver)
        self._explained = explained()
        self._n_again: Counter[str] = Counter()

    def close(self) -> None:
        self.sides.close()

    def compare(self, program: list[Call], count: Count) -> list[str]:
        """Run it on both sides; the first call whose outcome differs and is not explained."""
        mine, yours = self.sides.run(program)
        if isinstance(mine, str):  # again, since an earlier program may have done it
            count.done["native ends"] += 1
            count.explained[f"natively the process {mine[:60]!r}"] += 1
            mine, yours = self.sides.run_alone(program)
            if isinstance(mine, str):
                count.done["never natively"] += 1
                return []  # nothing to hold kvgpu to
        count.done["programs"] += 1
        count.done["calls"] += len(program)
        count.done["failed calls"] += sum(answer[0] not in (0, ABSENT) for answer in mine[:-1])
        found = self._difference(program, mine, yours, count.explained)
        if found is None:
            return []
        self.sides.close()  # what comes next must not follow from it
        again = self._again(program, mine, found)
        if again == "natively, too":
            count.explained[f"{found.kind}; not the same twice natively"] += 1
            return []
        count.n_found[found.kind] += 1
        line = f"{found.example} ({again})"
        count.note(found.kind, line, program)
        return [line]

    def _again(self, program: list[Call], mine: Answers, found: Difference) -> str:
        """Whether it happens alone, too, and whether natively it is the same twice."""
        self._n_again[found.kind] += 1
        if self._n_again[found.kind] > N_AGAIN:
            return "not tried again"
        native, remoted = self.sides.run_alone(program)
        if isinstance(native, str):
            return f"alone, natively: {native[:200]}"
        if native[: found.number + 1] != mine[: found.number + 1]:
            return "natively, too"
        same = self._difference(program, native, remoted, Counter())
        return "alone, too" if same and same.kind == found.kind else "not alone"

    def _difference(
        self,
        program: list[Call],
        native: Answers,
        remoted: Answers | str,
        known_ones: Counter[str],
    ) -> Difference | None:
        """The first one; others may follow from it."""
        if isinstance(remoted, str):
            what = remoted.partition(":")[0]
            return Difference(f"the process {what}, not natively", remoted, len(native) - 1)
        for number, (mine, yours) in enumerate(zip(native, remoted, strict=True)):
            if mine in (yours, [ABSENT]):
                continue
            call = program[number] if number < len(program) else ["at the end"]
            known = self._explained.get((call[0], mine[0], yours[0]))
            if known and [mine[1:], yours[1:]] in known.get("results", [[mine[1:], yours[1:]]]):
                known_ones[f"{call[0]}: {mine[0]} natively, {yours[0]} remoted"] += 1
                if known.get("ends"):
                    return None
                continue
            kind = f"{call[0]}: {mine[0]} natively, {yours[0]} remoted"
            if number == len(program):
                mine, yours = unlike(mine, yours)
            return Difference(kind, f"#{number} {call}: {mine} natively, {yours} remoted", number)
        return None


def unlike(mine: list[Any], yours: list[Any]) -> tuple[list[Any], list[Any]]:
    """Of the contents at the end only those that differ."""
    status, contents, alive = mine
    other_status, others, other_alive = yours
    symbols = [s for s in {**contents, **others} if contents.get(s) != others.get(s)]
    return (
        [status, {s: contents.get(s) for s in symbols}, alive],
        [other_status, {s: others.get(s) for s in symbols}, other_alive],
    )
