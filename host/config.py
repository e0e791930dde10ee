# SPDX-License-Identifier: Apache-2.0
"""kvgpud's configuration: /etc/kvgpu/host.toml, every key optional."""

from __future__ import annotations

import difflib
import grp
import logging
import os
import pwd
import re
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from kvgpu.host import paths
from kvgpu.host.confinement import Jails
from kvgpu.host.errors import ConfigError
from kvgpu.host.ivshmem.placement import HugePages
from kvgpu.host.ivshmem.region import Ownership
from kvgpu.host.sessions import MAX_SESSIONS_PER_REGION
from kvgpu.host.units import parse_size
from kvgpu.host.worker_cgroup import WorkerCgroups
from kvgpu.host.worker_uids import WorkerUids

_log = logging.getLogger(__name__)
_FIRST_FREE_UID = 65536  # accounts of the host are below (Debian policy 9.2.2)
_LAST_UID = 0xFFFF_FFFD
_WORKER_GROUP = "kvgpu-worker"  # kvgpu-host makes it; where that is not installed: nogroup
_QEMU_USER = "libvirt-qemu"  # libvirt's package makes it; where that is not installed: root


class HostConfig(BaseModel):
    """What an administrator may set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    driver: str = "auto"  # auto, nvidia, software, or the path of a libcuda.so.1
    # Where kvgpud is root: a uid of its own for the workers of each VM or user, out of a range that
    # neither Debian's adduser and subuids nor systemd use, and this group.
    worker_uids: str = "2147000000-2147001023"
    worker_group: str = _WORKER_GROUP
    prestarted_workers: int = Field(default=1, ge=0, le=64)  # that wait for a session
    prestarted_contexts: bool = False  # each of them with a context on its first GPU
    worker_memory: str = "8GiB"  # of the host, beside the session's shared memory
    worker_tasks: int = Field(default=1024, ge=64)  # threads
    worker_cgroup: Path | None = Path("/sys/fs/cgroup/kvgpu")  # v2; "": none
    jail: bool = True  # False: workers are as kvgpud is (containers without CAP_SYS_ADMIN)
    libvirt_uri: str = "qemu:///system"  # whose events are listened to; "": none
    qemu_user: str = _QEMU_USER  # may open the VMs' regions
    log_dir: Path | None = None  # default: RUNTIME_DIR/log
    huge_pages: HugePages = "any"  # of the regions: any, transparent, reserved
    numa: Literal["any", "gpu"] | NonNegativeInt = "any"  # the regions' node, or near the GPUs
    allow_hmm: bool = False  # serve VMs though a GPU can read all of a worker's memory
    inventory_timeout_s: float = Field(default=30.0, gt=0)
    ready_timeout_s: float = Field(default=30.0, gt=0)
    keep_sessions_s: int = Field(default=600, ge=0)  # how long they go on while kvgpud is away
    grace_s: float = Field(default=1.0, ge=0)  # between asking a worker to end and killing it

    @field_validator("numa")
    @classmethod
    def _reserved_pages_have_a_node(cls, value: str | int, info: ValidationInfo) -> str | int:
        if value != "any" and info.data.get("huge_pages") == "reserved":
            raise ValueError(
                "reserved huge pages are where they were reserved: set nr_hugepages in "
                "/sys/devices/system/node/nodeN/hugepages/hugepages-2048kB, and leave numa out"
            )
        return value

    @field_validator("worker_uids")
    @classmethod
    def _uids(cls, text: str) -> str:
        _parse_uids(text)
        return text

    @field_validator("worker_group")
    @classmethod
    def _group(cls, name: str) -> str:
        if name == _WORKER_GROUP or _gid(name) is not None:
            return name
        known = [_WORKER_GROUP, *(group.gr_name for group in grp.getgrall())]
        to_do = f"addgroup --system {name}{_or_nearest(name, known)}"
        raise ValueError(f"there is no group {name!r}: {to_do}")

    @field_validator("qemu_user")
    @classmethod
    def _user(cls, name: str) -> str:
        if name == _QEMU_USER or _uid(name) is not None:
            return name
        known = [_QEMU_USER, *(user.pw_name for user in pwd.getpwall())]
        to_do = f"as `user` in /etc/libvirt/qemu.conf{_or_nearest(name, known)}"
        raise ValueError(f"there is no user {name!r}: {to_do}")

    @field_validator("worker_memory")
    @classmethod
    def _size(cls, text: str) -> str:
        try:
            parse_size(text)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return text

    @field_validator("worker_cgroup", mode="before")
    @classmethod
    def _none(cls, text: object) -> object:
        return None if text == "" else text


def _or_nearest(name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    return f", or write {nearest[0]!r}" if nearest else ""


def load_config(path: Path) -> HostConfig:
    """Read `path`; a file that does not exist means the defaults.

    Raises ConfigError with the file, the line and, for a key that does not exist, the nearest one.
    """
    try:
        text = path.read_text()
        return HostConfig.model_validate(tomllib.loads(text))
    except FileNotFoundError:
        return HostConfig()
    except ValidationError as error:
        problems = "; ".join(_problem(text, str(e["loc"][0]), e["msg"]) for e in error.errors())
        raise ConfigError(f"{path}, {problems}", hint="mend or remove the file") from error
    except (OSError, ValueError) as error:  # ValueError: not TOML, or not UTF-8
        raise ConfigError(f"{path}: {error}", hint="mend or remove the file") from error


def _problem(text: str, key: str, message: str) -> str:
    pattern = re.compile(rf"\s*([\"']?){re.escape(key)}\1\s*[=.]|\s*\[\s*{re.escape(key)}\s*\]")
    lines = [n for n, line in enumerate(text.splitlines(), 1) if pattern.match(line)]
    where = f"line {lines[0]}: " if lines else ""
    if key in HostConfig.model_fields:
        message = message.removeprefix("Value error, ")
        return f"{where}{key}: {message[0].lower()}{message[1:]}"
    nearest = difflib.get_close_matches(key, HostConfig.model_fields, n=1, cutoff=0)
    return f"{where}there is no key {key!r}, the nearest one is {nearest[0]!r}"


def make_jails(config: HostConfig) -> Jails | None:
    """Return how workers are confined, None where kvgpud cannot or shall not do so."""
    if os.geteuid() != 0 or not config.jail:
        return None
    uids = WorkerUids(_parse_uids(config.worker_uids), paths.RUNTIME_DIR / "worker-uids.lock")
    memory_bytes = parse_size(config.worker_memory)
    cgroups = WorkerCgroups(config.worker_cgroup, memory_bytes, config.worker_tasks)
    n_tasks = config.worker_tasks * MAX_SESSIONS_PER_REGION  # workers of an owner have one uid
    return Jails(_worker_gid(config.worker_group), uids, cgroups, n_tasks)


def _parse_uids(text: str) -> range:
    match = re.fullmatch(r"(\d+)-(\d+)", text)
    uids = range(int(match[1]), int(match[2]) + 1) if match else range(0)
    if not uids or uids[0] < _FIRST_FREE_UID or uids[-1] > _LAST_UID:
        raise ValueError(f"{text!r} is not a range FIRST-LAST of uids from {_FIRST_FREE_UID} on")
    return uids


def _worker_gid(name: str) -> int:
    gid = _gid(name)
    if gid is None and name == _WORKER_GROUP:
        _log.info("no group %s: kvgpu-host is not installed, workers have nogroup", name)
        gid = _gid("nogroup")
    if gid is None:
        raise ConfigError(f"there is no group {name!r}", hint=f"addgroup --system {name}")
    return gid


def _gid(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def region_owner(config: HostConfig) -> Ownership:
    """Return who may open a VM's region: QEMU's user and group, else root only."""
    try:
        return Ownership(0, grp.getgrgid(pwd.getpwnam(config.qemu_user).pw_gid).gr_gid)
    except KeyError:
        return Ownership(os.geteuid(), os.getegid())


def qemu_uid(config: HostConfig) -> int | None:
    """Return the user QEMU runs as; None where there is none but root's."""
    return _uid(config.qemu_user)


def _uid(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None
