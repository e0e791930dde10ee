# SPDX-License-Identifier: Apache-2.0
"""The real kvgpu-agentd between real client processes and a host that is played here."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import time
from pathlib import Path

import pytest
from framework.agent import REGION_BYTES, SUPERBLOCK, World, open_frame, said
from framework.waiting import eventually, wait_for_listener

from kvgpu.host import cuda_errors
from kvgpu.host.control_frames import (
    FEATURE_DEVICE_QUERIES,
    FEATURE_DOORBELL,
    Close,
    Closed,
    Facts,
    Frame,
    Kick,
    Open,
    Opened,
    Ping,
    Pong,
    Query,
    Refused,
    Welcome,
    decode,
)
from kvgpu.host.device_frames import DeviceQuery, DeviceReport


def test_open_is_answered_with_the_region(welcomed: World) -> None:
    client = welcomed.start_client()
    request = welcomed.host.open_session(9)
    assert said(client) == [Opened.TYPE, 77, 9, REGION_BYTES]
    assert request.pid == client.pid  # not the 1 that the client wrote
    assert request.uid == os.getuid()
    assert request.comm.startswith(b"client")


def test_killed_client_is_reported_within_two_seconds(welcomed: World) -> None:
    client = welcomed.start_client()
    welcomed.host.open_session(9)
    said(client)
    killed = time.monotonic()
    client.kill()
    assert welcomed.host.expect(Close).id == 9
    assert time.monotonic() - killed < 2


def test_forked_child_does_not_keep_the_session(welcomed: World) -> None:
    client = welcomed.start_client("fork")
    welcomed.host.open_session(9)
    said(client)
    client.kill()  # the child lives on and holds the connection
    assert welcomed.host.expect(Close).id == 9


def test_two_clients_with_the_same_request_number_get_their_own_session(welcomed: World) -> None:
    clients = [welcomed.start_client(), welcomed.start_client()]
    by_pid = {client.pid: client for client in clients}
    for session in (3, 4):
        pid = welcomed.host.open_session(session).pid
        assert said(by_pid[pid])[1:3] == [77, session]


def test_client_that_ends_before_opened_leaves_no_session(welcomed: World) -> None:
    client = welcomed.start_client()
    request = welcomed.host.expect(Open)
    client.kill()
    client.wait()
    time.sleep(0.2)  # the agent sees the end first
    welcomed.host.send(Opened(0, 1, 0, 9, 0, 4096, 4096, REGION_BYTES), request.id)
    assert welcomed.host.expect(Close).id == 9


def test_kick_passes_for_the_own_session_only(welcomed: World) -> None:
    with welcomed.connect() as client:
        client.send(open_frame())
        welcomed.host.open_session(9)
        assert decode(client.recv(8192)).id == 5
        client.send(Frame(Kick(), 9).encode())
        assert welcomed.host.expect(Kick).id == 9
        client.send(Frame(Kick(), 10).encode())
        assert client.recv(8192) == b""  # thrown out
    assert welcomed.host.expect(Close).id == 9


@pytest.mark.parametrize("message", [b"x", open_frame()[:-1], Frame(Close(), 1).encode()])
def test_client_that_breaks_the_protocol_is_thrown_out(welcomed: World, message: bytes) -> None:
    with welcomed.connect() as client:
        client.send(message)
        assert client.recv(8192) == b""
    assert welcomed.host.next_frame(0.2) is None


def test_refusal_reaches_the_client(welcomed: World) -> None:
    with welcomed.connect() as client:
        client.send(open_frame())
        request = welcomed.host.expect(Open)
        welcomed.host.send(Refused(2, "no memory left in the slice"), request.id)
        assert decode(client.recv(8192)) == Frame(Refused(2, "no memory left in the slice"), 5)


def test_host_ends_a_session(welcomed: World) -> None:
    with welcomed.connect() as client:
        client.send(open_frame())
        welcomed.host.open_session(9)
        client.recv(8192)
        welcomed.host.send(Closed(999, "worker crashed"), 9)
        assert decode(client.recv(8192)) == Frame(Closed(999, "worker crashed"), 9)
    assert welcomed.host.next_frame(0.2) is None  # it has ended: nothing to close


def test_open_waits_for_a_host_that_comes_later(world: World) -> None:
    world.start_agent()
    world.host.accept()  # not welcomed yet
    client = world.start_client()
    assert world.host.next_frame(0.5) is None
    world.host.welcome()
    world.host.open_session(9)
    assert said(client)[0] == Opened.TYPE


def test_version_refused_by_the_host_is_told_to_clients(world: World) -> None:
    world.start_agent()
    world.host.accept()
    world.host.send(Refused(803, "upgrade kvgpu-guest"))
    assert world.host.next_frame(0.2) is None
    with world.connect() as client:
        client.send(open_frame())
        assert decode(client.recv(8192)) == Frame(Refused(803, "upgrade kvgpu-guest"), 5)


def test_host_of_another_major_version_is_refused(world: World) -> None:
    world.start_agent()
    world.host.accept()
    world.host.send(Welcome(7, 0, 0, REGION_BYTES, bytes(16)))
    assert world.host.next_frame(0.2) is None
    with world.connect() as client:
        client.send(open_frame())
        answer = decode(client.recv(8192)).body
    assert isinstance(answer, Refused)
    assert answer.cuda_error == 803
    assert "upgrade the guest's" in answer.message


def test_facts_of_the_host_are_kept_for_whoever_asks(world: World) -> None:
    """A client learns the driver's version without a session; 0 while the host has not said it."""
    world.start_agent()
    world.host.accept()
    world.host.welcome()
    with world.connect() as early:
        early.send(Frame(Query(), 7).encode())
        assert decode(early.recv(8192)) == Frame(Facts(0, 0, 0, 0), 7)
    world.host.send(Facts(0, 2, 0, 12040))
    with world.connect() as client:
        client.send(open_frame())
        world.host.open_session(9)  # so the agent has read what came before
        decode(client.recv(8192))
        client.send(Frame(Query(), 8).encode())
        assert decode(client.recv(8192)) == Frame(Facts(0, 2, 0, 12040), 8)


def say_facts(world: World, facts: Facts) -> None:
    """Send what the host knows; return when the agent has read it."""
    world.host.send(facts)

    def is_known() -> bool:
        with world.connect() as client:
            client.send(Frame(Query(), 1).encode())
            return decode(client.recv(8192)) == Frame(facts, 1)

    assert eventually(is_known)


def test_devices_that_a_program_names_are_passed_on(welcomed: World) -> None:
    with welcomed.connect() as client:
        client.send(open_frame(visible=b"GPU-0d44,1"))
        assert welcomed.host.open_session(9).visible == b"GPU-0d44,1"


def test_questions_about_devices_find_their_way_back(welcomed: World) -> None:
    """With numbers of the agent's own: two clients may use the same ones."""
    say_facts(welcomed, Facts(0, 2, FEATURE_DEVICE_QUERIES, 13000))
    with welcomed.connect() as one, welcomed.connect() as other:
        one.send(Frame(DeviceQuery(0), 7).encode())
        first = welcomed.host.expect(DeviceQuery)
        other.send(Frame(DeviceQuery(1), 7).encode())
        second = welcomed.host.expect(DeviceQuery)
        assert first.id != second.id
        assert (first.body, second.body) == (DeviceQuery(0), DeviceQuery(1))
        welcomed.host.send(Refused(101, "no such device"), second.id)
        assert decode(other.recv(8192)) == Frame(Refused(101, "no such device"), 7)
        report = DeviceReport(
            *(0, 2, 0, 0, 1, 13000, 1 << 30, 1 << 20, bytes(16), b"0000:01:00.0", b"GPU", b""),
            *((9, 0), (), ((3, 41),)),
        )
        welcomed.host.send(report, first.id)
        assert decode(one.recv(8192)) == Frame(report, 7)


def test_older_host_and_absent_host_are_told_apart(world: World) -> None:
    agent = world.start_agent()
    wait_for_listener(world.socket_path, agent, socket.SOCK_SEQPACKET)
    with world.connect() as early:
        early.send(Frame(DeviceQuery(0), 1).encode())
        answer = decode(early.recv(8192)).body
        assert isinstance(answer, Refused)
        assert answer.cuda_error == cuda_errors.SYSTEM_NOT_READY
    world.host.accept()
    world.host.welcome()
    say_facts(world, Facts(0, 2, 0, 12040))
    with world.connect() as client:
        client.send(Frame(DeviceQuery(0), 2).encode())
        answer = decode(client.recv(8192)).body
        assert isinstance(answer, Refused)
        assert "upgrade" in answer.message


def test_garbage_from_the_host_is_skipped(welcomed: World) -> None:
    welcomed.host.connection.sendall(os.urandom(5000).replace(b"K", b"k"))
    # A header with a length that no frame has, then a cut-off but well-formed beginning.
    welcomed.host.connection.sendall(struct.pack("<IHHII", 0x4347564B, 5, 0, 1 << 30, 1))
    welcomed.host.send(Ping(), 3)
    assert welcomed.host.expect(Pong).id == 3


@pytest.mark.parametrize(
    "block", [(REGION_BYTES, 4096), (0, REGION_BYTES + 1), ((1 << 64) - 4096, 8192)]
)
def test_block_outside_the_region_is_not_passed_on(welcomed: World, block: tuple[int, int]) -> None:
    with welcomed.connect() as client:
        client.send(open_frame())
        request = welcomed.host.expect(Open)
        welcomed.host.send(Opened(0, 1, 0, 9, 0, *block, REGION_BYTES), request.id)
        assert isinstance(decode(client.recv(8192)).body, Refused)
    assert welcomed.host.expect(Close).id == 9


def test_idle_agent_uses_no_processor(welcomed: World) -> None:
    client = welcomed.start_client()  # a session is open, and nothing happens
    welcomed.host.open_session(9)
    said(client)
    pid = agent_pid(welcomed)
    ticks = cpu_ticks(pid)
    time.sleep(1)
    assert cpu_ticks(pid) - ticks <= 1


def agent_pid(world: World) -> int:
    """The peer of a connection to the agent's socket is whoever listens there."""
    with world.connect() as client:
        peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("<iII", peer)[0])


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_agent_without_a_device_refuses_at_once(world: World) -> None:
    (world.folder / "region").write_bytes(bytes(REGION_BYTES))  # no superblock
    agent = world.start_agent()
    wait_for_listener(world.socket_path, agent, socket.SOCK_SEQPACKET)
    with world.connect() as client:
        client.send(open_frame())
        answer = decode(client.recv(8192)).body
    assert isinstance(answer, Refused)
    assert answer.cuda_error == 100


def test_host_that_never_answers_an_open_is_said_to_the_client(world: World) -> None:
    world.start_agent("--answer-s=1")
    world.host.accept()
    world.host.welcome()
    with world.connect() as client:
        client.send(open_frame())
        request = world.host.expect(Open)
        answer = decode(client.recv(8192)).body
        assert isinstance(answer, Refused)
        assert answer.cuda_error == 802  # CUDA_ERROR_SYSTEM_NOT_READY
        assert "within 1 s" in answer.message
        assert "kvgpu host status" in answer.message
        world.host.send(Opened(0, 1, 0, 9, 0, 4096, 4096, REGION_BYTES), request.id)
        assert world.host.expect(Close).id == 9  # too late: nobody waits for it


def make_device(folder: Path, name: str, vendor: str, **resources: int) -> None:
    device = folder / name
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "device").write_text("0x1110\n")
    (device / "enable").write_text("0\n")
    for resource, n_bytes in resources.items():
        (device / resource).write_bytes(SUPERBLOCK.ljust(n_bytes, b"\0"))


@pytest.mark.parametrize(
    ("told", "n_bytes"), [("wb", REGION_BYTES), ("wc", 2 * REGION_BYTES), ("uc", 2 * REGION_BYTES)]
)
def test_write_combining_resource_where_write_back_is_not_to_be_had(
    world: World, monkeypatch: pytest.MonkeyPatch, told: str, n_bytes: int
) -> None:
    """Their sizes tell the two resources apart."""
    monkeypatch.setenv("KVGPU_MEMORY_TYPE", told)
    devices = world.folder / "devices"
    sizes = {"resource2": REGION_BYTES, "resource2_wc": 2 * REGION_BYTES}
    make_device(devices, "0000:00:03.0", "0x8086", resource2=4 * REGION_BYTES)
    make_device(devices, "0000:00:04.0", "0x1af4", **sizes)
    world.start_agent(f"--devices={devices}", looks_for_region=True)
    world.host.accept()
    world.host.welcome()
    client = world.start_client()
    world.host.open_session(9)
    assert said(client) == [Opened.TYPE, 77, 9, n_bytes]
    assert (devices / "0000:00:04.0" / "enable").read_text() == "1"
    print(f"figure: told {told}, the client got the resource of {n_bytes} bytes")


def test_device_without_a_write_combining_resource_is_used_as_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVGPU_MEMORY_TYPE", "uc")
    make_device(world.folder / "devices", "0000:00:04.0", "0x1af4", resource2=REGION_BYTES)
    world.start_agent(f"--devices={world.folder / 'devices'}", looks_for_region=True)
    world.host.accept()
    world.host.welcome()
    client = world.start_client()
    world.host.open_session(9)
    assert said(client) == [Opened.TYPE, 77, 9, REGION_BYTES]


def test_device_that_is_plugged_in_later_is_taken_and_another_in_its_place_too(
    world: World,
) -> None:
    devices = world.folder / "devices"
    devices.mkdir()
    world.start_agent(f"--devices={devices}", looks_for_region=True)
    world.host.accept()
    world.host.welcome()
    for n_bytes in (REGION_BYTES, 2 * REGION_BYTES):
        make_device(devices, "0000:00:04.0", "0x1af4", resource2=n_bytes)
        client = world.start_client()
        world.host.open_session(9)
        assert said(client) == [Opened.TYPE, 77, 9, n_bytes]
        client.kill()
        assert world.host.expect(Close).id == 9
        shutil.rmtree(devices / "0000:00:04.0")


# ---- the doorbell: BAR 0 of the device, and its neighbours' addresses

OWN_PAGE = ("0x0 0x0 0x0", "0xfebd1000 0xfebd10ff 0x40200", "0xfebd2000 0xfebd2fff 0x40200")


@pytest.mark.parametrize(
    ("bar0", "asks", "gets"),
    [
        ("0xfebd3000 0xfebd30ff 0x40200", True, True),
        ("0xfebd3000 0xfebd30ff 0x40200", False, False),
        ("0xfebd3100 0xfebd31ff 0x40200", True, False),  # not at the beginning of its page
        ("0xfebd2000 0xfebd20ff 0x40200", True, False),  # another device has registers there
        ("0x0 0x0 0x0", True, False),  # no address
        ("", True, False),  # not known
    ],
)
def test_client_that_asks_gets_the_doorbell_register(
    world: World, bar0: str, asks: bool, gets: bool
) -> None:
    devices = world.folder / "devices"
    name = "0000:00:04.0"
    make_device(devices, name, "0x1af4", resource0=4096, resource2=REGION_BYTES)
    if bar0:
        (devices / name / "resource").write_text(f"{bar0}\n0xfebd8000 0xfebd8fff 0x40200\n")
    make_device(devices, "0000:00:03.0", "0x8086")
    (devices / "0000:00:03.0" / "resource").write_text("\n".join(OWN_PAGE) + "\n")
    world.start_agent(f"--devices={devices}", looks_for_region=True)
    world.host.accept()
    world.host.welcome()
    with world.connect() as client:
        asked = Open(0, 2, FEATURE_DOORBELL if asks else 0, 1 << 45, 0, 0, b"test")
        client.send(Frame(asked, 5).encode())
        request = world.host.expect(Open)
        assert isinstance(request.body, Open)
        assert request.body.features == (FEATURE_DOORBELL if gets else 0)
        doorbell = 3 << 16 if gets else 0
        answer = Opened(0, 2, request.body.features, 9, doorbell, 4096, 4096, REGION_BYTES)
        world.host.send(answer, request.id)
        message, fds, _, _ = socket.recv_fds(client, 8192, 4)
    assert decode(message).body == answer
    wanted = ["resource2", "resource0"] if gets else ["resource2"]
    inodes = [(devices / name / resource).stat().st_ino for resource in wanted]
    assert [os.fstat(fd).st_ino for fd in fds] == inodes
    for fd in fds:
        os.close(fd)


def test_host_that_promises_a_doorbell_nobody_has_does_no_harm(welcomed: World) -> None:
    with welcomed.connect() as client:
        client.send(open_frame())
        request = welcomed.host.expect(Open)
        answer = Opened(0, 2, FEATURE_DOORBELL, 9, 3 << 16, 4096, 4096, REGION_BYTES)
        welcomed.host.send(answer, request.id)
        _, fds, _, _ = socket.recv_fds(client, 8192, 4)
        assert len(fds) == 1
        os.close(fds[0])
