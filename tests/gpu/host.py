# SPDX-License-Identifier: Apache-2.0
"""kvgpud on a real GPU: what confines a worker that computes, the inventory, pre-started workers.

python tests/gpu/host.py [DRIVER]: as root. What the machine itself refuses (control groups in a
container) is said, and is no failure; a worker without its jail is one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from framework import confinement
from framework.first_result import alternate, is_full, median, native_first_result, waiting
from framework.life import start_steady
from framework.loopback import Loopback, loopback
from framework.waiting import eventually

from kvgpu.host.client import ApiClient
from kvgpu.host.messages import HostStatusRequest

N_PAIRS = int(os.environ.get("KVGPU_POOL_PAIRS", "10"))
N_WAITING = 2
N_IDLE_S = 5


def inventory(driver: str) -> None:
    with loopback(driver=driver) as host, ApiClient(host.runtime_dir) as api:
        status = api.ask(HostStatusRequest())
        assert status["inventory_error"] == "", status["inventory_error"]
        print(json.dumps(status["inventory"]))
        names = [device["name"] for device in status["inventory"]["devices"]]
        print(f"figure: inventory of {status['driver']}: {len(names)} device(s), {names[0]}")
        missing = status["confinement_problem"]
        print(f"not to be had on this machine: {missing}" if missing else "cgroups: to be had")


def confined(driver: str) -> None:
    with loopback(driver=driver, config="prestarted_workers = 0\n") as host:
        programs = [start_steady(host, 120) for _ in range(2)]
        try:
            workers = host.worker_pids()
            assert len(workers) == 2, workers
            for line in confinement.check_all(workers[0]):
                print(f"ok      {line}")
            confinement.check_all(workers[1])
            uids = {confinement.uid(pid) for pid in workers}
            assert len(uids) == 1, uids  # of one user
            group = confinement.cgroup(workers[0])
            limits = f"memory.max {(group / 'memory.max').read_text().strip()}" if group else "none"
            print(f"figure: 2 workers that compute on the GPU, each confined; cgroup: {limits}")
        finally:
            for program in programs:
                program.kill()
                program.communicate(timeout=30)


def _used_mib() -> int:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return sum(map(int, subprocess.check_output(query, text=True).split()))


def _ticks(host: Loopback) -> int:
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2] for pid in waiting(host)]
    return sum(sum(map(int, stat.split()[11:13])) for stat in stats)  # utime, stime


def prestarted(driver: str) -> None:
    _prestarted(driver, "the pool", f"prestarted_workers = {N_WAITING}\n")


def prestarted_contexts(driver: str) -> None:
    config = f"prestarted_workers = {N_WAITING}\nprestarted_contexts = true\n"
    _prestarted(driver, "a pool with contexts", config)


def _prestarted(driver: str, what: str, config: str) -> None:
    before_mib = _used_mib() if _is_real(driver) else 0
    with (
        loopback(driver=driver, config=config) as pooled,
        loopback(driver=driver, config="prestarted_workers = 0\n") as bare,
    ):
        assert eventually(lambda: is_full(pooled, N_WAITING), 60), pooled.logs()
        if _is_real(driver):
            used_mib = _used_mib() - before_mib
            print(f"figure: {what}: {N_WAITING} waiting workers hold {used_mib} MiB of GPU")
        begin = _ticks(pooled)
        eventually(lambda: False, N_IDLE_S)
        print(f"figure: {what}: {_ticks(pooled) - begin} ticks in {N_IDLE_S} s")
        with_pool, without = alternate(pooled, bare, N_PAIRS, N_WAITING)
        native = median([native_first_result() for _ in range(N_PAIRS)]) if _is_real(driver) else ""
        print(
            f"figure: start to first result, {N_PAIRS} alternating pairs, medians: "
            f"with {what} {with_pool}; without {without}; natively afterwards {native or '-'}"
        )
        is_slower = with_pool.total_s > 1.1 * without.total_s
        assert not (is_slower and _is_real(driver)), f"{what} costs time"


def _is_real(driver: str) -> bool:
    return driver != "software"


def main() -> int:
    driver = sys.argv[1] if len(sys.argv) > 1 else "nvidia"
    assert os.geteuid() == 0, "a jail needs root to make it"
    failed = False
    parts: tuple[Callable[[str], None], ...] = (
        inventory,
        confined,
        prestarted,
        prestarted_contexts,
    )
    for part in parts:
        try:
            part(driver)
        except Exception:
            traceback.print_exc()
            print(f"FAILED  {part.__name__}")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
