# SPDX-License-Identifier: Apache-2.0
"""What a kvgpud finds of an earlier one: sessions that go on, and what must not go on."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from framework.kvgpud import Client, FakeQemu, gone, kvgpud, open_run, run

from kvgpu.host import control_frames as cf
from kvgpu.host.control_frames import Frame
from kvgpu.host.ivshmem.region import region_path
from kvgpu.host.units import MIB

pytestmark = pytest.mark.usefixtures("fake_worker", "reaped")
KEEP_S = 60
BOOT_ID = b"a" * 16


def records(runtime_dir: Path) -> list[Path]:
    return sorted((runtime_dir / "sessions").glob("*.json"))


def test_local_session_goes_on_with_its_block_and_extents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "extent")

    async def body() -> None:
        async with kvgpud(tmp_path, keep_sessions_s=KEEP_S) as daemon:
            first = await daemon.api()
            path = await open_run(first)
            client = Client(path)
            opened, (region_fd, _, _) = await client.open()
            while (await first.sessions())[0]["pinned_bytes"] != 4 * MIB:
                await asyncio.sleep(0.01)
            before = await first.sessions()
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            assert await api.sessions() == before
            assert os.pread(region_fd, 4, opened.block_offset) == b"used"
            other, _ = await Client(path).open()  # the run goes on, too
            assert other.block_offset != opened.block_offset
            assert other.session > opened.session
        assert records(tmp_path) == []

    run(body)


def test_session_whose_worker_died_meanwhile_is_forgotten(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path, keep_sessions_s=KEEP_S) as daemon:
            api = await daemon.api()
            client = Client(await open_run(api))
            await client.open()
            (info,) = await api.sessions()
        os.kill(info["worker_pid"], signal.SIGKILL)
        os.waitpid(info["worker_pid"], 0)
        assert len(records(tmp_path)) == 1
        async with kvgpud(tmp_path, keep_sessions_s=KEEP_S) as daemon:
            assert await (await daemon.api()).sessions() == []
            assert records(tmp_path) == []

    run(body)


def test_worker_of_which_there_is_no_record_is_ended_before_its_memory_is_given_away(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path, keep_sessions_s=KEEP_S) as daemon:
            api = await daemon.api()
            client = Client(await open_run(api))
            opened, (_, _, worker) = await client.open()
        (record,) = records(tmp_path)
        record.unlink()  # as where kvgpud is killed before it has written
        nobodys = record.with_name("7.sock")
        nobodys.touch()
        assert record.with_suffix(".sock").is_socket()
        assert opened.session == int(record.stem)
        assert not select.select([worker], [], [], 0)[0]
        link = tmp_path / "by another name"
        link.symlink_to(tmp_path)
        async with kvgpud(link, keep_sessions_s=KEEP_S):
            assert select.select([worker], [], [], 0)[0]
            assert not list(record.parent.iterdir())

    run(body)


@pytest.mark.parametrize("change", ["worker_start_ticks", "region_inode", "extents"])
def test_record_that_does_not_fit_is_no_session(tmp_path: Path, change: str) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path, keep_sessions_s=KEEP_S) as daemon:
            api = await daemon.api()
            client = Client(await open_run(api))
            await client.open()
            (info,) = await api.sessions()
        (path,) = records(tmp_path)
        record = json.loads(path.read_text())
        record[change] = 1
        path.write_text(json.dumps(record))
        async with kvgpud(tmp_path, keep_sessions_s=KEEP_S) as daemon:
            await gone(await daemon.api(), 5)
            assert records(tmp_path) == []
        os.kill(info["worker_pid"], signal.SIGKILL)
        os.waitpid(info["worker_pid"], 0)

    run(body)


@asynccontextmanager
async def vm_with_two_sessions(folder: Path) -> AsyncIterator[tuple[FakeQemu, list[int]]]:
    """A VM whose kvgpud has stopped; yields it and its sessions' numbers."""
    qemu = FakeQemu(folder)
    try:
        async with kvgpud(folder, keep_sessions_s=KEEP_S) as daemon:
            api = await daemon.api()
            await api.ask(qemu.hook("prepare"))
            await qemu.start()
            await api.ask(qemu.hook("started"))
            await qemu.hello(BOOT_ID)
            numbers = [(await qemu.open()).session for _ in range(2)]
        yield qemu, numbers
    finally:
        region_path(qemu.uuid).unlink(missing_ok=True)


def test_vm_whose_qemu_is_gone_loses_its_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvgpu.host.vm_channel._QEMU_LIMIT_S", 0.5)

    async def body() -> None:
        async with vm_with_two_sessions(tmp_path) as (qemu, numbers):
            qemu.die()
            async with kvgpud(tmp_path, keep_sessions_s=KEEP_S) as daemon:
                api = await daemon.api()
                assert {info["session"] for info in await api.sessions()} == set(numbers)
                await gone(api, 5)

    run(body)


def test_guest_that_booted_meanwhile_has_no_older_sessions(tmp_path: Path) -> None:
    async def body() -> None:
        async with (
            vm_with_two_sessions(tmp_path) as (qemu, _),
            kvgpud(tmp_path, keep_sessions_s=KEEP_S) as daemon,
        ):
            api = await daemon.api()
            assert len(await api.sessions()) == 2
            await qemu.hello(b"b" * 16)
            assert await api.sessions() == []

    run(body)


def test_session_the_agent_does_not_name_is_ended_and_one_it_alone_knows_is_told(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with (
            vm_with_two_sessions(tmp_path) as (qemu, numbers),
            kvgpud(tmp_path) as daemon,
        ):
            api = await daemon.api()
            await qemu.hello(BOOT_ID)
            await qemu.say(Frame(cf.Sessions((numbers[1], 77))), Frame(cf.Kick(), 77))
            frame = await qemu.frames.get()
            assert (frame.id, type(frame.body)) == (77, cf.Closed)
            while len(left := await api.sessions()) > 1:
                await asyncio.sleep(0.01)
            assert left[0]["session"] == numbers[1]
            new = await qemu.open()
            await qemu.say(Frame(cf.Sessions((numbers[1],))))  # the answer may be on its way
            await asyncio.sleep(0.2)
            assert {i["session"] for i in await api.sessions()} == {numbers[1], new.session}

    run(body)
