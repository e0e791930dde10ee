# SPDX-License-Identifier: Apache-2.0
"""kvgpud: serves the VMs and local programs of one host. See docs/architecture.md for the parts."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import IO, Any

import kvgpu
from kvgpu.host import eventfd_kick, paths
from kvgpu.host.api_server import ApiServer
from kvgpu.host.config import HostConfig, load_config, make_jails
from kvgpu.host.driver_watch import DriverWatch
from kvgpu.host.errors import ConfigError, KvgpuError
from kvgpu.host.ivshmem.placement import Placer
from kvgpu.host.libvirt_watch import LibvirtWatch
from kvgpu.host.local_runs import LocalRuns
from kvgpu.host.messages import HostStatus
from kvgpu.host.orphans import find_orphans
from kvgpu.host.session_store import SessionStore
from kvgpu.host.sessions import SessionBroker
from kvgpu.host.vms import VmRegistry
from kvgpu.host.worker_settings import WorkerSettings

_log = logging.getLogger("kvgpud")


class Daemon:
    """The parts of kvgpud, started and ended in order."""

    def __init__(self, config: HostConfig, runtime_dir: Path) -> None:
        self._config = config
        worker = paths.find_worker()
        eventfd_kick.prepare()
        runtime_dir.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(runtime_dir)  # before it takes a living one's workers for orphans
        self._drivers = DriverWatch(config.driver, worker, config.inventory_timeout_s)
        self._store = SessionStore((runtime_dir / "sessions").resolve(), config.keep_sessions_s)
        # What a stop does; a kill leaves the sessions in any case.
        self.ends_sessions = config.keep_sessions_s == 0
        self._log_dir = config.log_dir or runtime_dir / "log"
        self._jails = make_jails(config)
        if self._jails and self._jails.cgroups.problem:
            _log.warning("workers have no cgroups: %s", self._jails.cgroups.problem)
        settings = WorkerSettings(
            binary=worker,
            log_dir=self._log_dir,
            jails=self._jails,
            ready_timeout_s=config.ready_timeout_s,
            grace_s=config.grace_s,
            store=self._store,
            n_prestarted=config.prestarted_workers,
            have_contexts=config.prestarted_contexts,
        )
        self._broker = SessionBroker(settings, self._drivers.get)
        placer = Placer(
            config.huge_pages, config.numa, self._drivers.devices_now, self._drivers.wait
        )
        self._vms = VmRegistry(runtime_dir, config, self._broker, self._drivers, placer)
        self._watch = LibvirtWatch(config.libvirt_uri, self._vms) if config.libvirt_uri else None
        self._runs = LocalRuns(runtime_dir / "run", self._broker, keep=config.keep_sessions_s > 0)
        self._api = ApiServer(
            runtime_dir, self._broker, self._vms, self._runs, placer, self._status
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, then let go of all, or end it: API and runs first, VMs last."""
        orphans = await find_orphans(self._store, self._jails)
        await self._vms.adopt_known(orphans)
        self._runs.adopt_known(orphans)
        orphans.abandon_rest(self._store)
        self._broker.pool.start()
        await self._api.start()
        if self._watch:
            self._watch.start()
        _notify("READY=1")
        _log.info("listening on %s", self._api.path)
        await stop.wait()
        _notify("STOPPING=1")
        if self._watch:
            await self._watch.close()
        await self._api.close(end_runs=self.ends_sessions)
        await self._runs.close(end_sessions=self.ends_sessions)
        await self._vms.close(end_sessions=self.ends_sessions)
        await self._broker.pool.close()
        await self._broker.reports.close()
        if self.ends_sessions:
            await self._broker.end(list(self._broker.sessions.values()))
        else:
            _log.info("%d session(s) go on without kvgpud", len(self._broker.sessions))
            self._broker.leave()
        if self._jails:
            self._jails.uids.close()
        await self._drivers.close()
        self._lock.close()

    def _confinement_problem(self) -> str:
        if self._jails is None:
            return "workers have kvgpud's user and namespaces"
        problem = self._jails.cgroups.problem
        return f"workers' memory has no limit: {problem}" if problem else ""

    async def _status(self) -> HostStatus:
        inventory: dict[str, Any] = {}
        driver, problem = "", ""
        try:
            chosen = await self._drivers.get()
            driver, inventory = str(chosen.path), chosen.inventory
        except KvgpuError as error:
            problem = str(error)
        return HostStatus(
            version=kvgpu.__version__,
            pid=os.getpid(),
            driver=driver,
            inventory=inventory,
            inventory_error=problem,
            allow_hmm=self._config.allow_hmm,
            confinement_problem=self._confinement_problem(),
            n_vms=len(self._vms.vms),
            n_sessions=len(self._broker.sessions),
            log_dir=str(self._log_dir),
        )


def _notify(state: str) -> None:
    """Tell systemd, if it wants to know (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)


def _stop_at_end_of_input(stop: asyncio.Event) -> None:
    if not os.read(0, 4096):
        stop.set()


async def _serve(config: HostConfig, runtime_dir: Path, until_eof: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    daemon = Daemon(config, runtime_dir)

    def end_all() -> None:
        daemon.ends_sessions = True
        stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, end_all)
    if until_eof:
        loop.add_reader(0, _stop_at_end_of_input, stop)
    await daemon.run(stop)


def _raise_descriptor_limit() -> None:
    # A session takes a handful of descriptors; the usual soft limit of 1024 is for select() only.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        _log.warning("cannot raise the limit of open files to %d: %s", hard, error)


def _lock(runtime_dir: Path) -> IO[bytes]:
    """Keep other kvgpuds out of `runtime_dir` for as long as the file is open."""
    file = os.fdopen(os.open(runtime_dir / "kvgpud.lock", os.O_RDWR | os.O_CREAT, 0o600), "rb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ConfigError(
            f"a kvgpud serves {runtime_dir} already",
            hint="stop it, or choose another --runtime-dir",
        ) from error
    return file


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="kvgpud",
        description="Serve the VMs and programs of this host. SIGTERM stops kvgpud alone, "
        "sessions go on until the next one takes them up; SIGINT ends them, too.",
    )
    parser.add_argument("--version", action="version", version=f"kvgpud {kvgpu.__version__}")
    parser.add_argument(
        "--runtime-dir", type=Path, default=paths.RUNTIME_DIR, help="sockets and state"
    )
    parser.add_argument("--driver", help="auto, nvidia, software or the path of a libcuda.so.1")
    parser.add_argument("--config", type=Path, default=paths.CONFIG_FILE)
    parser.add_argument(
        "--foreground", action="store_true", help="accepted for clarity: kvgpud never forks"
    )
    parser.add_argument(
        "--jail",
        action=argparse.BooleanOptionalAction,
        help="give workers a user and namespaces of their own (needs root)",
    )
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    parser.add_argument("-v", "--verbose", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Run kvgpud; an error is one line on standard error and status 1."""
    arguments = _parse_arguments()
    logging.basicConfig(
        level=logging.DEBUG if arguments.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    try:
        changes = {"driver": arguments.driver, "jail": arguments.jail}
        given = {name: value for name, value in changes.items() if value is not None}
        if arguments.until_eof:  # it is for one command: nobody would come after it
            given |= {"keep_sessions_s": 0, "log_dir": None, "libvirt_uri": ""}
            given |= {"prestarted_workers": 0}
        config = load_config(arguments.config).model_copy(update=given)
        _raise_descriptor_limit()
        asyncio.run(_serve(config, arguments.runtime_dir, arguments.until_eof))
    except (KvgpuError, OSError) as error:
        print(f"kvgpud: {error}", file=sys.stderr)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
