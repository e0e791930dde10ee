# SPDX-License-Identifier: Apache-2.0
"""kvgpud and the real kvgpu-agentd, with a port between them in QEMU's place."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from framework.guest import agent
from framework.kvgpud import Client, FakeQemu, gone, kvgpud, run

from kvgpu.host.ivshmem.region import region_path
from kvgpu.host.messages import VmListRequest

pytestmark = pytest.mark.usefixtures("fake_worker", "reaped")


def test_client_of_the_agent_gets_a_session_and_its_end_ends_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with kvgpud(tmp_path) as daemon:
            api = await daemon.api()
            qemu = FakeQemu(tmp_path)
            await api.ask(qemu.hook("prepare"))
            async with agent(tmp_path, qemu) as path:
                client, other = Client(path), Client(path)
                opened, fds = await client.open()
                assert os.fstat(fds[0]).st_ino == region_path(qemu.uuid).stat().st_ino
                await other.open()
                sessions = await api.sessions()
                assert {info["pid"] for info in sessions} == {os.getpid()}
                assert {info["vm"] for info in sessions} == {"vm1"}
                assert {info["region"] for info in sessions} == {str(qemu.uuid)}
                client.sock.close()
                while len(await api.sessions()) > 1:
                    await asyncio.sleep(0.01)
                assert (await api.sessions())[0]["session"] != opened.session
            await gone(api)
            await api.ask(qemu.hook("release"))

    run(body)


def test_agent_serves_again_after_a_restart_of_kvgpud(tmp_path: Path) -> None:
    async def body() -> None:
        qemu = FakeQemu(tmp_path)
        async with kvgpud(tmp_path) as daemon:
            await (await daemon.api()).ask(qemu.hook("prepare"))
        try:
            async with agent(tmp_path, qemu) as path:
                for _ in range(2):
                    async with kvgpud(tmp_path) as daemon:
                        await Client(path).open()
                        (info,) = (await (await daemon.api()).ask(VmListRequest()))["vms"]
                        assert info["state"] == "ready"
        finally:
            region_path(qemu.uuid).unlink(missing_ok=True)

    run(body)


def test_restarted_kvgpud_goes_on_with_the_sessions_of_the_agent(tmp_path: Path) -> None:
    async def body() -> None:
        qemu = FakeQemu(tmp_path)
        async with kvgpud(tmp_path, keep_sessions_s=60) as daemon:
            await (await daemon.api()).ask(qemu.hook("prepare"))
        try:
            async with agent(tmp_path, qemu) as path:
                async with kvgpud(tmp_path, keep_sessions_s=60) as daemon:
                    staying, leaving = Client(path), Client(path)
                    opened, _ = await staying.open()
                    gone_later, _ = await leaving.open()
                    before = await (await daemon.api()).sessions()
                leaving.sock.close()
                async with kvgpud(tmp_path) as daemon:
                    api = await daemon.api()
                    while len(after := await api.sessions()) > 1:
                        await asyncio.sleep(0.01)
                    assert after == [s for s in before if s["session"] == opened.session]
                    third, _ = await Client(path).open()
                    assert third.block_offset not in (opened.block_offset, 0)
                    assert third.session > gone_later.session
                    staying.sock.close()
                    while len(await api.sessions()) > 1:
                        await asyncio.sleep(0.01)
        finally:
            region_path(qemu.uuid).unlink(missing_ok=True)

    run(body)
