# SPDX-License-Identifier: Apache-2.0
"""`make bench`: its table, what counts as a figure, ratios, targets, what a regression is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from framework.loopback import ROOT

sys.path.append(str(ROOT))
try:
    from benchmarks import catalog, figures, report, results
    from benchmarks.processors import Processors, at_full_speed, keep_on, seconds_on
    from benchmarks.runner import Effort
    from benchmarks.served import BenchError, Served
finally:
    sys.path.remove(str(ROOT))  # where `host` is, which must be found as kvgpu.host only

LEDGER = "tests/acceptance/speed.toml"
TABLE = catalog.load()
FASTER = catalog.Row("f", "rate", "s", at_least=1.0)
SHORTER = catalog.Row("s", "time", "s", at_most=1.0)
ECHO = r"""
import sys
for line in sys.stdin:
    print("a", 2 if line == "go\n" else 1, "us\nend", flush=True)
"""


def measured(*pairs: tuple[float | None, float]) -> results.Measured:
    return results.Measured("us", [native for native, _ in pairs], [r for _, r in pairs])


def of(row: catalog.Row, *values: float) -> tuple[catalog.Catalog, results.Results]:
    table = catalog.Catalog({}, {row.id: row})
    return table, results.Results(rows={row.id: measured(*((1.0, value) for value in values))})


def test_only_three_word_lines_with_a_number_are_figures() -> None:
    lines = ["launch_us 3.2 us", "# drift 1 us", "all went well", "two words", ""]
    assert figures.parse(lines) == {"launch_us": figures.Figure(3.2, "us")}


def test_failed_run_is_not_a_figure() -> None:
    with pytest.raises(SystemExit, match="exit status 3"):
        figures.measure(["sh", "-c", "echo a 1 us; exit 3"])


def test_median_and_middle_half_are_of_the_ratios() -> None:
    found = results.summary(measured((1, 2), (10, 10), (4, 2), (1, 100), (2, 2)).values(SHORTER))
    assert found == results.Summary(1.0, 1.0, 2.0)


def test_a_difference_and_a_remoted_figure_are_no_ratio() -> None:
    memory = catalog.Row("m", "memory", "s", of="difference", at_most=32)
    cores = catalog.Row("c", "cores", "s", of="remoted", at_most=1)
    assert memory.value(100, 120) == 20
    assert cores.value(None, 0.5) == 0.5
    assert SHORTER.value(None, 0.5) is None
    assert SHORTER.value(0, 0.5) is None


def test_target_is_met_on_its_own_side() -> None:
    assert results.holds(SHORTER, measured((2, 1)))
    assert not results.holds(SHORTER, measured((1, 2)))
    assert results.holds(FASTER, measured((1, 2)))
    assert results.verdict(FASTER, measured((2, 1))) == "no (1 only)"


@pytest.mark.parametrize(
    ("row", "now", "found"),
    [
        (FASTER, (0.8, 0.8, 0.81, 0.8, 0.8), True),
        (FASTER, (1.2, 1.2, 1.2, 1.2, 1.2), False),
        (SHORTER, (1.2, 1.2, 1.2, 1.2, 1.2), True),
        (SHORTER, (0.8, 0.8, 0.8, 0.8, 0.8), False),
        (SHORTER, (0.9, 1.0, 1.1, 1.3, 1.4), False),  # within its own spread
        (SHORTER, (1.005, 1.005, 1.005, 1.005, 1.005), False),
    ],
)
def test_regression_is_worse_by_more_than_the_spread(
    row: catalog.Row, now: tuple[float, ...], found: bool
) -> None:
    table, before = of(row, 1.0, 1.0, 1.0, 1.0, 1.0)
    _, after = of(row, *now)
    assert bool(results.regressions(table, before, after)) is found


def test_results_of_several_calls_become_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "draw", lambda *_: False)
    first, second = list(TABLE.rows)[:2]
    parts = []
    for name in (first, second):
        part = results.Results({"gpu": "x"}, {name: measured((2, 1))})
        part.missing = {second: "no time"} if name == first else {}
        parts.append(tmp_path / f"{name}.json")
        part.write(parts[-1], TABLE)
    together = results.Results()
    for path in parts:
        together.add(results.read(path))
    assert set(together.rows) == {first, second}
    assert together.missing == {}
    assert report.finish(TABLE, together, tmp_path) == 0
    assert TABLE.rows[second].what in (tmp_path / "bench.md").read_text()
    told = json.loads((tmp_path / "bench.json").read_text())["rows"][first]
    assert (told["median"], told["of"]) == (0.5, "ratio")
    earlier = results.Results(rows={first: measured((2, 0.1))})
    assert report.finish(TABLE, together, tmp_path, earlier) == 1


def test_each_subject_has_rows_and_a_name_chooses() -> None:
    assert {row.subject for row in TABLE.rows.values()} == set(TABLE.subjects)
    assert [row.id for row in TABLE.choose(["launch_call"])] == ["launch_call"]
    assert {row.subject for row in TABLE.choose(["launch", "item"])} == {"launch", "torch"}
    assert len(TABLE.choose([])) == len(TABLE.rows)
    with pytest.raises(catalog.CatalogError, match="nothing_such"):
        TABLE.choose(["nothing_such"])


def test_ledger_asks_for_rows_that_exist() -> None:
    """Its commands name rows of the table: `make bench ONLY=…`."""
    named = [
        name
        for line in (ROOT / LEDGER).read_text().splitlines()
        if line.startswith("command") and "ONLY=" in line
        for name in line.split("ONLY=")[1].split('"')[0].split()[0].split(",")
    ]
    assert len(named) > 20
    assert TABLE.choose(named)


def test_served_program_answers_and_is_not_waited_for_in_vain(tmp_path: Path) -> None:
    served = Served([sys.executable, "-c", ECHO], {}, tmp_path / "log")
    assert served.ask("warm", 20) == {"a": figures.Figure(1, "us")}
    assert served.ask("go", 20) == {"a": figures.Figure(2, "us")}
    served.close()
    mute = Served([sys.executable, "-c", "import time; time.sleep(99)"], {}, tmp_path / "log")
    begin_s = time.monotonic()
    with pytest.raises(BenchError, match="no answer in time"):
        mute.ask("go", 0.05)
    mute.kill()
    mute.close()
    assert time.monotonic() - begin_s < 20


def test_program_that_ends_says_why(tmp_path: Path) -> None:
    served = Served([sys.executable, "-c", "raise SystemExit('no GPU')"], {}, tmp_path / "log")
    with pytest.raises(BenchError, match="status 1: no GPU"):
        served.ask("warm", 20)
    served.close()


def test_whole_subjects_are_not_shortened() -> None:
    effort = Effort(0.1, frozenset({"launch"}))
    assert effort.of(TABLE.subjects["launch"]) == 1.0
    assert effort.of(TABLE.subjects["wait"]) == 0.1
    assert str(effort) == "0.1 of full length; whole: launch"
    assert str(Effort(1.0)) == "1 of full length"


def test_each_pair_has_processors_at_full_speed() -> None:
    times_s = {one: 1.0 + one / 100 for one in range(6)} | {0: 2.0, 3: 1.2}
    assert at_full_speed(times_s, 1) == [1, 2, 4, 5]
    assert at_full_speed(times_s, 5) == [1, 2, 3, 4, 5]  # and the next fastest
    assert at_full_speed(times_s, 9) == [0, 1, 2, 3, 4, 5]


def test_they_are_looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(5)))
    slow = {0: 1.6, 3: 1.2}
    processors = Processors(lambda one: slow.get(one, 1.0))
    assert [processors.choose(number, 2) for number in (0, 0, 1, 2)] == [
        [1, 2],
        [1, 2],
        [2, 4],
        [1, 4],
    ]
    slow[1] = 1.6
    assert processors.choose(0, 2) == [2, 4]
    assert processors.choose(0, 3) == [2, 3, 4]
    assert str(processors) == "2 to 3 of 5 at full speed, mostly 3"


def test_program_is_kept_on_processors_with_all_its_threads() -> None:
    allowed = os.sched_getaffinity(0)
    source = (
        "import sys, threading; threading.Thread(target=sys.stdin.read).start(); print(flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout
        assert program.stdin
        program.stdout.readline()
        one = max(allowed)
        keep_on([one], [program.pid, 1 << 22])  # who is not there is passed over
        threads = [int(thread) for thread in os.listdir(f"/proc/{program.pid}/task")]
        assert [os.sched_getaffinity(thread) for thread in threads] == [{one}, {one}]
        program.stdin.close()
    assert 0 < seconds_on(one) < 1
    assert os.sched_getaffinity(0) == allowed
