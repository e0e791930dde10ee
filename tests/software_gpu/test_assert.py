# SPDX-License-Identifier: Apache-2.0
"""assert and trap in kernels: the error, that it is sticky, and the line on standard error."""

from __future__ import annotations

import re

import pytest
from software_gpu.cuda_cpp import kernel, reset, run
from software_gpu.gpu import CudaError, gpu

ASSERT, LAUNCH_FAILED, ILLEGAL_INSTRUCTION = 710, 719, 715
SOURCE = """
extern "C" __global__ void k(unsigned* words) {
  words[threadIdx.x] = 1;
  assert(threadIdx.x != 5 && "five");
}"""


def test_failed_assert_is_sticky_and_names_file_line_and_thread(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(CudaError) as caught, kernel(SOURCE, 32, "asserts.cu") as made:
        made.run(1, 32)
    assert caught.value.code == ASSERT
    with pytest.raises(CudaError) as later:
        gpu().call("cuCtxSynchronize")
    assert later.value.code == ASSERT
    errors = capfd.readouterr().err
    assert re.search(r"asserts\.cu:4: .*Assertion `threadIdx\.x != 5 && \"five\"` failed", errors)
    assert re.search(r"thread \(5,0,0\) of block \(0,0,0\)", errors), errors
    reset()


def test_assert_that_holds_costs_nothing() -> None:
    assert run(SOURCE, 4, n_threads=4) == [1] * 4


def test_trap_of_one_thread_ends_the_kernel() -> None:
    source = """
extern "C" __global__ void k(unsigned* words) { if (threadIdx.x == 9) __trap(); }"""
    with pytest.raises(CudaError) as caught:
        run(source, 1)
    assert caught.value.code in (LAUNCH_FAILED, ILLEGAL_INSTRUCTION)
    reset()
    assert run(SOURCE, 1, n_threads=1) == [1]
