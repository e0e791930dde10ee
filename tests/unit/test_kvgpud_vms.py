# SPDX-License-Identifier: Apache-2.0
"""kvgpud as the hook and a VM see it; the test listens where QEMU would and speaks as the agent."""

from __future__ import annotations

import asyncio
import mmap
import os
import pwd
import threading
import time
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from framework.kvgpud import OPEN, Api, Client, FakeQemu, gone, kvgpud, open_run, run, vm

from kvgpu.host import control_frames as cf
from kvgpu.host.control_frames import Frame
from kvgpu.host.errors import DaemonError, RegionError
from kvgpu.host.ivshmem import range_freer
from kvgpu.host.ivshmem import region as region_module
from kvgpu.host.ivshmem.region import Ownership, Region, region_path
from kvgpu.host.messages import HostStatusRequest, VmListRequest
from kvgpu.host.units import GIB, MIB

pytestmark = pytest.mark.usefixtures("fake_worker")
NOBODY = pwd.getpwnam("nobody").pw_uid


async def state(api: Api) -> str:
    """Return that of the only VM."""
    (info,) = (await api.ask(VmListRequest()))["vms"]
    return str(info["state"])


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


def test_root_keeps_nothing_in_qemus_folder(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path, qemu_user="nobody") as daemon:
            api = await daemon.api()
            sockets, domains = tmp_path / "vm", tmp_path / "domains"
            assert sockets.stat().st_uid == NOBODY
            found = domains.stat()
            assert (found.st_uid, found.st_mode & 0o777) == (os.geteuid(), 0o700)
            qemu = FakeQemu(tmp_path)
            victim = tmp_path / "victim"
            (sockets / f"{qemu.uuid}.xml").symlink_to(victim)  # by a QEMU that was taken over
            try:
                await api.ask(qemu.hook("prepare"))
                assert not victim.exists()
                (kept,) = domains.iterdir()
                assert (kept.name, kept.stat().st_mode & 0o777) == (f"{qemu.uuid}.xml", 0o600)
                await api.ask(qemu.hook("release"))
                assert list(domains.iterdir()) == []
                os.mkfifo(sockets / f"{uuid4()}.xml")
            finally:
                region_path(qemu.uuid).unlink(missing_ok=True)
        async with kvgpud(tmp_path):  # does not wait for a writer
            pass

    run(body)


@pytest.mark.parametrize("content", [b"\xff", b"<domain", b"<domain/>", b""])
def test_record_that_cannot_be_read_costs_its_vm_only(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            qemu = FakeQemu(tmp_path)
            await (await daemon.api()).ask(qemu.hook("prepare"))
        try:
            for name in (UUID(int=0), UUID(int=(1 << 128) - 1)):  # before and behind
                (tmp_path / "domains" / f"{name}.xml").write_bytes(content)
            async with kvgpud(tmp_path) as daemon:
                (info,) = (await (await daemon.api()).ask(VmListRequest()))["vms"]
                assert info["uuid"] == str(qemu.uuid)
            assert caplog.text.count("not taken up") == (2 if content != b"<domain/>" else 0)
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
            api = await daemon.api()
            await api.ask(HostStatusRequest())  # answered when the driver has
            with pytest.raises(DaemonError, match="HMM is on"):
                await api.ask(qemu.hook("prepare"))
            assert not region_path(qemu.uuid).exists()
        async with kvgpud(tmp_path / "told", allow_hmm=True) as daemon:
            api = await daemon.api()
            async with vm(daemon, api) as qemu:
                assert region_path(qemu.uuid).exists()

    run(body)


@pytest.mark.parametrize("operation", ["prepare", "started"])
@pytest.mark.parametrize("mode", ["late", "late-hmm"])
def test_start_does_not_wait_for_the_driver_and_the_vm_is_served_after_it(
    mode: str, operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at boot: libvirtd starts its VMs right after kvgpud, and tries each one once."""
    monkeypatch.setenv("FAKE_WORKER", mode)
    monkeypatch.setenv("FAKE_DRIVER", str(tmp_path / "ready"))

    async def body() -> None:
        async with kvgpud(tmp_path, numa="gpu") as daemon:
            api = await daemon.api()
            qemu = FakeQemu(tmp_path)
            await qemu.start()
            try:
                if operation == "started":  # behind the hook's back
                    owner = Ownership(os.geteuid(), os.getegid())
                    Region.create_named(qemu.uuid, GIB, 64 * MIB, owner).close_keeping_file()
                async with asyncio.timeout(1):  # the hook gives up after 1.5 s
                    await api.ask(qemu.hook(operation))
                assert (await state(api), qemu.is_connected) == ("waiting", False)
                (tmp_path / "ready").touch()
                if mode == "late":
                    await qemu.hello(b"a" * 16)
                while await state(api) != ("ready" if mode == "late" else "refused"):
                    await asyncio.sleep(0.01)
                assert qemu.is_connected == (mode == "late")
            finally:
                region_path(qemu.uuid).unlink(missing_ok=True)

    run(body)


def test_running_vm_of_another_kvgpud_is_left_alone(tmp_path: Path) -> None:
    """libvirt's events name all VMs of the host."""

    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            qemu = FakeQemu(tmp_path / "another")
            try:
                owner = Ownership(os.geteuid(), os.getegid())
                region = Region.create_named(qemu.uuid, GIB, 64 * MIB, owner)
                os.pwrite(region.fd, b"in use", 2 * MIB)
                await api.ask(qemu.hook("started"))
                assert (await api.ask(VmListRequest()))["vms"] == []
                assert os.pread(region.fd, 6, 2 * MIB) == b"in use"
                region.close_keeping_file()
            finally:
                region_path(qemu.uuid).unlink(missing_ok=True)

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
                (tmp_path / "domains" / f"{qemu.uuid}.xml").unlink()
            async with kvgpud(tmp_path) as daemon:
                api = await daemon.api()
                if operation != "adopted":
                    await api.ask(qemu.hook(operation))
                while await state(api) != "refused":
                    await asyncio.sleep(0.01)
                assert not qemu.is_connected
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


def test_start_waits_for_the_memory_of_a_vm_that_has_just_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing = threading.Thread(target=time.sleep, args=[0.3], daemon=True)

    def check_free_memory(pinned_bytes: int) -> None:
        if closing.is_alive():
            raise RegionError("/dev/shm has too little left")

    monkeypatch.setattr(range_freer, "_closing", {closing})
    monkeypatch.setattr(region_module, "check_free_memory", check_free_memory)

    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            closing.start()
            async with vm(daemon, await daemon.api()) as qemu:
                assert region_path(qemu.uuid).exists()

    run(body)


def test_second_start_of_a_running_vm_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            async with vm(daemon, api) as qemu:
                await qemu.hello(b"a" * 16)
                await qemu.open()
                with region_path(qemu.uuid).open("r+b") as file, mmap.mmap(file.fileno(), 4096):
                    for _ in range(2):
                        with pytest.raises(DaemonError, match="still in use"):
                            await api.ask(qemu.hook("prepare"))
                        for operation in ("stopped", "release"):  # libvirt cleans up
                            await api.ask(qemu.hook(operation))
                        assert (await api.sessions())[0]["state"] == "running"
                        found = region_path(qemu.uuid).stat()
                        assert found.st_ino == os.fstat(file.fileno()).st_ino
                    with pytest.raises(DaemonError, match="still in use"):
                        await api.ask(qemu.hook("prepare"))  # whose clean-up never comes
                # The first one ends.
                await api.ask(qemu.hook("stopped"))
                assert await api.sessions() == []
                assert not region_path(qemu.uuid).exists()

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


@pytest.mark.parametrize("kind", ["frames", "magics", "types"])
def test_guest_that_floods_its_channel_is_listened_to_more_slowly(
    kind: str, tmp_path: Path
) -> None:
    ping = Frame(cf.Ping(), 1).encode()
    flood = {
        "magics": ping[:4] * 3000,
        "types": cf.HEADER.pack(cf.MAGIC, 99, 0, 0, 0) * 3000,
    }.get(kind, ping * 3000)

    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            async with vm(daemon, await daemon.api()) as qemu:
                await qemu.hello(b"a" * 16)
                begin_s = time.monotonic()
                await qemu.write(flood + bytes(16))  # which end what garbage has begun
                await asyncio.sleep(0.1)
                await qemu.say(Frame(cf.Ping(), 2))
                while (await qemu.frames.get()).id != 2:
                    pass
                assert 0.4 < time.monotonic() - begin_s < 10  # 3000 at 5000 a second

    run(body)
