# SPDX-License-Identifier: Apache-2.0
"""One kvgpu-worker: started as PROTOCOL.md §5 says, asked to end or killed, always waited for."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvgpu.host import cuda_errors
from kvgpu.host.control_frames import End, Failed, Frame, Ping, Pong, Ready
from kvgpu.host.inventory import worker_environment
from kvgpu.host.packet_socket import PacketSocket

_log = logging.getLogger(__name__)

# Above the numbers the worker expects (3 to 6), so that dup2 onto those cannot hit a source.
_FIRST_SAFE_FD = 10


@dataclass(frozen=True, slots=True)
class WorkerHandle:
    """What kvgpud holds of a worker; WorkerProcess owns the descriptors from its beginning on."""

    pid: int
    pidfd: int
    control: socket.socket
    kick_fd: int
    is_child: bool  # False: an earlier kvgpud started it, and somebody else reaps it


class WorkerProcess:
    """A running worker. `started` completes at READY or death, `reaped` when nothing is left."""

    def __init__(
        self,
        process: WorkerHandle,
        grace_s: float,
        on_request: Callable[[Frame], None],
    ) -> None:
        """Watch `process`; `on_request` gets the frames that concern extents."""
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = loop.create_future()
        self.reaped: asyncio.Future[None] = loop.create_future()
        self.is_ready = False
        self.exit_status: int | None = None  # negative: the signal that killed it
        self.pid = process.pid
        self.pidfd = process.pidfd
        self.kick_fd = process.kick_fd
        self._is_child = process.is_child
        self._failure: Failed | None = None
        self._grace_s = grace_s
        self._on_request = on_request
        self._is_ending = False
        loop.add_reader(self.pidfd, self._reap)
        self._control = PacketSocket(
            process.control, f"worker {self.pid}", self._on_frame, self.end_after_grace
        )

    def send(self, frame: Frame) -> None:
        self._control.send(frame)

    def kick(self) -> None:
        """Wake the worker: it looks at its command ring."""
        if self.reaped.done():
            return
        # Whoever else has the eventfd shares its flags and may have made it block.
        os.set_blocking(self.kick_fd, False)
        with contextlib.suppress(BlockingIOError):  # the counter is full: kicked already
            os.eventfd_write(self.kick_fd, 1)

    def end(self) -> None:
        """Ask the worker to end; kill it after the grace."""
        self._control.send(Frame(End()))
        self._control.close()
        self.end_after_grace()

    def leave(self) -> None:
        """Let go of the worker, which goes on for the next kvgpud."""
        asyncio.get_running_loop().remove_reader(self.pidfd)
        self._control.close()
        os.close(self.pidfd)
        os.close(self.kick_fd)

    def end_after_grace(self) -> None:
        if not self.reaped.done() and not self._is_ending:
            self._is_ending = True
            asyncio.get_running_loop().call_later(self._grace_s, self._kill)

    def failure(self) -> tuple[int, str]:
        """Return CUresult and reason of a worker that has ended (PROTOCOL.md §5)."""
        if self._failure:
            return cuda_errors.SYSTEM_DRIVER_MISMATCH, self._failure.message
        if not self._is_child:
            return cuda_errors.UNKNOWN, "the worker has ended"
        if self.exit_status is None:
            return cuda_errors.UNKNOWN, "the worker gave no sign of life"
        if self.exit_status < 0:
            name = signal.Signals(-self.exit_status).name
            return cuda_errors.UNKNOWN, f"the worker was killed by {name}"
        return cuda_errors.UNKNOWN, f"the worker ended with status {self.exit_status}"

    def _on_frame(self, frame: Frame) -> None:
        match frame.body:
            case Ready():
                self.is_ready = True
                if not self.started.done():
                    self.started.set_result(None)
            case Failed() as failure:
                self._failure = failure
                _log.warning("worker %d: %s", self.pid, failure.message)
            case Ping():
                self.send(Frame(Pong(), frame.id))
            case _:
                self._on_request(frame)

    def _kill(self) -> None:
        if not self.reaped.done():
            _log.warning("worker %d: did not end by itself, killed", self.pid)
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def _reap(self) -> None:
        if self._is_child:
            result = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
            assert result is not None  # without WNOHANG there is one
            exited = result.si_code == os.CLD_EXITED
            self.exit_status = result.si_status if exited else -result.si_status
        asyncio.get_running_loop().remove_reader(self.pidfd)
        os.close(self.pidfd)
        self._control.drain()  # its last words
        self._control.close()
        os.close(self.kick_fd)
        self.reaped.set_result(None)
        if not self.started.done():
            self.started.set_result(None)


def start_worker(
    command: list[str], region_fd: int, log_path: Path, extra: socket.socket | None
) -> WorkerHandle:
    """Start `command`; `extra` becomes its descriptor 6. Raises OSError.

    That is where it waits for the next kvgpud, or in the byte-stream form its data socket.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.ExitStack() as undo:  # if a step fails
        undo.callback(ours.close)
        with theirs:
            kick_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, kick_fd)
            fds = [theirs.fileno(), region_fd, kick_fd]
            if extra:
                fds.append(extra.fileno())
            pid = _spawn(command, fds, log_path)
        undo.callback(_kill_and_wait, pid)
        pidfd = os.pidfd_open(pid)
        undo.pop_all()
    return WorkerHandle(pid, pidfd, ours, kick_fd, is_child=True)


def _kill_and_wait(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _spawn(command: list[str], fds: list[int], log_path: Path) -> int:
    """Start `command` with `fds` as 3, 4, 5... and everything else closed; return its pid."""
    copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_SAFE_FD) for fd in fds]
    try:
        log_flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        return os.posix_spawn(
            command[0],
            command,
            worker_environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, str(log_path), log_flags, 0o640),
                (os.POSIX_SPAWN_DUP2, 2, 1),
                *((os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(copies, start=3)),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGPIPE),
        )
    finally:
        for fd in copies:
            os.close(fd)
