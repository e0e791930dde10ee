# SPDX-License-Identifier: Apache-2.0
"""Pre-started workers that are not to be had: sessions go on without. Real ones: tests/loopback."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from framework.kvgpud import Client, kvgpud, open_run, run

from kvgpu.host.messages import HostStatusRequest


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("", "pre-started workers: the worker ended with status 1"),
        ("silent-pool", "pre-started workers: not ready within 1 s"),
        ("other-major", "pre-started workers: the worker speaks protocol 7"),
    ],
)
def test_worker_that_cannot_wait_costs_no_session(
    mode: str,
    expected: str,
    tmp_path: Path,
    fake_worker: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An older worker does not know --prestart; another one never says PRESTARTED."""
    monkeypatch.setenv("FAKE_WORKER", mode)

    async def body() -> None:
        async with kvgpud(tmp_path, prestarted_workers=1, ready_timeout_s=1.0) as daemon:
            api = await daemon.api()
            await api.ask(HostStatusRequest())
            opened, _ = await Client(await open_run(api)).open()
            assert [s["session"] for s in await api.sessions()] == [opened.session]
            while expected not in caplog.text:
                await asyncio.sleep(0.02)
        assert not list((tmp_path / "log").glob("prestarted-*"))

    run(body)
