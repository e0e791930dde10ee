# SPDX-License-Identifier: Apache-2.0
"""The demo's last line and exit status, whatever happens in its steps."""

from pathlib import Path

import pytest
from framework import demo


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_demo_that_works_says_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "LOGS", tmp_path)
    monkeypatch.setattr(demo, "steps", lambda run: run.say("all done"))
    assert demo.main() == 0
    assert last_line(capsys) == "demo: passed"


def test_demo_that_fails_names_step_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def steps(run: demo.Demo) -> None:
        with run.step("image", "made now"):
            raise OSError("no space left on device")

    monkeypatch.setattr(demo, "LOGS", tmp_path)
    monkeypatch.setattr(demo, "steps", steps)
    assert demo.main() == 1
    assert last_line(capsys) == f"demo: failed: image (log {tmp_path / 'demo.log'})"
    assert "no space left on device" in (tmp_path / "demo.log").read_text()
