# SPDX-License-Identifier: Apache-2.0
"""Pre-started workers that are not to be had: sessions go on without. Real ones: tests/loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from framework.kvgpud import Client, kvgpud, open_run, run

from kvgpu.host import worker_pool
from kvgpu.host.control_frames import WINDOWS
from kvgpu.host.messages import HostStatusRequest
from kvgpu.host.worker_pool import Prestarted, WorkerPool
from kvgpu.host.worker_settings import Devices


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


@dataclass(eq=False)
class FakeProcess:
    devices: Devices | None
    reaped: asyncio.Future[None]
    end: Callable[[], None]


class Processes:
    """Stands in for the start of workers; what there is of them, by choice of devices."""

    def __init__(self, pool: WorkerPool, broken: Devices) -> None:
        self.pool, self.broken = pool, broken
        self.living: list[Devices | None] = []

    async def start_one(self, devices: Devices | None) -> Prestarted:
        await asyncio.sleep(0)
        if devices == self.broken:
            raise OSError("this GPU is lost")
        self.living.append(devices)
        reaped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end() -> None:
            self.living.remove(devices)
            reaped.set_result(None)

        process: Any = FakeProcess(devices, reaped, end)
        return Prestarted(process, Path("/none"))

    async def come_to(self, *expected: Devices | None) -> None:
        while sorted(map(str, self.living)) != sorted(map(str, expected)):
            await asyncio.sleep(0.01)


N_ALL, N_CHOICES = 2, 2


async def pool_of(tmp_path: Path, broken: Devices, monkeypatch: pytest.MonkeyPatch) -> Processes:
    monkeypatch.setattr(worker_pool, "_REFILL_PAUSE_S", 0.01)
    settings: Any = SimpleNamespace(
        n_prestarted=N_ALL,
        log_dir=tmp_path,
        grace_s=1.0,
        may_wait=lambda owner: owner != "has one",
        share_of_uids=lambda n_wanted: min(n_wanted, N_CHOICES),
    )
    driver: Any = None  # nobody asks for it
    processes = Processes(WorkerPool(settings, driver), broken)
    monkeypatch.setattr(processes.pool, "start_one", processes.start_one)
    processes.pool.start()
    await processes.come_to(None, None)
    return processes


def test_choice_of_devices_that_was_asked_for_has_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        found = await pool_of(tmp_path, (9,), monkeypatch)
        take = found.pool.take
        assert take(WINDOWS[0], "vm", (1,)) is None
        await found.come_to(None, None, (1,))
        assert take(WINDOWS[0], "has one", (1,)) is None
        taken: Any = take(WINDOWS[0], "vm", (1,))
        assert taken.process.devices == (1,)
        await found.come_to(None, None, (1,), (1,))  # the one that was taken, and the next
        await found.pool.close()
        assert found.living == [(1,)]

    run(body)


def test_the_choice_that_was_asked_for_longest_ago_goes_and_all_devices_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        found = await pool_of(tmp_path, (9,), monkeypatch)
        for devices in [(1,), (2,), (1,), (3,)]:
            found.pool.take(WINDOWS[0], "has one", devices)
        await found.come_to(None, None, (1,), (3,))
        await found.pool.close()
        assert not found.living

    run(body)


def test_choice_that_cannot_be_served_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        found = await pool_of(tmp_path, (9,), monkeypatch)
        for _ in range(3):
            assert found.pool.take(WINDOWS[0], "vm", (9,)) is None
            assert found.pool.take(WINDOWS[0], "vm", None) is not None
            found.living.remove(None)  # a session's
            async with asyncio.timeout(5):
                await found.come_to(None, None)
        assert "this GPU is lost" in caplog.text
        await found.pool.close()

    run(body)
