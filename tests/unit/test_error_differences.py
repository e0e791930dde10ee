# SPDX-License-Identifier: Apache-2.0
"""What the comparison of bad calls takes for the same, and which differences it knows."""

from __future__ import annotations

from argparse import Namespace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from differential.differences import agree, differing, either, known, unexplained
from differential.errors import Sides, share_of
from differential.processes import merged
from differential.prototypes import prototypes
from differential.rows import AFTER_FAULT, BEFORE_INIT, STATES, batches, functions
from gpu import report
from gpu.report import merge_bad_calls, recordable


@pytest.mark.parametrize(
    ("native", "remoted", "same"),
    [
        ("0", "0", True),
        ("1", "0", False),
        ("0", "1", False),
        ("900 end 901", "900 end 0", False),
        ("0 or 400", "400", True),
        ("crashes", "1", True),
        ("hangs or 0", "1", True),
        ("0", "crashes", False),
        ("absent", "0", True),
        ("absent", "crashes", False),
        ("not made: cuMemAlloc_v2=2", "2", True),
    ],
)
def test_same_result_agrees(native: str, remoted: str, same: bool) -> None:
    assert agree("cuMemAlloc_v2", native, remoted) == same


def test_refused_call_may_fail_but_not_succeed() -> None:
    assert agree("cuGraphicsMapResources", "1", "801")
    assert not agree("cuGraphicsMapResources", "1", "0")


def test_call_that_one_side_has_not_made_is_no_difference() -> None:
    assert differing({}, {"cuInit": {"good": "0"}}) == {}


def test_recorded_result_is_as_good() -> None:
    native = {"cuInit": {"good": "0", "Flags=huge": "absent", "again": "1"}}
    recorded = {"cuInit": {"good": "1", "Flags=huge": "1"}}
    assert either(native, recorded) == {
        "cuInit": {"good": "0 or 1", "Flags=huge": "1", "again": "1"}
    }


def test_unknown_difference_is_unexplained() -> None:
    found = unexplained({"cuInit": {"good": "0"}}, {"cuInit": {"good": "1"}}, software=False)
    assert found == {"cuInit: good": ("0", "1")}


def test_known_differences_name_entry_points() -> None:
    assert len(functions()) > 450
    for name, reason in known().items():
        assert len(reason.reason) > 20, name
        for row in reason.rows:
            pattern = row.partition(":")[0] if ":" in row else row
            assert any(fnmatchcase(entry, pattern) for entry in prototypes()) or "=" in pattern, row


def test_shares_are_the_whole() -> None:
    names = functions()
    parts = [name for k in (1, 2, 3) for name in share_of(names, f"{k}/3")]
    assert sorted(parts) == sorted(names)


def test_batches_are_the_whole_table() -> None:
    rows = [row for batch in batches(["cuInit", "cuCtxSetLimit", "cuMemFree_v2"]) for row in batch]
    assert len(set(rows)) == len(rows)
    assert {what for name, what in rows if name == "cuMemFree_v2"} == {
        *STATES,
        *("dptr=null", "dptr=freed", "dptr=pageable", "dptr=stray"),
        *(BEFORE_INIT, AFTER_FAULT),
    }


def test_later_answer_counts() -> None:
    first = {"cuInit": {"good": "hangs", "again": "0"}}
    assert merged(first, {"cuInit": {"good": "0"}}) == {"cuInit": {"good": "0", "again": "0"}}


def test_known_answer_is_not_asked_for_again(tmp_path: Path) -> None:
    known = tmp_path / "known.tsv"
    known.write_text("cuInit\tagain: crashes\tgood: 0\n")
    options = Namespace(driver="nvidia", limit_s=1.0, known=known)
    sides = Sides(options, {"native": {}, "remoted": {}})
    todo = [("cuInit", what) for what in ("good", "again", "Flags=huge")]
    assert sides.take_known([todo]) == [[("cuInit", "Flags=huge")]]
    assert sides.results["native"] == {"cuInit": {"good": "0", "again": "crashes"}}


def test_crash_is_recorded_where_a_process_of_its_own_came_to_it(tmp_path: Path) -> None:
    native = tmp_path / "native.tsv"
    native.write_text("cuInit\tFlags=huge: hangs\tagain: crashes\tgood: 0\n")
    assert recordable(native, {}) == {"cuInit": {"good": "0"}}
    (tmp_path / "native.alone.tsv").write_text("cuInit\tagain: crashes\n")
    assert recordable(native, {}) == {"cuInit": {"good": "0", "again": "crashes"}}
    assert (
        recordable(native, {"cuInit": {"Flags=huge": "hangs"}})["cuInit"]["Flags=huge"] == "hangs"
    )


@pytest.mark.parametrize(
    ("gpus", "is_taken_over"),
    [
        ("NVIDIA H200, 580.1\n", True),
        ("NVIDIA H200, 580.1\nNVIDIA H200, 580.1\n", False),
        ("NVIDIA H100, 580.1\n", False),  # has most of them from the record
        ("NVIDIA H100, 590.1\n", True),
    ],
)
def test_record_stays_that_of_the_gpu_it_names(
    gpus: str, is_taken_over: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = "# NVIDIA H200, 580.1: what native calls gave\ncuInit\tgood: 0\n"
    record = tmp_path / "bad_calls.tsv"
    record.write_text(before)
    monkeypatch.setattr(report, "BAD_CALLS", record)
    (tmp_path / "gpu.txt").write_text(gpus)
    (tmp_path / "errors").mkdir()
    (tmp_path / "errors/native.tsv").write_text("cuInit\tFlags=huge: 1\tgood: 0\n")
    merge_bad_calls(tmp_path)
    gpu = gpus.splitlines()[0]
    found = record.read_text()
    assert found.startswith(f"# {gpu}: ") if is_taken_over else found == before
    assert ("Flags=huge" in found) == is_taken_over
