# SPDX-License-Identifier: Apache-2.0
"""The acceptance tool: what it runs, what it writes down, when it says no."""

import time
from pathlib import Path

import pytest
from acceptance import accept

HEADER = "# a comment that stays\n\n"


def write(path: Path, *rows: str) -> Path:
    path.write_text(HEADER + "".join(f"[[row]]\n{row}\n" for row in rows))
    return path


def row(name: str, command: str, where: str = "here", state: str = "open", more: str = "") -> str:
    return (
        f'id = "{name}"\ndemand = "d"\ncommand = "{command}"\n'
        f'where = "{where}"\nstate = "{state}"\n{more}\n'
    )


def test_open_row_that_passes_counts_only_once_recorded(tmp_path: Path) -> None:
    ledger = write(tmp_path / "l.toml", row("a", "echo figure: 3 us"))
    assert not accept.settle(ledger, accept.RUN_HERE)
    assert accept.settle(ledger, accept.RUN_HERE, write=True)
    text = ledger.read_text()
    assert text.startswith(HEADER)
    assert 'state = "holds"' in text
    assert 'figure = "3 us"' in text
    assert accept.git("rev-parse", "--short=12", "HEAD") in text
    assert accept.settle(ledger, accept.RUN_HERE)


def test_holding_row_that_fails_is_opened_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = row("a", "echo sad; false", state="holds", more='commit = "HEAD"')
    ledger = write(tmp_path / "l.toml", held)
    assert not accept.settle(ledger, accept.RUN_HERE, write=True)
    assert 'state = "open"' in ledger.read_text()
    assert "| sad" in capsys.readouterr().out


def test_row_of_another_place_is_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    witness = tmp_path / "ran"
    command = f"touch {witness}"
    held = row("a", command, where="chroot", state="holds", more='commit = "HEAD"')
    ledger = write(tmp_path / "l.toml", held)
    assert accept.settle(ledger, accept.RUN_HERE)
    assert not witness.exists()
    assert "at HEAD" in capsys.readouterr().out
    assert accept.settle(ledger, ["chroot"])
    assert witness.exists()


def test_row_without_an_end_is_ended_with_all_it_started(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    command = f"(sleep 2; touch {witness}) & wait"
    ledger = write(tmp_path / "l.toml", row("a", command))
    _, (endless,) = accept.read_ledger(ledger)
    outcome = accept.run_row(endless, limit_s=0.5)
    assert not outcome.passed
    assert "no end after 0.5 s" in outcome.output
    time.sleep(2)
    assert not witness.exists()


@pytest.mark.parametrize(("commit", "holds"), [("HEAD", True), ("0000000", False)])
def test_gpu_row_holds_while_its_commit_is_current(
    tmp_path: Path, commit: str, holds: bool
) -> None:
    seen = row("a", "false", where="h200", state="holds", more=f'commit = "{commit}"')
    assert accept.settle(write(tmp_path / "l.toml", seen), accept.RUN_HERE) is holds


def test_gpu_row_is_stale_after_a_change_of_what_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept, "git", lambda *arguments: "abc1234")
    seen = row("a", "false", where="h200", state="holds", more='commit = "HEAD"')
    assert not accept.settle(write(tmp_path / "l.toml", seen), accept.RUN_HERE)


def test_refused_row_needs_a_reason(tmp_path: Path) -> None:
    ledger = write(tmp_path / "l.toml", row("a", "false", state="refused"))
    with pytest.raises(accept.LedgerError, match="why"):
        accept.settle(ledger, accept.RUN_HERE)
    reasoned = row("a", "false", state="refused", more='why = "cannot be"')
    assert accept.settle(write(ledger, reasoned), accept.RUN_HERE)


@pytest.mark.parametrize(
    "bad",
    [
        row("a", "true", where="moon"),
        row("a", "true", state="fine"),
        row("a", ""),
        row("a", "true", more='nonsense = "1"'),
        row("a", "true", state="holds"),
        'id = "a"',
        row("a", "true") + "[[row]]\n" + row("a", "true"),
    ],
)
def test_malformed_ledger_is_refused(tmp_path: Path, bad: str) -> None:
    with pytest.raises(accept.LedgerError):
        accept.settle(write(tmp_path / "l.toml", bad), accept.RUN_HERE)


def test_checked_in_ledgers_are_well_formed() -> None:
    ledgers = sorted(Path(accept.__file__).parent.glob("*.toml"))
    assert ledgers
    for ledger in ledgers:
        accept.read_ledger(ledger)
