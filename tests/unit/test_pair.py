# SPDX-License-Identifier: Apache-2.0
"""Native beside remoted: what counts as a figure, and the ratio."""

import importlib.util
from pathlib import Path

import pytest

PAIR = Path(__file__).resolve().parents[2] / "benchmarks/pair.py"
spec = importlib.util.spec_from_file_location("pair", PAIR)
assert spec is not None
assert spec.loader is not None
pair = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pair)


def test_only_three_word_lines_with_a_number_are_figures() -> None:
    figures = pair.parse("launch_us 3.2 us\n# drift 1 us\nall went well\ntwo words\n")
    assert figures == {"launch_us": pair.Figure(3.2, "us")}


def test_ratio_is_the_median_over_pairs() -> None:
    runs = [(1.0, 2.0), (10.0, 10.0), (4.0, 2.0)]
    pairs = [({"a": pair.Figure(n, "us")}, {"a": pair.Figure(r, "us")}) for n, r in runs]
    header, line = pair.table(pairs)
    assert header.split() == ["native", "remoted", "remoted/native"]
    assert line.split() == ["a", "4.000", "2.000", "1.000", "us"]


def test_failed_run_is_not_a_figure() -> None:
    with pytest.raises(SystemExit, match="exit status 3"):
        pair.measure(["sh", "-c", "echo a 1 us; exit 3"])
