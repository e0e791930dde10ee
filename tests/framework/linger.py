# SPDX-License-Identifier: Apache-2.0
"""A process in a VM that computes until it is killed, and what the host sees of it."""

from __future__ import annotations

from typing import Any

from framework.host_services import RUNTIME_DIR, wait_until
from framework.vm import AS_NOBODY, Vm

from kvgpu.host.client import ApiClient
from kvgpu.host.messages import SessionListRequest

START_S = 30.0  # until a process in an emulated guest computes


def sessions() -> list[dict[str, Any]]:
    # Not by the command: starting it takes a good part of the second that some tests measure.
    with ApiClient(RUNTIME_DIR) as client:
        listed = client.ask(SessionListRequest())["sessions"]
    assert isinstance(listed, list)
    return listed


def start_linger(vm: Vm, name: str) -> int:
    """Start a process that computes until it is killed; return its process number."""
    vm.check(f"rm -f /tmp/{name} /tmp/{name}.log")
    vm.spawn(f"exec {AS_NOBODY} /payload/linger /tmp/{name} >/tmp/{name}.log 2>&1")
    wait_until(f"{name} computes", lambda: rounds(vm, name) > 0, START_S)
    return int(vm.check(f"pgrep -f '^/payload/linger /tmp/{name}$'"))


def rounds(vm: Vm, name: str) -> int:
    text = vm.run(f"cat /tmp/{name}").stdout.strip()
    return int(text) if text else 0


def wait_for_progress(vm: Vm, name: str) -> None:
    count = rounds(vm, name)
    wait_until(f"{name} goes on", lambda: rounds(vm, name) > count, START_S)
