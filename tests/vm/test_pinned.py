# SPDX-License-Identifier: Apache-2.0
"""Pinned memory in a guest does what docs/pinned-memory.md says, deed by deed."""

from __future__ import annotations

import pytest
from framework.vm import Vm

pytestmark = [pytest.mark.vm, pytest.mark.timeout(600)]

DOCUMENTED = {
    "read and write": "works",
    "O_DIRECT": "EFAULT",
    "io_uring": "works",
    "io_uring fixed buffers": "EFAULT",
    "mprotect": "works",
    "/proc/PID/mem": "works",
    "ptrace": "works",
    "fork, the parent": "works",
}


def deeds(vm: Vm, command: str) -> dict[str, dict[str, str]]:
    """Run the program; return what it said, by kind of memory and deed."""
    said: dict[str, dict[str, str]] = {}
    for line in vm.check(command, timeout_s=120).splitlines():
        kind, deed, result = line.split(": ")
        said.setdefault(kind, {})[deed] = result
    return said


def test_pinned_memory_does_what_the_documents_say(vm: Vm) -> None:
    said = deeds(vm, "/payload/pinned /var/tmp/pinned.data")
    assert said["allocated"] == {**DOCUMENTED, "fork, the child": "SIGSEGV"}
    assert said["registered"] == {**DOCUMENTED, "fork, the child": "private copies"}


def test_pinned_memory_by_copies_is_ordinary_memory(vm: Vm) -> None:
    said = deeds(vm, "KVGPU_PINNED=copy /payload/pinned /var/tmp/pinned.data")
    everything = dict.fromkeys(DOCUMENTED, "works") | {"fork, the child": "private copies"}
    assert said == {"allocated": everything, "registered": everything}
