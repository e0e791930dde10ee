# SPDX-License-Identifier: Apache-2.0
"""Threads that wait for each other by spinning come to an end, within a warp and between blocks."""

from __future__ import annotations

import pytest
from software_gpu.cuda_cpp import run

# words: the lock, the sum, which only the lock protects
FORMS = {
    "spin": """
  while (atomicCAS(&words[0], 0u, 1u) != 0u);
  __threadfence();
  volatile unsigned* sum = words + 1;
  *sum = *sum + 1;
  __threadfence();
  atomicExch(&words[0], 0u);""",
    "flag": """
  for (bool done = false; !done;) {
    if (atomicCAS(&words[0], 0u, 1u) == 0u) {
      volatile unsigned* sum = words + 1;
      *sum = *sum + 1;
      __threadfence();
      atomicExch(&words[0], 0u);
      done = true;
    }
  }""",
    "backoff": """
  unsigned wait = 8;
  while (atomicCAS(&words[0], 0u, 1u) != 0u) {
    __nanosleep(wait);
    if (wait < 256) wait *= 2;
  }
  volatile unsigned* sum = words + 1;
  *sum = *sum + 1;
  __threadfence();
  atomicExch(&words[0], 0u);""",
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n_blocks", "n_threads"), [(1, 32), (1, 256), (48, 64)])
def test_lock_taken_by_all_threads(form: str, n_blocks: int, n_threads: int) -> None:
    source = f'extern "C" __global__ void k(unsigned* words) {{{FORMS[form]}\n}}'
    assert run(source, 2, n_blocks, n_threads) == [0, n_blocks * n_threads]


TAKEN = """
  volatile unsigned* sum = words + 1;
  *sum = *sum + 1;
  __threadfence();
  atomicExch(&words[0], 0u);"""
# Loops that a group of threads leaves, and is selected anew for, at every pass.
LEFT_LOOPS = {
    "call": """
__device__ __noinline__ bool take(unsigned* lock) { return atomicCAS(lock, 0u, 1u) == 0u; }
extern "C" __global__ void k(unsigned* words) {
  while (!take(words));""",
    "calls_without_polling": """
__device__ __noinline__ bool take(unsigned* lock) {
  return atomicAdd(lock + 2, 1u) % 2 == 0u && atomicCAS(lock, 0u, 1u) == 0u;
}
extern "C" __global__ void k(unsigned* words) {
  while (!take(words));""",
    "divergence": """
extern "C" __global__ void k(unsigned* words) {
  volatile unsigned* other = words + 2;
  for (bool done = false; !done;) {
    if (threadIdx.x & 1) {
      *other = threadIdx.x;
      done = atomicCAS(words, 0u, 1u) == 0u;
    } else {
      done = atomicCAS(words, 0u, 1u) == 0u;
      *other = threadIdx.x;
    }
  }""",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("form", LEFT_LOOPS)
def test_lock_taken_in_a_loop_that_is_left(form: str) -> None:
    assert run(f"{LEFT_LOOPS[form]}{TAKEN}\n}}", 3)[:2] == [0, 32]


@pytest.mark.timeout(60)
def test_lock_of_tickets() -> None:
    source = """
extern "C" __global__ void k(unsigned* words) {
  const unsigned ticket = atomicAdd(words, 1u);
  volatile unsigned* served = words + 1;
  while (*served != ticket);
  words[2] += ticket;
  __threadfence();
  *served = ticket + 1;
}"""
    n = 48 * 64
    assert run(source, 3, n_blocks=48, n_threads=64) == [n, n, n * (n - 1) // 2]


@pytest.mark.timeout(60)
def test_lock_of_shared_memory() -> None:
    source = """
extern "C" __global__ void k(unsigned* words) {
  __shared__ unsigned lock;
  __shared__ volatile unsigned sum;
  if (threadIdx.x == 0) lock = sum = 0;
  __syncthreads();
  while (atomicCAS(&lock, 0u, 1u) != 0u);
  sum = sum + threadIdx.x;
  __threadfence_block();
  atomicExch(&lock, 0u);
  __syncthreads();
  if (threadIdx.x == 0) words[blockIdx.x] = sum;
}"""
    assert run(source, 4, n_blocks=4, n_threads=128) == [128 * 127 // 2] * 4


@pytest.mark.timeout(60)
@pytest.mark.parametrize("consumer", [0, 5])
def test_lock_free_producer_and_consumer_between_blocks(consumer: int) -> None:
    """Even where the block that waits started first."""
    source = f"""
extern "C" __global__ void k(unsigned* words) {{
  volatile unsigned* flag = words;
  volatile unsigned* taken = words + 1;
  for (unsigned i = 1; i <= 100; ++i) {{
    if (blockIdx.x == {consumer} && threadIdx.x == 0) {{
      while (*flag != i);
      __threadfence();
      words[3] += words[2];
      __threadfence();
      *taken = i;
    }} else if (blockIdx.x == {5 - consumer} && threadIdx.x == 0) {{
      words[2] = i * i;
      __threadfence();
      *flag = i;
      while (*taken != i);
    }}
  }}
}}"""
    assert run(source, 4, n_blocks=6)[3] == sum(i * i for i in range(101))


@pytest.mark.timeout(60)
def test_lock_step_handover_within_a_warp() -> None:
    """Each lane waits for the one above it: whoever spins must let the others run."""
    source = """
extern "C" __global__ void k(unsigned* words) {
  volatile unsigned* turn = words;
  const unsigned lane = threadIdx.x;
  while (*turn != 31 - lane);
  words[1 + lane] = *turn;
  __threadfence();
  *turn = *turn + 1;
}"""
    assert run(source, 33) == [32, *reversed(range(32))]
