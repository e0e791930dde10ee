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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvgpu.host import cuda_errors, eventfd_kick
from kvgpu.host.complaints import plain
from kvgpu.host.confinement import Confinement
from kvgpu.host.control_frames import (
    PROTOCOL_MAJOR,
    End,
    Failed,
    Frame,
    Ping,
    Pong,
    Prestarted,
    Ready,
)
from kvgpu.host.inventory import worker_environment
from kvgpu.host.packet_socket import PacketSocket
from kvgpu.host.processes import kill

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
    confinement: Confinement
    is_child: bool  # False: an earlier kvgpud started it, and somebody else reaps it


class WorkerProcess:
    """A running worker. `started` completes at READY or death, `reaped` when nothing is left.

    Of one that was started before its session `prestarted` completes at PRESTARTED or death.
    """

    def __init__(
        self,
        process: WorkerHandle,
        grace_s: float,
        on_request: Callable[[Frame], None],
    ) -> None:
        """Watch `process`; `on_request` gets the frames that concern extents and shares."""
        loop = asyncio.get_running_loop()
        self.prestarted: asyncio.Future[None] = loop.create_future()
        self.started: asyncio.Future[None] = loop.create_future()
        self.reaped: asyncio.Future[None] = loop.create_future()
        self.is_ready = False
        self.exit_status: int | None = None  # negative: the signal that killed it
        self.pid = process.pid
        self.pidfd = process.pidfd
        self.kick_fd = process.kick_fd
        self.confinement = process.confinement
        self._ran_out_of_memory = False
        self._is_child = process.is_child
        self._failure: Failed | None = None
        self._grace_s = grace_s
        self._on_request = on_request
        self._is_ending = False
        loop.add_reader(self.pidfd, self._reap)
        self._control = PacketSocket(
            process.control,
            f"worker {self.pid}",
            self._on_frame,
            self.end_after_grace,
            takes_fd=True,
        )

    def send(self, frame: Frame, fds: Sequence[int] = ()) -> None:
        self._control.send(frame, fds)

    def assign(self, frame: Frame, fds: list[int], on_request: Callable[[Frame], None]) -> None:
        """Give a worker that waits its session; `on_request` as for others from the beginning."""
        self._on_request = on_request
        self._control.send(frame, fds)

    def replace_kick_fd(self, fd: int) -> None:
        """Let an eventfd that others may write, too, be what wakes the worker."""
        os.close(self.kick_fd)
        self.kick_fd = os.dup(fd)

    def kick(self) -> None:
        """Wake the worker: it looks at its command ring."""
        if self.reaped.done():
            return
        try:
            eventfd_kick.kick(self.kick_fd)
        except OSError as error:  # whoever waits for the worker must not do so for ever
            _log.error("worker %d: cannot be woken, ended: %s", self.pid, error)
            self.end()

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
        if self._ran_out_of_memory:
            reason = "the worker was killed: worker_memory of the host allows it no more memory"
            return cuda_errors.OUT_OF_MEMORY, reason
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
                _complete(self.started)
            case Prestarted(major=major):
                if major == PROTOCOL_MAJOR:
                    _complete(self.prestarted)
                else:
                    self._failure = Failed(
                        cuda_errors.SYSTEM_DRIVER_MISMATCH,
                        f"the worker speaks protocol {major}, kvgpud {PROTOCOL_MAJOR}: restart it",
                    )
                    self.end()
            case Failed() as failure:  # its last words: one that does not end of itself is ended
                self._failure = Failed(failure.cuda_error, plain(failure.message))
                _log.warning("worker %d: %s", self.pid, self._failure.message)
                self.end()
            case Ping():
                self.send(Frame(Pong(), frame.id))
            case _:
                self._on_request(frame)
        for fd in frame.fds:  # in a thread: the end of the last one may take its time
            asyncio.get_running_loop().run_in_executor(None, os.close, fd)

    def _kill(self) -> None:
        if not self.reaped.done():
            _log.warning("worker %d: did not end by itself, killed", self.pid)
            kill(self.pidfd)

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
        self._ran_out_of_memory = self.confinement.ran_out_of_memory()
        self.confinement.release()
        for future in (self.reaped, self.started, self.prestarted):
            _complete(future)


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def start_worker(
    command: list[str],
    region_fd: int | None,
    log_path: Path,
    extra: socket.socket | None,
    confinement: Confinement,
    kick_fd: int | None = None,
) -> WorkerHandle:
    """Start `command`; `extra` becomes its descriptor 6. Raises OSError.

    That is where it waits for the next kvgpud, or in the byte-stream form its data socket. Without
    a region both are to come. `kick_fd`: an eventfd that others may write, too; by default one of
    its own. The confinement is released if the worker cannot be started.
    """
    with contextlib.ExitStack() as undo:  # if a step fails
        undo.callback(confinement.release)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(ours.close)
        with theirs:
            if kick_fd is None:
                kick_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            else:
                kick_fd = os.dup(kick_fd)
            undo.callback(os.close, kick_fd)
            fds = [theirs.fileno(), kick_fd, kick_fd, kick_fd]
            if region_fd is not None:
                fds = [theirs.fileno(), region_fd, kick_fd, *([extra.fileno()] if extra else [])]
            pid = _spawn([*command, *confinement.options()], fds, log_path)
            undo.callback(_kill_and_wait, pid)
        confinement.enter(pid)
        pidfd = os.pidfd_open(pid)
        undo.pop_all()
    return WorkerHandle(pid, pidfd, ours, kick_fd, confinement, is_child=True)


def _kill_and_wait(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _spawn(command: list[str], fds: list[int], log_path: Path) -> int:
    """Start `command` with `fds` as 3, 4, 5... and everything else closed; return its pid."""
    log_fd = _open_log(log_path)
    copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_SAFE_FD) for fd in fds]
    try:
        return os.posix_spawn(
            command[0],
            command,
            worker_environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log_fd, 1),
                (os.POSIX_SPAWN_DUP2, log_fd, 2),
                *((os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(copies, start=3)),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGPIPE),
        )
    finally:
        for fd in (log_fd, *copies):
            os.close(fd)


def _open_log(path: Path) -> int:
    """Open a worker's log; a disk that is full costs the log, not the session."""
    # The worker reads there which assertions its driver has seen fail.
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    try:
        log_fd = os.open(path, flags, 0o640)
    except OSError as error:
        _log.error("%s: %s; the session goes on without a log", path, error.strerror)
        log_fd = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
    try:
        return fcntl.fcntl(log_fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_SAFE_FD)
    finally:
        os.close(log_fd)
