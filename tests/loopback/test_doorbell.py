# SPDX-License-Identifier: Apache-2.0
"""The doorbell, from the program's write to the worker: with library, agent, server and worker.

Only the device is played here: a file is its BAR 0, and who watches it does as QEMU does.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from framework.guest import agent
from framework.idle import Idle
from framework.ivshmem import IvshmemDevice
from framework.kvgpud import Api, FakeQemu, gone, kvgpud, run
from framework.loopback import BUILD, PROGRAMS, ROOT, Loopback
from framework.workers import prestarted_pids

from kvgpu.host.domain_xml import Device
from kvgpu.host.messages import VmListRequest

WAKEUP = ROOT / "tests" / "vm" / "wakeup.c"
REGISTER_OFF = 12
N_CALLS = 20
IDLE_S = 4.0


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("KVGPU_WORKER", str(BUILD / "host/worker/kvgpu-worker"))
    monkeypatch.setenv("KVGPU_SOFTWARE_GPU", str(BUILD / "host/software_gpu/libcuda.so.1"))
    with TemporaryDirectory(prefix="kvgpu-bell-") as name:
        yield Path(name)


class Bar0:
    """The registers of a device: a file, and a thread that looks at it as QEMU's trap would."""

    def __init__(self, folder: Path, device: IvshmemDevice) -> None:
        self.n_rings = 0
        self._device = device
        self._stopped = threading.Event()
        address = folder / "devices" / "0000:00:05.0"
        address.mkdir(parents=True)
        for name, text in (("vendor", "0x1af4"), ("device", "0x1110"), ("enable", "1")):
            (address / name).write_text(f"{text}\n")
        (address / "resource").write_text("0xfebd3000 0xfebd30ff 0x40200\n")
        (address / "resource0").write_bytes(bytes(mmap.PAGESIZE))
        (address / "resource2").symlink_to(f"/proc/{os.getpid()}/fd/{device.memory_fd}")
        fd = os.open(address / "resource0", os.O_RDWR)
        self._words = memoryview(mmap.mmap(fd, mmap.PAGESIZE)).cast("I")
        os.close(fd)
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        register = REGISTER_OFF // 4
        while not self._stopped.wait(0.0005):
            if value := self._words[register]:
                self._words[register] = 0
                self.n_rings += 1
                self._device.write_doorbell(value)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


@asynccontextmanager
async def guest(folder: Path, api: Api) -> AsyncIterator[tuple[FakeQemu, Bar0, dict[str, str]]]:
    """A VM with a doorbell; yields it with the environment of its programs."""
    qemu = FakeQemu(folder, Device.DOORBELL)
    await api.ask(qemu.hook("prepare"))
    device = IvshmemDevice(folder / "ivshmem" / f"{qemu.uuid}.sock")
    registers = Bar0(folder, device)
    try:
        async with agent(folder, qemu, "--devices", str(folder / "devices")) as socket:
            environment = {"KVGPU_SOCKET": socket, "LD_LIBRARY_PATH": str(BUILD / "guest/libcuda")}
            yield qemu, registers, os.environ | environment
    finally:
        registers.stop()
        device.close()


async def vm_info(api: Api) -> dict[str, Any]:
    (info,) = (await api.ask(VmListRequest()))["vms"]
    assert isinstance(info, dict)
    return info


def compiled(folder: Path) -> Path:
    program = folder / "wakeup"
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", WAKEUP, "-o", program, "-ldl"], check=True)
    return program


@contextmanager
def wakeup(folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    command = [str(compiled(folder)), str(N_CALLS)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), 60)
    assert line, "the program has ended"
    return line.strip()


def test_doorbell_program_computes_and_kvgpud_passes_no_kick(folder: Path) -> None:
    async def body() -> None:
        async with kvgpud(folder) as daemon:
            api = await daemon.api()
            async with guest(folder, api) as (qemu, registers, environment):
                process = await asyncio.create_subprocess_exec(
                    str(PROGRAMS / "vector_add"), env=environment
                )
                assert await asyncio.wait_for(process.wait(), 60) == 0
                with wakeup(folder, environment) as program:
                    await first_line(program)
                    assert registers.n_rings >= N_CALLS // 2, "most calls found the worker asleep"
                    (session,) = await api.sessions()
                    assert session["doorbell"] != 0
                    assert (await vm_info(api))["n_kicks"] == 0
                await gone(api)
                await api.ask(qemu.hook("release"))

    run(body, 120)


def test_doorbell_worker_does_nothing_while_idle(folder: Path) -> None:
    async def body() -> None:
        async with kvgpud(folder) as daemon:
            api = await daemon.api()
            async with guest(folder, api) as (qemu, registers, environment):
                with wakeup(folder, environment) as program:
                    await first_line(program)
                    (session,) = await api.sessions()
                    await asyncio.sleep(0.5)  # it spins a little first
                    n_rings = registers.n_rings
                    idle = Idle(session["worker_pid"])
                    await asyncio.sleep(IDLE_S)
                    idle.check()
                    assert registers.n_rings == n_rings
                await api.ask(qemu.hook("release"))

    run(body, 120)


def test_doorbell_of_a_worker_that_waited_for_its_session(folder: Path) -> None:
    async def body() -> None:
        async with kvgpud(folder, prestarted_workers=1) as daemon:
            api = await daemon.api()
            while not (waiting := prestarted_pids(folder)):
                await asyncio.sleep(0.02)
            await asyncio.sleep(1)  # until it has said so
            async with guest(folder, api) as (qemu, registers, environment):
                with wakeup(folder, environment) as program:
                    await first_line(program)
                    (session,) = await api.sessions()
                    assert session["worker_pid"] in waiting
                    assert registers.n_rings >= N_CALLS // 2
                    assert (await vm_info(api))["n_kicks"] == 0
                await gone(api, 10)
                await api.ask(qemu.hook("release"))

    run(body, 120)


def test_doorbell_rings_while_kvgpud_is_away(folder: Path) -> None:
    async def body() -> None:
        async with kvgpud(folder, keep_sessions_s=60) as first:
            api = await first.api()
            surroundings = guest(folder, api)
            qemu, registers, environment = await surroundings.__aenter__()
            running = wakeup(folder, environment)
            program = running.__enter__()
            while not await api.sessions() or registers.n_rings < 2:
                await asyncio.sleep(0.02)
        rung = registers.n_rings
        begin_s = time.monotonic()
        await first_line(program)  # the rest of its calls, without a kvgpud
        assert registers.n_rings > rung
        assert time.monotonic() - begin_s < 30
        async with kvgpud(folder) as second:
            api = await second.api()
            while (await vm_info(api))["state"] != "ready":
                await asyncio.sleep(0.02)
            assert len(await api.sessions()) == 1
            running.__exit__(None, None, None)
            await gone(api, 10)
            with wakeup(folder, environment) as program:
                await first_line(program)
            await gone(api, 10)
            await api.ask(qemu.hook("release"))
            await surroundings.__aexit__(None, None, None)

    run(body, 120)


def test_doorbell_vm_serves_an_older_guest(folder: Path) -> None:
    async def body() -> None:
        async with kvgpud(folder) as daemon:
            api = await daemon.api()
            async with guest(folder, api) as (qemu, registers, environment):
                older = environment | {"LD_LIBRARY_PATH": str(BUILD / "guest/libcuda/older")}
                with wakeup(folder, older) as program:
                    await first_line(program)
                    assert registers.n_rings >= N_CALLS // 2
                await gone(api, 10)
                await api.ask(qemu.hook("release"))

    run(body, 120)


class OlderAgent:
    """Between a program and its agent: passes all on, but one descriptor, as an older one does."""

    def __init__(self, path: Path, agent_path: str) -> None:
        self._ends = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        self._ends[0].bind(str(path))
        self._ends[0].listen()
        self._ends[1].connect(agent_path)
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def _carry(self) -> None:
        client, _ = self._ends[0].accept()
        agent_end = self._ends[1]
        while True:
            for end in select.select([client, agent_end], [], [])[0]:
                message, fds, _, _ = socket.recv_fds(end, 8192, 4)
                if not message:
                    client.close()
                    agent_end.close()
                    return
                to = agent_end if end is client else client
                socket.send_fds(to, [message], fds[:1])
                for fd in fds:
                    os.close(fd)


def test_doorbell_that_an_older_agent_does_not_hand_on_is_not_missed(folder: Path) -> None:
    async def body() -> None:
        async with kvgpud(folder) as daemon:
            api = await daemon.api()
            async with guest(folder, api) as (qemu, registers, environment):
                path = folder / "older.sock"
                OlderAgent(path, environment["KVGPU_SOCKET"])
                with wakeup(folder, environment | {"KVGPU_SOCKET": str(path)}) as program:
                    await first_line(program)
                    assert (await api.sessions())[0]["doorbell"] != 0
                    assert registers.n_rings == 0
                    assert (await vm_info(api))["n_kicks"] >= N_CALLS // 2
                await gone(api, 10)
                await api.ask(qemu.hook("release"))

    run(body, 120)


def test_worker_of_an_idle_program_of_the_host_does_nothing(host: Loopback, folder: Path) -> None:
    before = host.worker_pids()
    with host.start(compiled(folder), str(N_CALLS)) as program:
        try:
            assert program.stdout
            assert program.stdout.readline().strip().isdecimal()
            (worker,) = set(host.worker_pids()) - set(before)
            time.sleep(0.5)  # it spins a little first
            idle = Idle(worker)
            time.sleep(IDLE_S)
            idle.check()
        finally:
            program.terminate()  # `kvgpu run` passes it on
