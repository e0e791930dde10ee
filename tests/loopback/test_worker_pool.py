# SPDX-License-Identifier: Apache-2.0
"""Workers that wait for a session: programs get them, others come, and none outlives kvgpud."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from framework import confinement
from framework.first_result import alternate, is_full, waiting
from framework.life import sessions, start_steady
from framework.loopback import LOOPBACK, PROGRAMS, Loopback, case_filter, loopback
from framework.waiting import eventually

N_WAITING = 2
OUT_OF_MEMORY, NO_DEVICE = 2, 100
# What is free in a program's first context, the primary one.
FREE = """
import ctypes, sys
cuda, how = ctypes.CDLL("libcuda.so.1"), sys.argv[1]
context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
flags, is_active = ctypes.c_uint(), ctypes.c_int(-1)
assert cuda.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(is_active)) == 0
assert is_active.value == 0
flags = {"primary": 0, "mapping": 8, "with flags": 4}[how]
assert cuda.cuDevicePrimaryCtxSetFlags_v2(0, flags) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(free.value)
"""
N_PAIRS = int(os.environ.get("KVGPU_POOL_PAIRS", "5"))


@pytest.fixture
def host() -> Iterator[Loopback]:
    with loopback(config=f"prestarted_workers = {N_WAITING}\n") as running:
        assert eventually(lambda: is_full(running, N_WAITING), 20), running.logs()
        yield running


def test_program_takes_one_that_waits_and_another_comes(host: Loopback) -> None:
    before = waiting(host)
    assert sessions(host) == [], "those that wait are no sessions"
    program = start_steady(host, 60)
    try:
        (worker,) = host.worker_pids()
        assert worker in before
        (session,) = sessions(host)
        assert session["worker_pid"] == worker
        log = Path(str(session["log"]))
        assert f"session {session['session']}: 1 devices" in log.read_text()
        assert os.readlink(f"/proc/{worker}/fd/2") == str(log)
        assert eventually(lambda: is_full(host, N_WAITING), 20)
        assert len(waiting(host) - before) == 1
    finally:
        program.kill()
        program.communicate(timeout=20)


@pytest.mark.skipif(os.geteuid() != 0, reason="a jail needs root to make it")
def test_one_that_waits_is_confined_as_any_other(host: Loopback) -> None:
    for worker in waiting(host):
        confinement.check_all(worker)
    program = start_steady(host, 60)
    try:
        (worker,) = host.worker_pids()
        for line in confinement.check_all(worker):
            print(line)
        assert eventually(lambda: is_full(host, N_WAITING), 20)
        uids = [confinement.uid(pid) for pid in [worker, *waiting(host)]]
        assert len(set(uids)) == 1 + N_WAITING
    finally:
        program.kill()
        program.communicate(timeout=20)


def words_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def devices_of(pid: int) -> str:
    """Which it was started for."""
    words = words_of(pid)
    return words[words.index(b"--devices") + 1].decode() if b"--devices" in words else "all"


def test_programs_that_see_some_devices_get_one_that_waits_for_these() -> None:
    """The first of them starts its own, and has workers wait for the next."""
    config = f"prestarted_workers = {N_WAITING}\n"
    with loopback(config=config, KVGPU_SOFTWARE_GPU_DEVICES="3") as host:
        choices = ["2,0", "1"]
        for choice in choices:
            host.check(PROGRAMS / "demo", CUDA_VISIBLE_DEVICES=choice)
        assert eventually(lambda: is_full(host, N_WAITING + 2), 20), host.logs()
        found = sorted(devices_of(pid) for pid in waiting(host))
        assert found == sorted(["all"] * N_WAITING + choices)
        for choice in choices:
            expected = {pid for pid in waiting(host) if devices_of(pid) == choice}
            program = start_steady(host, 60, CUDA_VISIBLE_DEVICES=choice)
            try:
                assert set(host.worker_pids()) == expected
            finally:
                program.kill()
                program.communicate(timeout=20)
            # A worker that waits becomes nobody's who has one that lives.
            assert eventually(lambda: not host.worker_pids(), 20)


def test_programs_that_choose_devices_do_not_fill_one_with_contexts() -> None:
    config = f"prestarted_workers = {N_WAITING}\nprestarted_contexts = true\n"
    with loopback(config=config, KVGPU_SOFTWARE_GPU_DEVICES="3") as host:

        def with_context() -> list[str]:
            assert eventually(lambda: is_full(host, N_WAITING + n_choices), 20), host.logs()
            pids = [pid for pid in waiting(host) if b"--with-context" in words_of(pid)]
            return sorted(map(devices_of, pids))

        everybody = ["all"] * N_WAITING
        for n_choices, choice in enumerate(["2,0", "1", "2", "2,1"], start=1):
            host.check(PROGRAMS / "demo", CUDA_VISIBLE_DEVICES=choice)
            assert with_context() == sorted([*everybody, "2,0", *["1"][: n_choices - 1]])
        host.check(PROGRAMS / "demo", CUDA_VISIBLE_DEVICES="2,0")
        assert with_context() == sorted([*everybody, "2,0", "1"])  # the next one's


@pytest.fixture(scope="module")
def host_with_contexts() -> Iterator[Loopback]:
    config = f"prestarted_workers = {N_WAITING}\nprestarted_contexts = true\n"
    with loopback(config=config) as running:
        yield running


@pytest.mark.parametrize(
    "case",
    [
        "context: created before the primary one, destroyed first",
        "context: flags, configuration, limits",
        "context: ten made and destroyed, memory comes back",
        "launches in a row: each has its own parameters",
    ],
)
def test_program_whose_worker_had_a_context_finds_what_it_would_without(
    host_with_contexts: Loopback, case: str
) -> None:
    host = host_with_contexts
    assert eventually(lambda: is_full(host, N_WAITING), 20), host.logs()
    assert "1 passed" in host.check(LOOPBACK / "driver_cases", case_filter(case))


def run_of_first_context(how: str, fault: str) -> tuple[str, bool]:
    """What FREE printed with one waiting worker, and whether the planted failure came."""
    config = "prestarted_workers = 1\nprestarted_contexts = true\n"
    driver = str(LOOPBACK / "libfault_driver.so")
    with loopback(driver=driver, jail=False, config=config, KVGPU_FAULT=fault) as host:
        assert eventually(lambda: is_full(host, 1), 20), host.logs()
        ready = waiting(host)
        output = host.check(sys.executable, "-c", FREE, how)
        assert not ready & waiting(host), "the program took none that waited"
        return output, "fault_driver:" in host.logs()


@pytest.mark.parametrize("how", ["primary", "mapping"])
def test_program_has_the_context_that_waited(how: str) -> None:
    output, came = run_of_first_context(how, f"cuDevicePrimaryCtxRetain:2:{NO_DEVICE}")
    assert int(output) > 0
    assert not came  # the driver is asked once, by the worker


def test_program_with_other_flags_has_a_context_of_its_own() -> None:
    with pytest.raises(AssertionError, match="cuDevicePrimaryCtxRetain"):
        run_of_first_context("with flags", f"cuDevicePrimaryCtxRetain:2:{NO_DEVICE}")


def test_worker_without_the_context_it_was_to_have_serves_all_the_same() -> None:
    output, came = run_of_first_context("primary", f"cuDevicePrimaryCtxRetain:1:{OUT_OF_MEMORY}")
    assert int(output) > 0
    assert came


def test_context_that_broke_while_it_waited_is_made_anew() -> None:
    # The first stream of a context is the worker's own.
    output, came = run_of_first_context("primary", f"cuStreamCreate:1:{OUT_OF_MEMORY}")
    assert int(output) > 0
    assert came


def test_one_that_dies_is_replaced(host: Loopback) -> None:
    (killed, _) = before = waiting(host)
    os.kill(killed, signal.SIGKILL)
    assert eventually(lambda: is_full(host, N_WAITING) and waiting(host) != before, 20), host.logs()
    log = (host.runtime_dir / "kvgpud.log").read_text()
    assert "pre-started workers: the worker was killed by SIGKILL" in log
    host.check(PROGRAMS / "demo")


def test_burst_of_programs_beyond_the_pool(host: Loopback) -> None:
    with ThreadPoolExecutor(3 * N_WAITING) as threads:
        runs = [threads.submit(host.check, PROGRAMS / "demo") for _ in range(3 * N_WAITING)]
        for run in runs:
            assert "demo: all results correct" in run.result()
    assert eventually(lambda: is_full(host, N_WAITING) and not sessions(host), 30)


def test_those_that_wait_use_no_processor(host: Loopback) -> None:
    def ticks() -> int:
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2] for pid in waiting(host)]
        return sum(sum(map(int, stat.split()[11:13])) for stat in stats)  # utime, stime

    before = ticks()
    time.sleep(5)
    used = ticks() - before
    print(f"figure: {N_WAITING} waiting workers used {used} clock ticks in 5 s")
    assert used <= 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_they_end_with_kvgpud_and_sessions_do_not(host: Loopback, number: signal.Signals) -> None:
    program = start_steady(host, 60)
    try:
        (worker,) = host.worker_pids()
        assert eventually(lambda: is_full(host, N_WAITING), 20)
        earlier = waiting(host)
        host.stop_kvgpud(number)
        assert eventually(lambda: not waiting(host))
        assert host.worker_pids() == [worker]
        host.start_kvgpud()
        assert eventually(lambda: is_full(host, N_WAITING), 20)
        assert not waiting(host) & earlier
        assert [s["worker_pid"] for s in sessions(host)] == [worker]
    finally:
        program.kill()
        program.communicate(timeout=20)


def test_worker_that_waited_goes_on_without_kvgpud_as_others_do(host: Loopback) -> None:
    before = waiting(host)
    program = start_steady(host, 6)
    assert set(host.worker_pids()) <= before
    host.stop_kvgpud(signal.SIGKILL)
    host.start_kvgpud()
    output, errors = program.communicate(timeout=60)
    assert "steady: all results correct" in output, errors + host.logs()


def test_form_without_shared_memory_starts_its_own(host: Loopback) -> None:
    before = waiting(host)
    host.check(PROGRAMS / "demo", KVGPU_TRANSPORT="stream")
    assert waiting(host) == before


def test_none_where_switched_off() -> None:
    with loopback(config="prestarted_workers = 0\n") as host:
        host.check(PROGRAMS / "demo")
        assert waiting(host) == set()


def test_time_to_the_first_result(host: Loopback) -> None:
    """Prints it; the software GPU's cuInit is too quick for a bound (tests/gpu/host.py has one)."""
    with loopback(config="prestarted_workers = 0\n") as bare:
        with_pool, without = alternate(host, bare, N_PAIRS, N_WAITING)
    print(
        f"figure: start to first result, {N_PAIRS} alternating pairs, medians: "
        f"with the pool {with_pool}; without {without}"
    )
