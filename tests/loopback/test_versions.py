# SPDX-License-Identifier: Apache-2.0
"""Guest and host of different releases: an older minor version works, another major is refused."""

from __future__ import annotations

import array
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from framework.loopback import BUILD, PROGRAMS, Loopback, loopback

from kvgpu.host import control_frames as cf
from kvgpu.host.control_frames import Frame

OLDER_LIBRARY = BUILD / "guest/libcuda/older"
ROOT = Path(__file__).resolve().parents[2]

NEWEST = (
    "import ctypes, sys\n"
    "cuda = ctypes.CDLL('libcuda.so.1')\n"
    "assert cuda.cuInit(0) == 0\n"
    "memory, size = ctypes.c_uint64(), ctypes.c_size_t(2 << 20)\n"
    "pinned, node_0 = 1, (3, 0)\n"
    "properties = (ctypes.c_int * 16)(pinned, 0, *node_0)\n"
    "create = cuda.cuMemCreate\n"
    "code = create(ctypes.byref(memory), size, properties, ctypes.c_uint64(0))\n"
    "assert code == int(sys.argv[1]), code\n"
    "assert [cuda.cuGLInit() for _ in range(3)] == [801] * 3\n"
    # Waits for a reply: what was sent before has been read, too.
    "context = ctypes.c_void_p()\n"
    "assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0\n"
)


@pytest.fixture(scope="module")
def older_guest() -> Iterator[Loopback]:
    """A host of this release, and programs with the library of the one before."""
    with loopback(KVGPU_LIBCUDA_DIR=str(OLDER_LIBRARY)) as running:
        yield running


def minor_of_newest_opcode() -> int:
    recorded = (ROOT / "tests/data/opcodes.tsv").read_text().splitlines()
    return max(int(line.split(".")[1]) for line in recorded if line.startswith("# protocol 0."))


def test_older_guest_lacks_the_newest_opcode(older_guest: Loopback) -> None:
    """Else the tests of older guests would prove nothing."""
    assert minor_of_newest_opcode() == cf.PROTOCOL_MINOR
    older_guest.check(sys.executable, "-c", NEWEST, "801")
    log = older_guest.logs()
    assert f"speaks protocol 0.{cf.PROTOCOL_MINOR - 1}, features {cf.FEATURES:#x}" in log


def test_guest_of_this_release_has_the_newest_opcode_and_feature() -> None:
    with loopback() as host:
        host.check(sys.executable, "-c", NEWEST, "0")
        log = host.logs()
    assert f"speaks protocol 0.{cf.PROTOCOL_MINOR}, features {cf.FEATURES:#x}" in log
    assert log.count("the program calls cuGLInit, which is not served") == 1


@pytest.mark.parametrize("program", ["demo", "hostfunc", "capture"])
def test_older_guest_works_against_this_host(older_guest: Loopback, program: str) -> None:
    older_guest.check(PROGRAMS / program)


@pytest.mark.parametrize("cases", ["memory_1d*", "threads*", "kernel parameter*"])
def test_older_guest_runs_the_driver_s_cases(older_guest: Loopback, cases: str) -> None:
    output = older_guest.check(BUILD / "tests/loopback/driver_cases", f"--test-case={cases}")
    assert "SUCCESS" in output
    assert "test cases: 0" not in output


def run_against(answer: bytes, fds: list[int]) -> subprocess.CompletedProcess[str]:
    """Run cuInit against a host that answers the library's OPEN with these bytes."""
    path = f"/tmp/kvgpu-versions-{os.getpid()}.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(8192)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
            connection.sendmsg([answer], [rights] if fds else [])
            connection.recv(8192)  # the library hangs up

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        return subprocess.run(
            [sys.executable, "-c", "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"],
            env={"LD_LIBRARY_PATH": str(BUILD / "guest/libcuda"), "KVGPU_SOCKET": path},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    finally:
        thread.join()
        listener.close()
        os.unlink(path)


def test_host_of_another_major_is_refused_by_the_library() -> None:
    opened = cf.Opened(cf.PROTOCOL_MAJOR + 7, 0, 0, 1, 0, 0, 16 << 20, 256 << 20)
    done = run_against(Frame(opened, 1).encode(), [])
    assert done.stdout.strip() == "803"
    assert "the host speaks protocol 7.x" in done.stderr
    assert "upgrade the guest's kvgpu-guest package" in done.stderr


def test_library_of_another_major_is_refused_by_the_host(host: Loopback) -> None:
    """Every side that could be the older one is told so: here the host."""
    script = (
        "import os, socket\n"
        "from kvgpu.host import control_frames as cf\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.connect(os.environ['KVGPU_SOCKET'])\n"
        "open = cf.Open(cf.PROTOCOL_MAJOR + 1, 0, 0, cf.WINDOWS[0], 1, 2, b'newer')\n"
        "s.send(cf.Frame(open, 5).encode())\n"
        "print(cf.decode(s.recv(8192)).body)\n"
    )
    said = host.check(sys.executable, "-c", script)
    assert said.startswith("Refused(cuda_error=803")
    assert "upgrade the host's kvgpu package" in said
