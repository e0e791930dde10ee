# SPDX-License-Identifier: Apache-2.0
"""Calls: recursion, by pointer, virtual, in divergent code, and what a stack that is full does."""

from __future__ import annotations

import pytest
from software_gpu.cuda_cpp import reset, run
from software_gpu.gpu import CudaError

LAUNCH_FAILED, ILLEGAL_ADDRESS = 719, 700


def test_recursion_of_another_depth_in_each_thread() -> None:
    source = """
__device__ __noinline__ unsigned ackermann(unsigned m, unsigned n) {
  if (m == 0) return n + 1;
  return n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}
__device__ __noinline__ unsigned fibonacci(unsigned n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
extern "C" __global__ void k(unsigned* words) {
  const unsigned i = threadIdx.x;
  words[i] = fibonacci(i % 12);
  words[32 + i] = ackermann(2, i % 5);
}"""
    fibonacci = [0, 1]
    while len(fibonacci) < 12:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    got = run(source, 64)
    assert got[:32] == [fibonacci[i % 12] for i in range(32)]
    assert got[32:] == [2 * (i % 5) + 3 for i in range(32)]


def test_mutual_recursion_keeps_each_frames_locals() -> None:
    source = """
__device__ unsigned odd(unsigned n, unsigned* trail);
__device__ __noinline__ unsigned even(unsigned n, unsigned* trail) {
  unsigned mine[4] = {n, n + 1, n + 2, n + 3};
  const unsigned below = n ? odd(n - 1, mine) : 0;
  return below + mine[n % 4] + trail[0];
}
__device__ __noinline__ unsigned odd(unsigned n, unsigned* trail) {
  unsigned mine[2] = {n * 10, n};
  return (n ? even(n - 1, mine) : 0) + mine[n % 2] + trail[0];
}
extern "C" __global__ void k(unsigned* words) {
  unsigned start[1] = {7};
  words[threadIdx.x] = even(threadIdx.x % 9, start);
}"""

    def even(n: int, trail: int) -> int:
        return (odd(n - 1, n) if n else 0) + n + n % 4 + trail

    def odd(n: int, trail: int) -> int:
        return (even(n - 1, n * 10) if n else 0) + (n if n % 2 else n * 10) + trail

    assert run(source, 32) == [even(i % 9, 7) for i in range(32)]


def test_function_pointers_and_virtual_functions() -> None:
    source = """
using F = unsigned (*)(unsigned);
__device__ __noinline__ unsigned twice(unsigned x) { return 2 * x; }
__device__ __noinline__ unsigned square(unsigned x) { return x * x; }
__device__ __noinline__ unsigned next(unsigned x) { return x + 1; }
__device__ F table[] = {twice, square, next};
struct Base { unsigned n; __device__ virtual unsigned f() const { return n; } };
struct Derived : Base { __device__ unsigned f() const override { return 100 + n; } };
extern "C" __global__ void k(unsigned* words) {
  const unsigned i = threadIdx.x;
  words[i] = table[i % 3](i);
  Base base; base.n = i;
  Derived derived; derived.n = i;
  const Base* some = i % 2 ? &derived : &base;
  words[32 + i] = some->f();
}"""
    got = run(source, 64)
    assert got[:32] == [(2 * i, i * i, i + 1)[i % 3] for i in range(32)]
    assert got[32:] == [i + 100 * (i % 2) for i in range(32)]


def test_call_through_a_wild_pointer_is_a_fault() -> None:
    source = """
extern "C" __global__ void k(unsigned* words) {
  using F = unsigned (*)(unsigned);
  words[0] = reinterpret_cast<F>(reinterpret_cast<unsigned long long>(words) + 1)(3);
}"""
    with pytest.raises(CudaError) as caught:
        run(source, 1)
    assert caught.value.code in (LAUNCH_FAILED, ILLEGAL_ADDRESS, 715, 718)
    reset()


def test_endless_recursion_is_a_fault() -> None:
    source = """
__device__ __noinline__ unsigned f(unsigned n) {
  volatile unsigned m[64] = {n};
  return f(n + 1) + m[n % 64];
}
extern "C" __global__ void k(unsigned* words) { words[0] = f(words[0]); }"""
    with pytest.raises(CudaError) as caught:
        run(source, 1)
    assert caught.value.code in (LAUNCH_FAILED, ILLEGAL_ADDRESS)
    reset()
