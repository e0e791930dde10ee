# SPDX-License-Identifier: Apache-2.0
"""What the options of `kvgpu vm` mean. Each function raises ConfigError for what cannot be."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from kvgpu.host.errors import ConfigError
from kvgpu.host.units import parse_size

if TYPE_CHECKING:
    from kvgpu.host import domain_xml


def read_domain(path: Path) -> str:
    """Return the text of a file with a domain's XML; - is standard input."""
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        return data.decode()
    except OSError as error:
        raise ConfigError(
            f"--from {path}: {error.strerror}",
            hint="name a file with a domain's XML, or - for standard input",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"--from {path}: not UTF-8", hint="give it as `virsh dumpxml` prints it"
        ) from error


def slices(
    memory: str, compute: int, pinned: str, ram_bytes: int, strict: bool
) -> domain_xml.Slices:
    from kvgpu.host import domain_xml

    if not memory:
        raise ConfigError("--memory is missing", hint="for example --memory 8GiB")
    if strict and compute != 100:
        raise ConfigError(
            f"--compute {compute}: compute shares are not enforced yet",
            hint="leave --strict out to store the share, or --compute",
        )
    pinned_bytes = parse_size(pinned) if pinned else domain_xml.default_pinned_bytes(ram_bytes)
    return domain_xml.Slices(parse_size(memory), compute, pinned_bytes)


def device(shmem: bool, doorbell: bool) -> domain_xml.Device:
    from kvgpu.host.domain_xml import Device

    if doorbell and not shmem:
        raise ConfigError("--doorbell and --no-shmem exclude each other", hint="leave one out")
    return Device.DOORBELL if doorbell else Device.PLAIN if shmem else Device.NONE


def choose_kvm() -> bool:
    from kvgpu.host import check

    if check.has_kvm():
        return True
    print(
        "kvgpu: no KVM on this host: the VM is emulated (type qemu), which is slow; "
        "`kvgpu check` has more, --kvm makes it a KVM domain all the same",
        file=sys.stderr,
    )
    return False


def parse_disk(text: str) -> domain_xml.Disk:
    from kvgpu.host.domain_xml import Disk

    path, colon, disk_format = text.rpartition(":")
    if not colon:
        path, disk_format = text, "raw" if text.endswith((".img", ".raw")) else "qcow2"
    if not path or disk_format not in ("raw", "qcow2"):
        raise ConfigError(
            f"{text!r} is not a disk", hint="PATH or PATH:FORMAT, the format raw or qcow2"
        )
    return Disk(os.path.abspath(path), disk_format)


def parse_uuid(text: str) -> UUID:
    try:
        return UUID(text) if text else uuid4()
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is not a UUID", hint="leave --uuid out for a new one"
        ) from error
