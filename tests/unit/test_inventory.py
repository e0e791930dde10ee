# SPDX-License-Identifier: Apache-2.0
"""Drivers that hang, crash, are missing or appear later: kvgpud goes on, says why, looks again.

What each answer of a driver means is in test_driver_choice.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from framework.kvgpud import OPEN, Client, kvgpud, open_run, run

from kvgpu.host import control_frames as cf
from kvgpu.host import cuda_errors, driver_watch, inventory
from kvgpu.host.control_frames import Frame
from kvgpu.host.driver_watch import DriverWatch
from kvgpu.host.errors import ConfigError
from kvgpu.host.inventory import Asker
from kvgpu.host.messages import HostStatusRequest


def make_worker(folder: Path, script: str) -> Path:
    path = folder / "asked-worker"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_driver_that_hangs_is_killed_and_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_watch, "_FIRST_PAUSE_S", 0.05)
    mended = tmp_path / "mended"
    good = """echo '{"driver_version": 13000, "devices": [{"name": "good"}]}'"""
    pids = tmp_path / "pids"
    script = f"echo $$ >> {pids}\nif [ -e {mended} ]; then {good}; else exec sleep 60; fi"
    worker = make_worker(tmp_path, script)

    async def body() -> None:
        watch = DriverWatch("/x/libcuda.so.1", worker, timeout_s=0.5)
        with pytest.raises(ConfigError, match=r"no answer within 0\.5 s"):
            await watch.get()
        mended.touch()
        while True:
            try:
                driver = await watch.get()
                break
            except ConfigError:
                await asyncio.sleep(0.02)
        assert driver.devices == [{"name": "good"}]
        await watch.close()
        for pid in pids.read_text().split():
            assert not Path(f"/proc/{pid}").exists(), "each child has been reaped"

    run(body)


def test_child_that_cannot_be_killed_holds_nobody_up_and_is_not_joined_by_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As one that sleeps in the kernel, on a GPU that is lost.
    monkeypatch.setattr(asyncio.subprocess.Process, "kill", lambda _: None)
    monkeypatch.setattr(inventory, "_KILL_LIMIT_S", 0.3)
    pids = tmp_path / "pids"
    worker = make_worker(tmp_path, f"echo $$ >> {pids}\nexec sleep 60")

    async def body() -> None:
        asker = Asker(worker, timeout_s=0.3)
        begin_s = time.monotonic()
        with pytest.raises(ConfigError, match="no answer within"):
            await asker.ask(Path("/x/libcuda.so.1"))
        (pid,) = map(int, pids.read_text().split())
        with pytest.raises(ConfigError, match=f"process {pid} hangs in the driver"):
            await asker.ask(Path("/x/libcuda.so.1"))
        assert time.monotonic() - begin_s < 5
        assert len(pids.read_text().split()) == 1
        os.kill(pid, signal.SIGKILL)  # the GPU is back
        while asker._hanging[Path("/x/libcuda.so.1")].returncode is None:
            await asyncio.sleep(0.02)
        with pytest.raises(ConfigError, match="no answer within"):
            await asker.ask(Path("/x/libcuda.so.1"))
        os.kill(int(pids.read_text().split()[1]), signal.SIGKILL)
        while asker._hanging[Path("/x/libcuda.so.1")].returncode is None:
            await asyncio.sleep(0.02)

    run(body)


def test_binary_that_is_missing_is_a_reason_not_a_crash(tmp_path: Path) -> None:
    async def body() -> None:
        watch = DriverWatch("/x/libcuda.so.1", tmp_path / "none", timeout_s=1)
        with pytest.raises(ConfigError, match="the driver cannot be asked"):
            await watch.get()
        await watch.close()

    run(body)


@pytest.mark.usefixtures("fake_worker")
def test_kvgpud_without_a_driver_starts_says_so_and_takes_one_that_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_watch, "_FIRST_PAUSE_S", 0.05)
    monkeypatch.setenv("FAKE_WORKER", "nodriver")
    monkeypatch.setenv("FAKE_DRIVER", str(tmp_path / "driver"))

    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            status = await api.ask(HostStatusRequest())
            assert status["inventory"] == {}
            assert "CUDA_ERROR_NO_DEVICE" in status["inventory_error"]
            assert "install NVIDIA's driver" in status["inventory_error"]
            client = Client(await open_run(api))
            client.send(Frame(OPEN, 3))
            frame, _ = await client.receive()
            assert isinstance(frame.body, cf.Refused)
            assert frame.body.cuda_error == cuda_errors.NO_DEVICE
            assert await api.sessions() == []
            (tmp_path / "driver").touch()
            while (await api.ask(HostStatusRequest()))["inventory_error"]:
                await asyncio.sleep(0.02)
            await Client(await open_run(api)).open()

    run(body)
