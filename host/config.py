# SPDX-License-Identifier: Apache-2.0
"""kvgpud's configuration: /etc/kvgpu/host.toml, every key optional."""

from __future__ import annotations

import grp
import os
import pwd
import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvgpu.host.errors import ConfigError
from kvgpu.host.ivshmem.region import Ownership


class HostConfig(BaseModel):
    """What an administrator may set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    driver: str = "auto"  # auto, nvidia, software, or the path of a libcuda.so.1
    worker_user: str = "kvgpu-worker"  # used where kvgpud is root; nobody if there is no such user
    jail: bool = True  # False: workers are as kvgpud is (containers without CAP_SYS_ADMIN)
    qemu_user: str = "libvirt-qemu"  # may open the VMs' regions
    log_dir: Path | None = None  # default: RUNTIME_DIR/log
    allow_hmm: bool = False  # serve VMs though a GPU can read all of a worker's memory
    inventory_timeout_s: float = Field(default=30.0, gt=0)
    ready_timeout_s: float = Field(default=30.0, gt=0)
    keep_sessions_s: int = Field(default=600, ge=0)  # how long they go on while kvgpud is away
    grace_s: float = Field(default=1.0, ge=0)  # between asking a worker to end and killing it


def load_config(path: Path) -> HostConfig:
    """Read `path`; a file that does not exist means the defaults."""
    try:
        return HostConfig.model_validate(tomllib.loads(path.read_text()))
    except FileNotFoundError:
        return HostConfig()
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise ConfigError(f"{path}: {error}", hint="mend or remove the file") from error


def worker_ids(config: HostConfig) -> tuple[int, int] | None:
    """Return the uid and gid workers run as, None where kvgpud cannot or shall not jail them."""
    if os.geteuid() != 0 or not config.jail:
        return None
    for name in (config.worker_user, "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise ConfigError(f"no user {config.worker_user!r}", hint="adduser --system kvgpu-worker")


def region_owner(config: HostConfig) -> Ownership:
    """Return who may open a VM's region: QEMU's user and group, else root only."""
    try:
        return Ownership(0, grp.getgrgid(pwd.getpwnam(config.qemu_user).pw_gid).gr_gid)
    except KeyError:
        return Ownership(os.geteuid(), os.getegid())
