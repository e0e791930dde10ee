# SPDX-License-Identifier: Apache-2.0
"""The host's NVML that answers, hangs, dies or talks nonsense; workers that do not answer."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from framework.kvgpud import run

from kvgpu.host import telemetry, usage_meter
from kvgpu.host.control_frames import (
    Frame,
)
from kvgpu.host.device_frames import DeviceUsage, Usage, UsageQuery
from kvgpu.host.telemetry import NOTHING, Link, Load, Telemetry
from kvgpu.host.usage_meter import UsageMeter

SAMPLE = (
    '{"driver_release": "580.1", "devices": [{"uuid": "GPU-00ff-01", "readings": [[3, 41]], '
    '"processes": [[7, 4096]], "utilisation": [[7, 30, 10], [8, 1, 1]], "link_mbps": 9, '
    '"links": [[0, 257, "GPU-00ff-02"]], "peers": [["GPU-00ff-02", 5]]}]}'
)


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """The path of a driver that has an NVML beside it."""
    (tmp_path / "libnvidia-ml.so.1").touch()
    return tmp_path / "libcuda.so.1"


def make_worker(folder: Path, script: str) -> Path:
    path = folder / "asked-worker"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_one_child_answers_all_who_ask(tmp_path: Path, driver: Path) -> None:
    pids = tmp_path / "pids"
    script = f"echo $$ >>{pids}; while read line; do echo '{SAMPLE}'; done"
    worker = make_worker(tmp_path, script)

    async def body() -> None:
        asked = Telemetry(worker)
        samples = await asyncio.gather(*(asked.sample(driver) for _ in range(5)))
        assert samples == [samples[0]] * 5
        device = samples[0].devices["00ff01"]
        assert (samples[0].driver_release, device.readings) == ("580.1", ((3, 41),))
        assert device.used_bytes == {7: 4096}
        assert device.loads == {7: Load(30, 10), 8: Load(1, 1)}
        assert device.links == (Link(0, 257, "00ff02"),)
        assert (device.link_mbps, device.peers) == (9, {"00ff02": 5})
        await asked.close()

    run(body)
    (pid,) = pids.read_text().split()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    "script", ["exec sleep 60", "exit 1", "read line; echo nonsense", "echo '{}'"]
)
def test_nvml_that_fails_costs_its_readings_only(
    tmp_path: Path, driver: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_WAIT_S", "_LIMIT_S"):
        monkeypatch.setattr(telemetry, limit, 0.2)
    worker = make_worker(tmp_path, script)

    async def body() -> None:
        asked = Telemetry(worker)
        assert await asked.sample(driver) == NOTHING
        before_s = time.monotonic()
        assert await asked.sample(driver) == NOTHING
        assert time.monotonic() - before_s < 0.1  # not asked again at once
        await asked.close()

    run(body)


def test_nvml_that_is_slow_is_not_given_up(
    tmp_path: Path, driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "_WAIT_S", 0.1)
    script = f"sleep 0.4; while read line; do echo '{SAMPLE}'; done"
    worker = make_worker(tmp_path, script)

    async def body() -> None:
        asked = Telemetry(worker)
        assert await asked.sample(driver) == NOTHING
        before_s = time.monotonic()
        assert await asked.sample(driver) == NOTHING
        assert time.monotonic() - before_s < 0.1  # nobody waits for it twice
        async with asyncio.timeout(10):
            while await asked.sample(driver) == NOTHING:
                await asyncio.sleep(0.05)
        await asked.close()

    run(body)


def test_driver_without_nvml_is_not_asked(tmp_path: Path) -> None:
    async def body() -> None:
        assert await Telemetry(tmp_path / "missing").sample(tmp_path / "libcuda.so.1") == NOTHING

    run(body)


def test_who_asks_gets_a_measurement_that_began_later() -> None:
    async def body() -> None:
        sent: list[Frame] = []
        meter = UsageMeter(sent.append)
        first = asyncio.create_task(meter.measure())
        await asyncio.sleep(0.02)
        later = [asyncio.create_task(meter.measure()) for _ in range(3)]
        await asyncio.sleep(0.02)
        assert [frame.body for frame in sent] == [UsageQuery()]
        meter.on_answer(Usage((DeviceUsage(1, 2, 3),)))
        await asyncio.sleep(0.02)
        assert len(sent) == 2  # one for all three
        meter.on_answer(Usage((DeviceUsage(4, 5, 6),)))
        assert await first == (DeviceUsage(1, 2, 3),)
        assert [await each for each in later] == [(DeviceUsage(4, 5, 6),)] * 3

    run(body)


def test_worker_that_does_not_answer_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_meter, "_LIMIT_S", 0.05)

    async def body() -> None:
        sent: list[Frame] = []
        meter = UsageMeter(sent.append)
        assert await meter.measure() == ()
        before_s = time.monotonic()
        assert await meter.measure() == ()
        assert time.monotonic() - before_s < 0.04
        assert len(sent) == 1

    run(body)
