# SPDX-License-Identifier: Apache-2.0
"""kvgpud's API socket (PROTOCOL.md §6): the hook and the command line ask, kvgpud answers."""

from __future__ import annotations

import asyncio
import grp
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kvgpu.host import cuda_errors, paths
from kvgpu.host.errors import ConfigError, DaemonError, KvgpuError
from kvgpu.host.ivshmem.placement import Placement, Placer
from kvgpu.host.local_runs import LocalRuns
from kvgpu.host.messages import (
    MAX_LINE_BYTES,
    HookRequest,
    HostStatus,
    HostStatusRequest,
    Request,
    RunRequest,
    SessionKillRequest,
    SessionListRequest,
    SessionShowRequest,
    VmListRequest,
    decode_request,
    encode_error,
    encode_reply,
)
from kvgpu.host.session import Session
from kvgpu.host.session_view import describe
from kvgpu.host.sessions import SessionBroker
from kvgpu.host.stream_runs import StreamRun
from kvgpu.host.vms import VmRegistry

_log = logging.getLogger(__name__)
_UCRED = struct.Struct("3i")


class Peer(NamedTuple):
    """Who asks."""

    pid: int
    uid: int


@dataclass(slots=True)
class Runs:
    """What was asked for on one connection."""

    local: list[int] = field(default_factory=list)
    streams: list[StreamRun] = field(default_factory=list)


class ApiServer:
    """Answers one request per line; a run ends with the connection it was asked for on."""

    def __init__(
        self,
        runtime_dir: Path,
        broker: SessionBroker,
        vms: VmRegistry,
        runs: LocalRuns,
        placer: Placer,
        get_status: Callable[[], Awaitable[HostStatus]],
    ) -> None:
        self.path = runtime_dir / "kvgpud.sock"
        self._broker = broker
        self._vms = vms
        self._runs = runs
        self._placer = placer
        self._get_status = get_status
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._ends_runs = True
        self._n_streams = 0

    async def start(self) -> None:
        self.path.unlink(missing_ok=True)
        old_umask = os.umask(0o117)
        try:
            self._server = await asyncio.start_unix_server(
                self._accept, str(self.path), limit=MAX_LINE_BYTES
            )
        finally:
            os.umask(old_umask)
        try:
            os.chown(self.path, -1, grp.getgrnam(paths.API_GROUP).gr_gid)
        except (KeyError, PermissionError):
            _log.info("%s: for this user only (no group %s)", self.path, paths.API_GROUP)

    async def close(self, *, end_runs: bool) -> None:
        """Stop listening; end the runs that were asked for, or leave them."""
        self._ends_runs = end_runs
        if self._server:
            self._server.close()
        self.path.unlink(missing_ok=True)
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        if connections:
            await asyncio.wait(connections)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        runs = Runs()
        peer = _peer(writer)
        try:
            while line := await reader.readline():
                writer.write(await self._answer(line, peer, runs))
                await writer.drain()
        except (OSError, ValueError) as error:  # ValueError: a line above MAX_LINE_BYTES
            _log.info("API connection: %s", error)
        except asyncio.CancelledError:
            pass  # kvgpud ends; what follows must still be done
        finally:
            writer.close()
            for stream in runs.streams:  # they end with kvgpud, too
                await stream.close()
            for run in runs.local if self._ends_runs else ():
                await self._runs.end(run)
            self._connections.discard(task)

    async def _answer(self, line: bytes, peer: Peer, runs: Runs) -> bytes:
        try:
            return encode_reply(await self._act(decode_request(line), peer, runs))
        except KvgpuError as error:
            return encode_error(error.message, error.hint)
        except OSError as error:
            return encode_error(str(error), "see kvgpud's log")

    async def _act(self, request: Request, peer: Peer, runs: Runs) -> dict[str, Any]:
        match request:
            case HookRequest(operation=operation, domain_xml=domain_xml):
                _require_owner(peer.uid)
                await self._vms.handle(operation, domain_xml)
                return {}
            case HostStatusRequest():
                return asdict(await self._get_status())
            case SessionListRequest():
                infos = [asdict(s.info()) for s in self._broker.sessions.values()]
                return {"sessions": infos}
            case SessionShowRequest(session=number):
                return {"session": await describe(self._find(number))}
            case SessionKillRequest(session=number):
                _require_owner(peer.uid)
                return await self._kill(self._find(number))
            case VmListRequest():
                return {"vms": [asdict(vm.info()) for vm in self._vms.vms.values()]}
            case RunRequest(transport="shared", pinned_bytes=pinned_bytes):
                # Programs map pages of their own size, which a region of huge ones does not allow.
                placement = Placement(nodes=(await self._placer.placement()).nodes)
                number, path = self._runs.begin(peer.pid, peer.uid, pinned_bytes, placement)
                runs.local.append(number)
                return {"socket": str(path)}
            case RunRequest(transport="stream", pinned_bytes=pinned_bytes):
                self._n_streams += 1
                folder = self.path.parent / "run" / f"stream-{self._n_streams}"
                placement = await self._placer.placement()
                run = await StreamRun.start(self._broker, folder, peer.uid, pinned_bytes, placement)
                runs.streams.append(run)
                return {"socket": str(run.path)}
            case RunRequest(transport=transport):
                raise ConfigError(f"no transport {transport!r}", hint="use shared or stream")

    def _find(self, number: int) -> Session:
        session = self._broker.sessions.get(number)
        if session is None:
            raise DaemonError(f"no session {number}", hint="see `kvgpu session list`")
        return session

    async def _kill(self, session: Session) -> dict[str, Any]:
        session.end((cuda_errors.NOT_PERMITTED, "ended by the host's administrator"))
        await session.gone.wait()
        return {}


def _peer(writer: asyncio.StreamWriter) -> Peer:
    sock: socket.socket = writer.get_extra_info("socket")
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(credentials)
    return Peer(pid, uid)


def _require_owner(uid: int) -> None:
    if uid not in (0, os.geteuid()):
        raise DaemonError("only root may do that", hint="use sudo")
