# SPDX-License-Identifier: Apache-2.0
"""CUDA runtimes of other versions than the static 13.0 of tests/programs, and cuda-python."""

from __future__ import annotations

from framework.loopback import PROGRAMS, Loopback
from framework.runtimes import environment, programs

COMMANDS = programs("software")


def check_program(host: Loopback, name: str, program: str) -> list[str]:
    """Run a program that says of each of its results whether it is correct; return its lines."""
    lines = host.check(*COMMANDS[name], **environment()).splitlines()
    assert lines[-1] == f"{program}: all results correct"
    return lines


def test_cudart_13_static(host: Loopback) -> None:
    assert host.check(PROGRAMS / "demo").splitlines()[-1] == "demo: all results correct"


def test_cudart_13_shared(host: Loopback) -> None:
    assert check_program(host, "cudart-13-shared", "runtime_program")[0] == "runtime 13.0"


def test_cudart_11_8(host: Loopback) -> None:
    assert check_program(host, "cudart-11.8", "runtime_program")[0] == "runtime 11.8"


def test_cudart_12_shared(host: Loopback) -> None:
    assert check_program(host, "cudart-12-shared", "runtime_program")[0] == "runtime 12.8"


def test_cudart_12_static(host: Loopback) -> None:
    assert "runtime inside: 12" in check_program(host, "cudart-12-static", "nvjpeg_program")


def test_two_runtimes_in_one_process(host: Loopback) -> None:
    lines = check_program(host, "cudart-13-and-12", "two_runtimes")
    assert lines[0] == "runtime 13.0 and runtime 12.8"


def test_cuda_python(host: Loopback) -> None:
    check_program(host, "cuda-python", "cuda_python")
