# SPDX-License-Identifier: Apache-2.0
"""Divergent code comes together again: what follows is passed by the warp, not by each path."""

from __future__ import annotations

import pytest
from software_gpu.cuda_cpp import run

PASS = """
__device__ __forceinline__ void pass(unsigned* words) {
  const unsigned mask = __activemask();
  words[1 + threadIdx.x] = mask;
  if ((mask & ((1u << threadIdx.x) - 1)) == 0) atomicAdd(words, 1u);  // its lowest lane counts it
}
__device__ __noinline__ unsigned work(unsigned x) {
  unsigned sum = 0;
  for (unsigned i = 0; i < x; ++i) sum += i * x;
  return sum;
}
__device__ __noinline__ unsigned nested(unsigned x) {
  if (x & 1) return work(x) + (x & 2 ? work(x / 2) : 1);
  return x & 4 ? work(3) : 0;
}
"""
DIVERGENT = {
    "if_else": "if (i & 1) s += work(i); else s -= work(i + 2);",
    "nested_if": "if (i & 1) { if (i & 2) s += work(i); else s ^= 3; } else if (i & 4) s -= 2;",
    "loop": "for (unsigned n = 0; n < i % 7; ++n) s += work(n);",
    "loop_break": "for (unsigned n = 0;; ++n) { if (n == i) break; if (n & 1) continue; s ^= i; }",
    "loops": "for (unsigned n = 0; n < i % 5; ++n) for (unsigned m = 0; m < n; ++m) s += work(m);",
    "switch": "switch (i % 6) { case 0: s += work(i); break; case 1: s ^= 5; case 2: s += 7; break;"
    " case 3: s = work(s); break; case 4: break; default: s -= work(9); }",
    "calls": "s += nested(i);",
    "pointers": "unsigned (*f)(unsigned) = i & 1 ? work : nested; s += f(i);",
}


def passes(code: str) -> list[int]:
    source = f"""{PASS}
extern "C" __global__ void k(unsigned* words) {{
  const unsigned i = threadIdx.x;
  volatile unsigned seed = 1;
  unsigned s = seed;
  {code}
  pass(words);
  words[40 + i] = s;
}}"""
    return run(source, 72)[:33]


@pytest.mark.parametrize("form", DIVERGENT)
def test_reconverges_behind(form: str) -> None:
    assert passes(DIVERGENT[form]) == [1] + [0xFFFFFFFF] * 32


def test_reconverges_without_those_that_returned() -> None:
    left = sum(1 << i for i in range(32) if i % 3)
    got = passes("if (i % 3 == 0) return; if (i & 1) s += work(i);")
    assert got == [1] + [left if i % 3 else 0 for i in range(32)]


def test_reconverges_in_each_turn_of_a_loop() -> None:
    got = passes("for (unsigned n = 0; n < 9; ++n) { if ((i + n) & 1) s += work(n); pass(words); }")
    assert got == [1 + 9] + [0xFFFFFFFF] * 32
