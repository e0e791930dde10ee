# SPDX-License-Identifier: Apache-2.0
"""The ivshmem server, seen by QEMU, by kvgpud and by those it must refuse."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import mmap
import os
import pwd
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from framework.ivshmem import N_PEERS, IvshmemDevice
from framework.kvgpud import OPEN, FakeQemu, gone, kvgpud, run, vm

from kvgpu.host import control_frames as cf
from kvgpu.host.control_frames import Frame
from kvgpu.host.domain_xml import Device
from kvgpu.host.errors import DaemonError, RegionError
from kvgpu.host.ivshmem import server as server_module
from kvgpu.host.ivshmem.doorbells import Doorbells
from kvgpu.host.ivshmem.region import Region
from kvgpu.host.messages import VmListRequest
from kvgpu.host.session_store import SessionRecord
from kvgpu.host.units import GIB, MIB

BELL_OPEN = replace(OPEN, features=cf.FEATURE_DOORBELL)
AS_OTHER_USER = """
import os, socket, sys
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(5)
try:
    sock.connect(sys.argv[1])
    print(len(sock.recv(8)))
except PermissionError:
    print("denied")
"""


@pytest.fixture
def region() -> Iterator[Region]:
    made = Region.create_memfd(uuid4(), 256 * MIB, 64 * MIB)
    yield made
    made.close()


def serve(region: Region, path: Path, qemu_uid: int = -1) -> Doorbells:
    uid = os.geteuid() if qemu_uid < 0 else qemu_uid
    return asyncio.run(Doorbells.start(path, region.fd, uid))


def rings(eventfd: int) -> bool:
    return bool(select.select([eventfd], [], [], 0)[0])


def test_device_gets_version_id_sealed_memory_and_doorbells(region: Region, tmp_path: Path) -> None:
    doorbells = serve(region, tmp_path / "vm" / "x.sock")
    device = IvshmemDevice(doorbells.path)
    assert (device.version, device.id) == (0, 0)
    assert sorted(device.eventfds) == list(range(1, N_PEERS + 1))
    assert device.id not in device.eventfds
    stat = os.fstat(device.memory_fd)
    assert (stat.st_size, stat.st_ino) == (256 * MIB, region.inode)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    assert fcntl.fcntl(device.memory_fd, fcntl.F_GET_SEALS) == seals
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(device.memory_fd, 4096)
    device.write_doorbell(7 << 16)
    assert rings(doorbells.eventfd(7))
    assert not any(rings(doorbells.eventfd(n)) for n in range(1, N_PEERS + 1) if n != 7)
    device.close()
    doorbells.end()


def test_doorbells_are_given_out_once_and_come_back(region: Region, tmp_path: Path) -> None:
    doorbells = serve(region, tmp_path / "x.sock")
    assert doorbells.take(5) == 5
    taken = [doorbells.take() for _ in range(N_PEERS - 1)]
    assert sorted([5, *taken]) == list(range(1, N_PEERS + 1))
    with pytest.raises(RegionError, match="not free"):
        doorbells.take(5)
    doorbells.give_back(9)
    assert doorbells.take() == 9
    with pytest.raises(RegionError, match="not free"):
        doorbells.take(N_PEERS + 1)
    doorbells.end()


def test_next_kvgpud_gets_the_same_memory_and_doorbells(region: Region, tmp_path: Path) -> None:
    first = serve(region, tmp_path / "x.sock")
    device = IvshmemDevice(first.path)
    first.close()
    time.sleep(0.1)
    second = asyncio.run(Doorbells.connect(first.path))
    assert os.fstat(second.memory_fd).st_ino == region.inode
    device.write_doorbell(3 << 16)
    assert rings(second.eventfd(3))
    device.close()
    second.end()


def test_server_ends_when_kvgpud_says_so(region: Region, tmp_path: Path) -> None:
    doorbells = serve(region, tmp_path / "x.sock")
    device = IvshmemDevice(doorbells.path)
    doorbells.end()
    assert not doorbells.path.exists()
    assert device.connection.recv(8) == b""  # hung up: nobody holds the VM's memory for it
    device.close()


def test_server_alone_ends_after_its_time(region: Region, tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    served = server_module.Server(listener, region.fd, os.geteuid(), alone_ms=100)
    begin_s = time.monotonic()
    served.serve()
    assert 0.09 < time.monotonic() - begin_s < 5
    listener.close()


def test_stale_socket_is_no_server_and_is_replaced(region: Region, tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as nobody:
        nobody.bind(str(path))
    with pytest.raises(RegionError, match="does not answer"):
        asyncio.run(Doorbells.connect(path))
    doorbells = serve(region, path)
    IvshmemDevice(path).close()
    doorbells.end()
    with pytest.raises(RegionError, match="stop and start the VM"):
        asyncio.run(Doorbells.connect(path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_qemu_alone_comes_and_only_once(region: Region, tmp_path: Path) -> None:
    qemu, other = pwd.getpwnam("daemon").pw_uid, pwd.getpwnam("nobody").pw_uid
    tmp_path.chmod(0o711)
    doorbells = serve(region, tmp_path / "vm" / "x.sock", qemu)
    stat = doorbells.path.stat()
    assert (stat.st_uid, stat.st_mode & 0o777) == (qemu, 0o600)
    assert (doorbells.path.parent.stat().st_uid, doorbells.path.parent.stat().st_mode & 0o777) == (
        *(0, 0o711),
    )

    def come(uid: int) -> str:
        command = [sys.executable, "-S", "-c", AS_OTHER_USER, str(doorbells.path), str(uid)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert come(other) == "denied"
    doorbells.path.chmod(0o666)  # a mode can be changed: the server looks for itself
    assert come(other) == "0"
    assert come(qemu) == "8"
    assert come(qemu) == "0", "another VM's QEMU, after ours has ended"
    asyncio.run(Doorbells.connect(doorbells.path)).close()
    doorbells.end()


def test_nothing_that_a_client_says_disturbs(region: Region, tmp_path: Path) -> None:
    doorbells = serve(region, tmp_path / "x.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as loud:
        loud.connect(str(doorbells.path))
        loud.sendall(b"no protocol" * 100)
        with contextlib.suppress(OSError):
            while loud.recv(4096):
                pass
    IvshmemDevice(doorbells.path).close()
    doorbells.end()


# ---- with kvgpud


@pytest.fixture
def kick_worker(fake_worker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that end when they are kicked."""
    monkeypatch.setenv("FAKE_WORKER", "kick")


def server_path(qemu: FakeQemu, runtime_dir: Path) -> Path:
    return runtime_dir / "ivshmem" / f"{qemu.uuid}.sock"


@pytest.mark.usefixtures("kick_worker")
def test_guest_rings_its_worker_without_kvgpud(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            async with vm(daemon, api, Device.DOORBELL) as qemu:
                device = IvshmemDevice(server_path(qemu, tmp_path))
                assert os.fstat(device.memory_fd).st_size == GIB
                assert (await api.ask(VmListRequest()))["vms"][0]["device"] == "ivshmem-doorbell"
                welcome = await qemu.hello(b"a" * 16)
                assert UUID(bytes=welcome.vm_uuid) == qemu.uuid
                opened = await qemu.open(BELL_OPEN)
                assert opened.features == cf.FEATURE_DOORBELL
                other = await qemu.open(BELL_OPEN)
                assert {opened.doorbell, other.doorbell} == {1 << 16, 2 << 16}
                device.write_doorbell(opened.doorbell)
                frame = await qemu.frames.get()
                assert isinstance(frame.body, cf.Closed)
                assert frame.id == opened.session
                (left,) = await api.sessions()
                assert left["session"] == other.session
                assert (await api.ask(VmListRequest()))["vms"][0]["n_kicks"] == 0
                await qemu.say(Frame(cf.Kick(), other.session))  # an older guest's way still works
                await gone(api)
                assert (await api.ask(VmListRequest()))["vms"][0]["n_kicks"] == 1
                device.close()
                qemu.die()
                await api.ask(qemu.hook("release"))
                assert not server_path(qemu, tmp_path).exists()

    run(body)


@pytest.mark.usefixtures("kick_worker")
def test_guest_that_does_not_ask_is_told_no_doorbell(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            async with vm(daemon, api, Device.DOORBELL) as qemu:
                await qemu.hello(b"a" * 16)
                opened = await qemu.open()
                assert opened.features == 0
                await qemu.say(Frame(cf.Kick(), opened.session))
                await gone(api)
                await api.ask(qemu.hook("release"))
            async with vm(daemon, api) as plain:
                await plain.hello(b"a" * 16)
                opened = await plain.open(BELL_OPEN)
                assert (opened.features, opened.doorbell) == (0, 0)

    run(body)


@pytest.mark.usefixtures("kick_worker", "reaped")
def test_session_goes_on_over_a_restart_of_kvgpud(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path, keep_sessions_s=60) as daemon:
            api = await daemon.api()
            qemu = FakeQemu(tmp_path, Device.DOORBELL)
            await api.ask(qemu.hook("prepare"))
            device = IvshmemDevice(server_path(qemu, tmp_path))
            await qemu.start()
            await qemu.hello(b"a" * 16)
            opened = await qemu.open(BELL_OPEN)
            os.pwrite(device.memory_fd, b"left", opened.block_offset + (64 << 20))
        (record,) = (tmp_path / "sessions").glob("*.json")
        assert SessionRecord.model_validate_json(record.read_bytes()).doorbell == 1
        qemu._connected.clear()
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            await qemu.hello(b"a" * 16)
            await qemu.say(Frame(cf.Sessions((opened.session,))))
            assert [info["session"] for info in await api.sessions()] == [opened.session]
            assert os.pread(device.memory_fd, 4, opened.block_offset) == b"used"
            assert not os.pread(device.memory_fd, 4, opened.block_offset + (64 << 20)).strip(b"\0")
            new = await qemu.open(BELL_OPEN)
            assert new.doorbell == 2 << 16
            device.write_doorbell(opened.doorbell)
            while len(await api.sessions()) != 1:
                await asyncio.sleep(0.01)
            device.close()
            await api.ask(qemu.hook("release"))

    run(body)


@pytest.mark.usefixtures("fake_worker")
def test_vm_that_runs_already_keeps_its_memory(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            async with vm(daemon, api, Device.DOORBELL) as qemu:
                device = IvshmemDevice(server_path(qemu, tmp_path))
                with mmap.mmap(device.memory_fd, 4096):  # as QEMU has it
                    with pytest.raises(DaemonError, match=f"in use by process {os.getpid()}"):
                        await api.ask(qemu.hook("prepare"))
                    IvshmemDevice(server_path(qemu, tmp_path)).close()
                await api.ask(qemu.hook("prepare"))
                await api.ask(qemu.hook("release"))

    run(body)


@pytest.mark.usefixtures("fake_worker")
def test_more_memory_than_the_host_has_is_refused(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            qemu = FakeQemu(tmp_path, Device.DOORBELL, pinned_bytes=64 << 40)
            with pytest.raises(DaemonError, match=r"the host has .* left, the VM may take"):
                await api.ask(qemu.hook("prepare"))
            assert not server_path(qemu, tmp_path).exists()

    run(body)


@pytest.mark.usefixtures("fake_worker")
def test_vm_whose_server_is_gone_is_not_taken_up(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            qemu = FakeQemu(tmp_path, Device.DOORBELL)
            await api.ask(qemu.hook("prepare"))
        (await Doorbells.connect(server_path(qemu, tmp_path))).end()
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            assert (await api.ask(VmListRequest()))["vms"] == []
            with pytest.raises(DaemonError, match="stop and start the VM"):
                await api.ask(qemu.hook("reconnect"))
            await api.ask(qemu.hook("prepare"))  # as at its next start
            await api.ask(qemu.hook("release"))

    run(body)
