# SPDX-License-Identifier: Apache-2.0
"""KVGPU_TRACE=FILE: each call with its times, Chrome's form of it, a table at the end."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import pytest
from framework.loopback import LOOPBACK, Loopback, case_filter
from framework.settings import probe, user_file
from framework.trace_file import calls_of, events_of, table_of

PROGRAM = Path(__file__).with_name("traced_program.py")
COPY_BYTES = 1 << 20
N_THREADS, N_CALLS = 4, 50
CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED = 1, 801


def trace(host: Loopback, path: Path, what: str = "calls", **variables: str) -> str:
    return host.check(sys.executable, PROGRAM, what, KVGPU_TRACE=str(path), **variables)


def test_each_call_is_written_with_what_it_cost(host: Loopback, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    trace(host, path)
    calls = calls_of(path)
    by_name = {call.name: call for call in calls}
    assert [call.name for call in calls[:2]] == ["cuDriverGetVersion", "cuInit"]
    assert calls == sorted(calls, key=lambda call: call.ms)
    assert all(call.result == 0 for call in calls[:8])
    copy = by_name["cuMemcpyHtoD_v2"]
    assert (copy.call_class, copy.arguments["ByteCount"]) == ("bulk", COPY_BYTES)
    assert copy.n_bytes > COPY_BYTES
    memset = by_name["cuMemsetD8Async"]
    assert (memset.call_class, memset.n_round_trips, memset.host_us) == ("async", 0, None)
    assert memset.arguments == {
        **{"dstDevice": copy.arguments["dstDevice"], "uc": 7, "N": 16, "hStream": "0x0"}
    }
    # The worker's part of a round trip is one of the call's.
    retain = by_name["cuDevicePrimaryCtxRetain"]
    assert retain.n_round_trips > 0
    assert retain.host_us is not None
    assert 0 < retain.host_us < retain.guest_us
    assert by_name["cuMemAlloc_v2"].result == CUDA_ERROR_INVALID_VALUE
    assert by_name["cuModuleLoad"].arguments["fname"] == '/no "such" file'
    refused = by_name["cuGLInit"]
    assert (refused.call_class, refused.result) == ("refused", CUDA_ERROR_NOT_SUPPORTED)


def test_table_and_chrome_s_form_say_the_same(host: Loopback, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    trace(host, path)
    calls, table, events = calls_of(path), table_of(path), events_of(path)
    assert [event["name"] for event in events] == [call.name for call in calls]
    assert [event["args"]["arguments"] for event in events] == [c.arguments for c in calls]
    assert sum(row.n_calls for row in table.values()) == len(calls)
    for name, row in table.items():
        own = [call for call in calls if call.name == name]
        assert row.n_calls == len(own)
        assert row.total_ms == pytest.approx(sum(c.guest_us for c in own) / 1e3, abs=0.01)
        assert row.mean_us == pytest.approx(row.total_ms * 1e3 / len(own), abs=1)
        assert row.host_ms == pytest.approx(sum(c.host_us or 0 for c in own) / 1e3, abs=0.01)
        assert row.n_round_trips == sum(c.n_round_trips for c in own)
        assert row.n_bytes == sum(c.n_bytes for c in own)


def test_sync_gives_host_times_for_all_that_the_host_does(host: Loopback, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    trace(host, path, KVGPU_SYNC="1")
    (memset,) = (call for call in calls_of(path) if call.name == "cuMemsetD8Async")
    assert memset.n_round_trips == 1
    assert memset.host_us is not None


def test_functions_are_asked_and_set_once(host: Loopback, tmp_path: Path) -> None:
    """Who asks the worker waits for all the launches before."""
    path = tmp_path / "trace"
    case = case_filter("occupancy: asked again and again, with what is set between")
    host.check(LOOPBACK / "driver_cases", case, KVGPU_TRACE=str(path))
    table = table_of(path)
    for name, n_calls, n_different in (
        ("cuFuncSetAttribute", 18, 6),
        ("cuOccupancyMaxActiveBlocksPerMultiprocessor", 16, 4),
        ("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 15, 3),
        ("cuOccupancyAvailableDynamicSMemPerBlock", 15, 3),
    ):
        assert (table[name].n_calls, table[name].n_round_trips) == (n_calls, n_different), name


def test_launches_with_attributes_are_asked_about_once(host: Loopback, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    name = "launch: with the same attributes again and again, and refused ones between"
    host.check(LOOPBACK / "driver_cases", case_filter(name), KVGPU_TRACE=str(path))
    launches = [call for call in calls_of(path) if call.name == "cuLaunchKernelEx"]
    accepted = [call.n_round_trips for call in launches if call.result == 0]
    assert accepted == [1, *[0] * 7]
    refused = [call for call in launches if call.result != 0]
    assert len(refused) == 8
    assert all(call.n_round_trips == 1 for call in refused)


def test_what_a_stream_has_just_freed_is_allocated_without_asking(
    host: Loopback, tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    case = case_filter("pool: allocated again just after it was freed")
    host.check(LOOPBACK / "driver_cases", case, KVGPU_TRACE=str(path))
    allocated = [call for call in calls_of(path) if call.name == "cuMemAllocFromPoolAsync"]
    at_once = [i for i, call in enumerate(allocated) if call.n_round_trips == 0]
    assert (len(allocated), at_once) == (11, [2, 3, 4, 7, 10])


def test_kernel_that_may_begin_early_stays_behind_memory_taken_again(
    host: Loopback, tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    case = case_filter("pool: a kernel that may begin early, in memory that was allocated again")
    host.check(LOOPBACK / "driver_cases", case, KVGPU_TRACE=str(path))
    _, alone, behind, again = (c for c in calls_of(path) if c.name == "cuLaunchKernelEx")
    assert behind.n_bytes > alone.n_bytes
    assert again.n_bytes == alone.n_bytes


def test_threads_have_their_own_lines(host: Loopback, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    trace(host, path, "threads")
    asked = [call for call in calls_of(path) if call.name == "cuCtxGetDevice"]
    of_threads = [[c for c in asked if c.thread == t] for t in {call.thread for call in asked}]
    assert [len(own) for own in of_threads] == [N_CALLS] * N_THREADS
    assert table_of(path)["cuCtxGetDevice"].n_calls == N_THREADS * N_CALLS


def test_forked_child_and_what_it_executes_have_files_of_their_own(
    host: Loopback, tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    (pid,) = re.findall(r"child (\d+)", trace(host, path, "fork"))
    assert "cuInit" in table_of(path)
    # The program that took the child's place has its number, so its file; that one is emptied.
    forked = path.with_name(f"trace.{pid}")
    assert [call.result for call in calls_of(forked)[:2]] == [0, 0]
    assert len(events_of(forked)) == len(calls_of(forked))
    assert {file.name for file in tmp_path.iterdir()} == {
        *(file.name + suffix for file in (path, forked) for suffix in ("", ".json"))
    }


@pytest.mark.parametrize("how", ["crash", "leave"])
def test_what_was_called_before_the_end_is_there(host: Loopback, tmp_path: Path, how: str) -> None:
    path = tmp_path / "trace"
    done = host.run(sys.executable, PROGRAM, how, KVGPU_TRACE=str(path))
    assert done.returncode == (0 if how == "leave" else 128 + signal.SIGSEGV)
    assert calls_of(path)[-1].name == "cuGLInit"
    # The form allows for the end that is missing.
    text = path.with_name("trace.json").read_text()
    assert json.loads(text + "]")[-1]["name"] == "cuGLInit"


def test_file_that_cannot_be_written_is_told(host: Loopback, tmp_path: Path) -> None:
    seen, done = probe(host, **user_file(tmp_path, f'trace = "{tmp_path}/none/trace"\n'))
    assert seen == {"init": str(CUDA_ERROR_INVALID_VALUE)}
    assert done.stderr == (
        f"kvgpu: KVGPU_TRACE: {tmp_path}/none/trace cannot be written: No such file or directory."
        " Mend it; CUDA is not started\n"
    )


def test_without_a_trace_nothing_is_timed_formatted_or_written(
    host: Loopback, tmp_path: Path
) -> None:
    """What is left of it in each call is a branch; the same check sees what a trace costs."""
    n_calls = 2000

    def counts(**variables: str) -> tuple[int, ...]:
        out = host.check(LOOPBACK / "log_cost", str(n_calls), **variables)
        found = re.match(r"formatted (\d+)\nwritten (\d+)\ntimed (\d+)\n", out)
        assert found, out
        return tuple(map(int, found.groups()))

    assert counts() == (0, 0, 0)
    formatted, written, timed = counts(KVGPU_TRACE=str(tmp_path / "trace"))
    assert min(formatted, written / 2, timed / 2) >= n_calls
