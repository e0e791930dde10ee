# SPDX-License-Identifier: Apache-2.0
"""Kicks of an eventfd that its other holders work against."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from kvgpu.host import eventfd_kick
from kvgpu.host.errors import ConfigError

# As fast as it can: fills the counter and lets writes block, then empties it.
ATTACKER = """
import fcntl, os, sys
fd = int(sys.argv[1])
while True:
    try:
        os.eventfd_write(fd, (1 << 64) - 2)
    except BlockingIOError:
        pass
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)
"""

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def fd() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    yield fd
    os.close(fd)


def test_each_kick_counts_and_wakes_who_waits(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert not poll.poll(0)
    for _ in range(3):
        eventfd_kick.kick(fd)
    assert poll.poll(0)
    assert os.eventfd_read(fd) == 3


def test_full_counter_of_one_that_blocks_holds_nobody_up(fd: int) -> None:
    os.set_blocking(fd, True)
    os.eventfd_write(fd, (1 << 64) - 2)
    for _ in range(3):
        eventfd_kick.kick(fd)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(0)


def test_holder_who_changes_the_flags_all_the_time_holds_nobody_up(fd: int) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ATTACKER, str(fd)], pass_fds=[fd]) as other:
        try:
            end_s = time.monotonic() + 2
            while time.monotonic() < end_s:
                eventfd_kick.kick(fd)
            assert other.poll() is None
        finally:
            other.kill()


def test_what_is_no_eventfd_is_an_error() -> None:
    with open("/dev/null", "wb") as file, pytest.raises(OSError, match="Invalid argument"):
        eventfd_kick.kick(file.fileno())


def test_host_that_allows_no_kicks_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    eventfd_kick._reader.cache_clear()
    monkeypatch.setattr(eventfd_kick, "_SYS_IO_SETUP", 100_000)
    with pytest.raises(ConfigError, match=r"Function not implemented.*aio-max-nr"):
        eventfd_kick.prepare()
