# SPDX-License-Identifier: Apache-2.0
"""Sessions without shared memory against real workers: hostile guests, and every way they end."""

from __future__ import annotations

import os
import signal
import struct
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from framework.kvgpud import OPEN, gone, kvgpud, run, vm
from framework.life import start_steady
from framework.loopback import BUILD, PROGRAMS, loopback
from framework.waiting import eventually

from kvgpu.host import control_frames as cf
from kvgpu.host.control_frames import Frame, StreamForm
from kvgpu.host.domain_xml import Device
from kvgpu.host.ivshmem.region import region_path

SHARE, DATA, RECORDS, EVENTS, CREDIT, STATUS, CALLBACK_DONE = range(32, 39)
STREAM_OPEN = replace(OPEN, features=cf.FEATURE_BYTE_STREAM)
SLAB_OFF = 2 << 20
LINE = struct.Struct("<QQ64s")
HELLO = struct.pack("<QIHHQIIII", 0, 40, 1, 0, 7, 0, 0, cf.PROTOCOL_MINOR, 0).ljust(64, b"\0")
NO_POOL = "prestarted_workers = 0\n"  # so that kvgpud has one worker for a child


def share(off: int, size: int, on: int = 1) -> bytes:
    return struct.pack("<QQQ", off, size, on)


@pytest.fixture
def real_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGPU_WORKER", str(BUILD / "host/worker/kvgpu-worker"))
    monkeypatch.setenv("KVGPU_SOFTWARE_GPU", str(BUILD / "host/software_gpu/libcuda.so.1"))


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    # Not pytest's: a socket's path has 107 bytes.
    with tempfile.TemporaryDirectory(prefix="kvgpu-") as folder:
        yield Path(folder)


@pytest.mark.usefixtures("real_worker")
@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([(SHARE, b"\0" * 23)], "too short"),
        ([(SHARE, share(0, 4096))], "not its own"),
        ([(SHARE, share(SLAB_OFF, 15 << 20))], "not its own"),
        ([(SHARE, share(SLAB_OFF + 1, 64))], "not its own"),
        ([(SHARE, share(SLAB_OFF, 0))], "not its own"),
        ([(SHARE, share(2**64 - 64, 128))], "not its own"),
        ([(SHARE, share(SLAB_OFF, 4096)), (SHARE, share(SLAB_OFF + 64, 64))], "not its own"),
        ([(SHARE, share(SLAB_OFF, 4096, 0))], "what is not shared"),
        ([(DATA, LINE.pack(SLAB_OFF, 1, b"x" * 64))], "not shared"),
        ([(SHARE, share(SLAB_OFF, 64)), (DATA, b"x" * 79)], "half a line"),
        ([(RECORDS, b"\0" * 64)], "bad length"),
        ([(RECORDS, HELLO + b"x")], "without a header"),
        ([(RECORDS, HELLO[:8] + struct.pack("<I", 1 << 20) + HELLO[12:])], "bad length"),
        ([(RECORDS, HELLO[:12] + struct.pack("<HH", 9999, 1) + HELLO[16:])], "opcode"),
        ([(CREDIT, struct.pack("<Q", 1))], "credit"),
        ([(EVENTS, HELLO)], "not the guest's"),
        ([(47, b"")], "not the guest's"),
    ],
)
def test_hostile_frame_ends_that_session_with_a_reason_and_no_other(
    runtime_dir: Path, frames: list[tuple[int, bytes]], reason: str
) -> None:
    async def body() -> None:
        async with kvgpud(runtime_dir) as daemon:
            api = await daemon.api()
            async with vm(daemon, api, device=Device.NONE) as qemu:
                await qemu.hello(b"a" * 16)
                hostile = await qemu.open(STREAM_OPEN)
                other = await qemu.open(STREAM_OPEN)
                assert hostile.features == cf.FEATURE_BYTE_STREAM
                assert not region_path(qemu.uuid).exists()
                block = hostile.block_offset
                for kind, payload in frames:
                    if kind in (SHARE, DATA) and len(payload) in (24, LINE.size):
                        (off,) = struct.unpack_from("<Q", payload)
                        off = (off + block) % 2**64 if off < 1 << 40 else off
                        payload = struct.pack("<Q", off) + payload[8:]
                    await qemu.say(Frame(StreamForm(kind, payload), hostile.session))
                frame = await qemu.frames.get()
                assert frame.id == hostile.session
                assert isinstance(frame.body, cf.Closed)
                assert reason in frame.body.message
                await qemu.say(Frame(StreamForm(RECORDS, HELLO), other.session))
                answer = await qemu.frames.get()
                assert isinstance(answer.body, StreamForm)
                assert (answer.id, answer.body.frame_type) == (other.session, EVENTS)
                qemu.die()
            await gone(api)

    run(body)


def children(parent: int, name: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)
        except OSError:
            continue
        if fields[0].endswith(name) and int(fields[1].split()[1]) == parent:
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("who", ["kvgpu-worker", "kvgpu-agentd"])
def test_death_of_either_end_gives_the_program_an_error(who: str) -> None:
    with loopback(config=NO_POOL, KVGPU_TRANSPORT="stream") as host:
        process = host.start(PROGRAMS / "spin", "60")
        assert eventually(lambda: len(host.worker_pids()) == 1, 30), host.logs()
        time.sleep(1)
        (victim,) = children(host.kvgpud_pid, who)
        os.kill(victim, signal.SIGKILL)
        output, errors = process.communicate(timeout=60)
        assert process.returncode != 0
        assert "the session has ended" in errors, (output, errors)
        assert eventually(lambda: not host.worker_pids(), 10)


def test_killed_program_leaves_no_worker() -> None:
    with loopback(config=NO_POOL, KVGPU_TRANSPORT="stream") as host:
        process = host.start(PROGRAMS / "spin", "60")
        assert eventually(lambda: len(host.worker_pids()) == 1, 30), host.logs()
        time.sleep(0.5)
        (program,) = children(process.pid, "spin")
        os.kill(program, signal.SIGKILL)
        assert eventually(lambda: not host.worker_pids(), 10)
        process.communicate(timeout=20)


def test_idle_session_uses_no_processor() -> None:
    """Agent and worker sleep while a program with pinned memory does nothing."""
    script = (
        "import ctypes, time\n"
        "cuda = ctypes.CDLL('libcuda.so.1')\n"
        "context, pinned = ctypes.c_void_p(), ctypes.c_void_p()\n"
        "assert cuda.cuInit(0) == 0\n"
        "assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0\n"
        "assert cuda.cuCtxSetCurrent(context) == 0\n"
        "assert cuda.cuMemHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(1 << 20), 0) == 0\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with loopback(KVGPU_TRANSPORT="stream") as host:
        process = host.start("/usr/bin/python3", "-c", script)
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        time.sleep(1)
        ends = [*host.worker_pids(), *children(host.kvgpud_pid, "kvgpu-agentd")]
        assert len(ends) == 2
        before = [ticks(pid) for pid in ends]
        time.sleep(3)
        spent_s = [
            (ticks(pid) - old) / os.sysconf("SC_CLK_TCK")
            for pid, old in zip(ends, before, strict=True)
        ]
        process.terminate()
        process.communicate(timeout=20)
        print("figure: idle byte-stream session, processor share of worker and agent:", spent_s)
        assert max(spent_s) < 3 * 0.03


def test_agent_of_a_run_ends_with_the_kvgpud_that_started_it() -> None:
    with loopback(config=NO_POOL, KVGPU_TRANSPORT="stream") as host:
        process = start_steady(host, 60)
        (agent,) = children(host.kvgpud_pid, "kvgpu-agentd")
        host.stop_kvgpud(signal.SIGKILL)
        assert eventually(lambda: not Path(f"/proc/{agent}").exists(), 5)
        process.communicate(timeout=20)
        assert process.returncode == 1, "its session is gone, too"


def ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])
