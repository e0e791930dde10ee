# SPDX-License-Identifier: Apache-2.0
"""Programs of this host that are served as in a VM without shared memory: through an agent of their
own and a byte stream. For tests, and for trying that form without a VM.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Self
from uuid import uuid4

from kvgpu.host import paths
from kvgpu.host.errors import DaemonError
from kvgpu.host.ivshmem.placement import Placement
from kvgpu.host.ivshmem.region import Region, region_bytes_for
from kvgpu.host.sessions import SessionBroker
from kvgpu.host.vm_channel import VmChannel

_START_LIMIT_S = 10.0
_STOP_LIMIT_S = 2.0
HOST = "host"  # stands where a VM's name would


class StreamRun:
    """What one `kvgpu run --transport stream` gets: an agent, and the socket it listens on."""

    def __init__(self, folder: Path, owner_uid: int, region: Region) -> None:
        self.path = folder / "guest.sock"
        self._folder = folder
        self._owner_uid = owner_uid
        self._region = region
        self._port = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._port.setblocking(False)
        self._channel: VmChannel | None = None
        self._agent: asyncio.subprocess.Process | None = None

    @classmethod
    async def start(
        cls,
        broker: SessionBroker,
        folder: Path,
        owner_uid: int,
        pinned_bytes: int,
        placement: Placement,
    ) -> Self:
        """Return a run whose agent listens. Raises KvgpuError, OSError."""
        agent = paths.find_agent()
        region = Region.create_memfd(
            uuid4(), region_bytes_for(pinned_bytes), pinned_bytes, placement
        )
        run = cls(folder, owner_uid, region)
        try:
            run._listen(broker)
            await run._start_agent(agent)
            run._let_owner_in()
        except BaseException:
            await run.close()
            raise
        return run

    async def close(self) -> None:
        """End the agent and all sessions, free the region."""
        if self._agent and self._agent.returncode is None:
            self._agent.terminate()
            try:
                async with asyncio.timeout(_STOP_LIMIT_S):
                    await self._agent.wait()
            except TimeoutError:
                self._agent.kill()
                await self._agent.wait()
        if self._channel:
            await self._channel.close()
        self._port.close()
        self._region.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _listen(self, broker: SessionBroker) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)  # of a kvgpud that was killed
        # Ours, never the owner's: the agent and kvgpud, as root, make and rename files in it.
        self._folder.mkdir(mode=0o700, parents=True)
        port = self._folder / "port"
        self._port.bind(str(port))
        port.chmod(0o600)
        self._port.listen(1)
        self._channel = VmChannel(broker, HOST, self._accept, self._region, _nothing_to_check)

    def _let_owner_in(self) -> None:
        """Give the clients' socket, and nothing else, to who asked; nobody else may connect."""
        self.path.chmod(0o600)
        if os.geteuid() == 0:
            os.chown(self.path, self._owner_uid, -1)
        self._folder.chmod(0o711)

    async def _start_agent(self, agent: Path) -> None:
        self._agent = await asyncio.create_subprocess_exec(
            # Without kvgpud it has nothing to do, and must not serve the next one's run.
            *("setpriv", "--pdeathsig", "TERM", "--"),
            *(str(agent), "--no-region", "--port", str(self._folder / "port")),
            *("--socket", str(self.path), "--state", str(self._folder / "agent.state")),
            *("--boot-id", uuid4().hex),
        )
        deadline_s = time.monotonic() + _START_LIMIT_S
        while not takes_clients(self.path):
            if self._agent.returncode is not None or time.monotonic() > deadline_s:
                raise DaemonError("kvgpu-agentd did not start", hint="see kvgpud's log")
            await asyncio.sleep(0.01)

    async def _accept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock, _ = await asyncio.get_running_loop().sock_accept(self._port)
        return await asyncio.open_unix_connection(sock=sock)


def takes_clients(path: Path) -> bool:
    """The socket's file is there before anybody listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        try:
            client.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True


async def _nothing_to_check() -> None:
    """Programs of the host are its users' own: no VM's wall is asked for."""
