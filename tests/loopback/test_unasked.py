# SPDX-License-Identifier: Apache-2.0
"""What the guest does and answers without asking the host, as KVGPU_TRACE counts it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from framework.loopback import Loopback
from framework.trace_file import Call, calls_of

PROGRAM = Path(__file__).with_name("unasked_program.py")
CUDA_ERROR_INVALID_VALUE = 1
LINE_BYTES = 64
N_ROUNDS = 3
N_SETTINGS = 2  # of an attribute, by turns


@pytest.fixture(scope="module")
def calls(host: Loopback, tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    path = tmp_path_factory.mktemp("trace") / "trace"
    host.check(sys.executable, PROGRAM, KVGPU_TRACE=str(path))
    return calls_of(path)


def named(calls: list[Call], name: str) -> list[Call]:
    found = [call for call in calls if call.name == name]
    assert len(found) >= N_ROUNDS, name
    return found


@pytest.mark.parametrize(
    "name", ["cuStreamCreate", "cuEventCreate", "cuEventDestroy_v2", "cuStreamDestroy_v2"]
)
def test_handles_are_chosen_here_and_nothing_is_waited_for(calls: list[Call], name: str) -> None:
    for call in named(calls, name):
        assert (call.result, call.n_round_trips) == (0, 0)
        assert call.n_bytes > 0, "the worker has not been told"


@pytest.mark.parametrize(
    "name",
    [
        *("cuCtxGetCurrent", "cuCtxGetDevice", "cuDeviceGetAttribute", "cuFuncGetAttribute"),
        *("cuPointerGetAttribute", "cuEventQuery"),
    ],
)
def test_what_is_known_here_is_answered_here(calls: list[Call], name: str) -> None:
    for call in named(calls, name):
        assert (call.result, call.n_round_trips, call.n_bytes) == (0, 0, 0)


def test_usual_errors_come_at_the_call(calls: list[Call]) -> None:
    refused = [call for call in named(calls, "cuLaunchKernel") if call.result != 0]
    assert len(refused) == 2 * N_ROUNDS
    for call in refused:
        assert call.result == CUDA_ERROR_INVALID_VALUE
        assert (call.n_round_trips, call.n_bytes) == (0, 0)


def test_what_was_taken_before_is_set_again_without_an_answer(calls: list[Call]) -> None:
    found = named(calls, "cuFuncSetAttribute")
    first, again = found[:N_SETTINGS], found[N_SETTINGS:]
    assert all(call.result == 0 for call in found)
    assert all(call.n_round_trips == 1 for call in first)
    assert len(again) == N_ROUNDS * N_SETTINGS
    for call in again:
        assert call.n_round_trips == 0
        assert call.n_bytes > 0, "the worker has not been told"


def test_launch_takes_two_lines_and_no_answer(calls: list[Call]) -> None:
    launched = [call for call in named(calls, "cuLaunchKernel") if call.result == 0]
    assert len(launched) == 1 + N_ROUNDS
    for call in launched:
        assert call.n_round_trips == 0
        assert call.n_bytes <= 2 * LINE_BYTES


def test_events_and_streams_are_numbers_in_shared_memory(calls: list[Call]) -> None:
    for name in ("cuEventRecord", "cuEventSynchronize", "cuStreamSynchronize"):
        for call in named(calls, name):
            assert (call.result, call.n_round_trips) == (0, 0)
    waits = named(calls, "cuEventSynchronize")
    assert all(call.n_bytes == 0 for call in waits), "what is behind nothing is over"
