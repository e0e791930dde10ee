# SPDX-License-Identifier: Apache-2.0
"""How workers are started, the same for all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvgpu.host.confinement import Confinement, Jails
from kvgpu.host.inventory import Driver
from kvgpu.host.session_store import SessionStore

Devices = tuple[int, ...]  # which of the driver's a worker sees, in its order


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    binary: Path
    log_dir: Path
    jails: Jails | None  # None: workers are as kvgpud is
    ready_timeout_s: float
    grace_s: float
    store: SessionStore
    n_prestarted: int = 0
    have_contexts: bool = False  # the pre-started ones

    def command(self, driver: Driver, window: int, devices: Devices | None) -> list[str]:
        """Return what the command lines of all workers have in common; devices None: all."""
        chosen = ["--devices", ",".join(map(str, devices))] if devices is not None else []
        return [
            *(str(self.binary), "--driver", str(driver.path)),
            *("--window", f"{window:#x}"),
            *chosen,
        ]

    def confinement(self, shared_bytes: int, owner: str | None) -> Confinement:
        """Make one that allows the pages of a region; owner None: it is to wait for one.

        Raises KvgpuError if there is no uid left.
        """
        return self.jails.make(shared_bytes, owner) if self.jails else Confinement()

    def share_of_uids(self, n_wanted: int) -> int:
        """Return how many of so many workers may wait: a quarter of all, where each has a uid."""
        return min(n_wanted, len(self.jails.uids) // 4) if self.jails else n_wanted

    def may_wait(self, owner: str) -> bool:
        """Whether a worker that has waited can become this owner's."""
        return self.jails is None or not self.jails.has(owner)
