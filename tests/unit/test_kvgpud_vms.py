# SPDX-License-Identifier: Apache-2.0
"""kvgpud as the hook and a VM see it; the test listens where QEMU would and speaks as the agent."""

from __future__ import annotations

import asyncio
import mmap
import os
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from framework.kvgpud import OPEN, Client, FakeQemu, gone, kvgpud, open_run, run, vm

from kvgpu.host import control_frames as cf
from kvgpu.host.control_frames import Frame
from kvgpu.host.errors import DaemonError
from kvgpu.host.ivshmem.region import region_path
from kvgpu.host.messages import (
    VmListRequest,
)
from kvgpu.host.units import GIB

pytestmark = pytest.mark.usefixtures("fake_worker")


def test_vm_life_from_prepare_to_release(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            async with vm(daemon, api) as qemu:
                assert region_path(qemu.uuid).stat().st_size == GIB
                welcome = await qemu.hello(b"a" * 16)
                assert UUID(bytes=welcome.vm_uuid) == qemu.uuid
                opened = await qemu.open()
                (info,) = (await api.ask(VmListRequest()))["vms"]
                assert (info["state"], info["n_sessions"]) == ("ready", 1)
                await qemu.say(Frame(cf.Close(), opened.session))
                frame = await qemu.frames.get()
                assert isinstance(frame.body, cf.Closed)
                await gone(api)
                qemu.die()
                for _ in range(2):  # stopped and release both come; both must be harmless
                    await api.ask(qemu.hook("release"))
                assert not region_path(qemu.uuid).exists()
                assert (await api.ask(VmListRequest()))["vms"] == []

    run(body)


def test_death_of_qemu_ends_all_sessions_within_two_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "stubborn")

    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            async with vm(daemon, api) as qemu:
                await qemu.hello(b"a" * 16)
                await qemu.open()
                await qemu.open()
                qemu.die()
                await gone(api, limit_s=2.0)

    run(body)


def test_other_boot_id_ends_older_sessions_and_the_same_one_does_not(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            async with vm(daemon, api) as qemu:
                await qemu.hello(b"a" * 16)
                await qemu.open()
                await qemu.hello(b"a" * 16)
                assert len(await api.sessions()) == 1
                await qemu.hello(b"b" * 16)
                assert await api.sessions() == []

    run(body)


def test_vm_cannot_touch_a_session_of_another(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            client = Client(await open_run(api))
            opened, _ = await client.open()
            async with vm(daemon, api) as qemu:
                await qemu.hello(b"a" * 16)
                await qemu.say(Frame(cf.Close(), opened.session))
                await qemu.hello(b"a" * 16)  # answered in order, so CLOSE has been looked at
                assert (await api.sessions())[0]["state"] == "running"

    run(body)


def test_vm_is_taken_up_again_after_a_restart_of_kvgpud(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            qemu = FakeQemu(tmp_path)
            await api.ask(qemu.hook("prepare"))
            await qemu.start()
            await qemu.hello(b"a" * 16)
        try:
            assert region_path(qemu.uuid).exists()
            qemu._connected.clear()
            async with kvgpud(tmp_path) as daemon:
                api = await daemon.api()
                await qemu.hello(b"a" * 16)
                await qemu.open()
                await api.ask(qemu.hook("reconnect"))
                assert len(await api.sessions()) == 1
        finally:
            region_path(qemu.uuid).unlink(missing_ok=True)

    run(body)


def test_start_is_refused_where_kernels_reach_all_memory_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "hmm")

    async def body() -> None:
        qemu = None
        async with kvgpud(tmp_path / "strict") as daemon:
            qemu = FakeQemu(daemon.runtime_dir)
            with pytest.raises(DaemonError, match="HMM is on"):
                await (await daemon.api()).ask(qemu.hook("prepare"))
            assert not region_path(qemu.uuid).exists()
        async with kvgpud(tmp_path / "told", allow_hmm=True) as daemon:
            api = await daemon.api()
            async with vm(daemon, api) as qemu:
                assert region_path(qemu.uuid).exists()

    run(body)


@pytest.mark.parametrize("operation", ["adopted", "started", "reconnect"])
def test_vm_is_not_taken_up_where_kernels_reach_all_memory_of_a_worker(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "hmm")

    async def body() -> None:
        async with kvgpud(tmp_path, allow_hmm=True) as daemon:
            qemu = FakeQemu(tmp_path)
            await (await daemon.api()).ask(qemu.hook("prepare"))
            await qemu.start()
            await qemu.hello(b"a" * 16)
        try:
            qemu._connected.clear()
            if operation != "adopted":
                (tmp_path / "vm" / f"{qemu.uuid}.xml").unlink()
            async with kvgpud(tmp_path) as daemon:
                api = await daemon.api()
                if operation != "adopted":
                    await api.ask(qemu.hook(operation))
                while (await api.ask(VmListRequest()))["vms"][0]["state"] != "refused":
                    await asyncio.sleep(0.01)
                assert not qemu._connected.is_set()
                await api.ask(qemu.hook("release"))
                assert not region_path(qemu.uuid).exists()
        finally:
            region_path(qemu.uuid).unlink(missing_ok=True)

    run(body)


def test_guest_cannot_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            async with vm(daemon, api) as qemu:
                bad = Frame(replace(OPEN, window=0), 1)
                old = Frame(cf.Hello(cf.PROTOCOL_MAJOR + 1, 0, 0, b"a" * 16))
                await qemu.say(*[bad, old] * 50)
                for _ in range(100):
                    assert isinstance((await qemu.frames.get()).body, cf.Refused)
                assert 1 <= sum(record.levelname == "WARNING" for record in caplog.records) <= 7

    run(body)


def test_start_is_refused_if_the_region_is_in_use(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            qemu = FakeQemu(tmp_path)
            path = region_path(qemu.uuid)
            path.write_bytes(bytes(4096))
            try:
                with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
                    with pytest.raises(DaemonError, match="still in use"):
                        await api.ask(qemu.hook("prepare"))
                await api.ask(qemu.hook("prepare"))
                assert path.stat().st_size == GIB
            finally:
                path.unlink(missing_ok=True)

    run(body)


def test_second_start_of_a_running_vm_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            async with vm(daemon, api) as qemu:
                await qemu.hello(b"a" * 16)
                await qemu.open()
                with region_path(qemu.uuid).open("r+b") as file, mmap.mmap(file.fileno(), 4096):
                    with pytest.raises(DaemonError, match="still in use"):
                        await api.ask(qemu.hook("prepare"))
                    assert (await api.sessions())[0]["state"] == "running"
                    assert region_path(qemu.uuid).stat().st_ino == os.fstat(file.fileno()).st_ino

    run(body)


def test_guest_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            async with vm(daemon, api) as qemu:
                await qemu.hello(b"a" * 16)
                qemu.stop_reading()
                with pytest.raises(ConnectionError):
                    await qemu.say(*[Frame(cf.Ping(), 1)] * 500_000)
                assert (await api.ask(VmListRequest()))["vms"][0]["n_sessions"] == 0

    run(body)
