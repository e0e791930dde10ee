# SPDX-License-Identifier: Apache-2.0
"""The real kvgpu-agentd of a VM that is played here; the bytes are carried in QEMU's place."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from framework.agent import agent_binary
from framework.kvgpud import FakeQemu

from kvgpu.host.ivshmem.region import region_path
from kvgpu.host.stream_runs import takes_clients


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(4096):
            writer.write(data)
    writer.transport.abort()


class Port:
    """Two listeners, kvgpud's and the agent's; what comes from one goes to the other."""

    async def start(self, host_path: Path, agent_path: Path) -> None:
        self._halves: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.Queue()
        )
        self._agent_side = await asyncio.start_unix_server(
            lambda r, w: self._halves.put_nowait((r, w)), str(agent_path)
        )
        self._host_side = await asyncio.start_unix_server(self._join, str(host_path))

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        agent_reader, agent_writer = await self._halves.get()
        await asyncio.gather(copy(reader, agent_writer), copy(agent_reader, writer))

    def close(self) -> None:
        self._agent_side.close()
        self._host_side.close()


@asynccontextmanager
async def agent(folder: Path, qemu: FakeQemu, *options: str) -> AsyncIterator[str]:
    """Run the agent of `qemu`'s guest; yield the socket its clients connect to.

    `options`: where its region is; default the file of an ivshmem-plain device.
    """
    port = Port()
    await port.start(qemu.path, folder / "port")
    process = subprocess.Popen(
        [
            *(str(agent_binary()), *(options or ("--region", str(region_path(qemu.uuid))))),
            *("--port", str(folder / "port"), "--socket", str(folder / "guest.sock")),
            *("--state", str(folder / "agent.state"), "--boot-id", qemu.uuid.hex),
            *("--group", "users"),
        ]
    )
    try:
        while not takes_clients(folder / "guest.sock"):
            assert process.poll() is None
            await asyncio.sleep(0.02)
        yield str(folder / "guest.sock")
    finally:
        process.terminate()
        process.wait(10)
        port.close()
