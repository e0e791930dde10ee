# SPDX-License-Identifier: Apache-2.0
"""printf in kernels: every conversion, many threads, and that a synchronisation brings the text."""

from __future__ import annotations

import pytest
from software_gpu.cuda_cpp import run

CASES = [
    ('"%d %i %u", -7, 42, 4000000000u', "-7 42 4000000000"),
    ('"%5d|%-5d|%05d|%+d|% d", 42, 42, 42, 42, 42', "   42|42   |00042|+42| 42"),
    ('"%x %X %#x %o %#o", 0xbeef, 0xbeef, 0xbeef, 8, 8', "beef BEEF 0xbeef 10 010"),
    ('"%lld %llu %llx %ld %lu", -5000000000ll, ~0ull, 1ull << 40, -1l, 1ul << 33',
     "-5000000000 18446744073709551615 10000000000 -1 8589934592"),
    ('"%f %.3f %10.2f|%-10.2f|", 3.14159, 3.14159, 3.14159, 3.14159',
     "3.141590 3.142       3.14|3.14      |"),
    ('"%e %.2E %g %G %g", 31415.9, 31415.9, 1e-10, 1e20, 0.5',
     "3.141590e+04 3.14E+04 1e-10 1E+20 0.5"),
    ('"%f %f %a", 1.0f / 0.0f, -1.0 / 0.0, 1.0', "inf -inf 0x1p+0"),
    ('"%c%c %s %10s|%-6s|%.2s", 65, 66, "text", "right", "left", "cut"',
     "AB text      right|left  |cu"),
    ('"%p %p", (void*)0x1234, (void*)0', "0x1234 (nil)"),
    ('"%% %*d %.*f", 6, 12, 2, 1.5', "%     12 1.50"),
    ('"nothing"', "nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "expected"), CASES, ids=range(len(CASES)))
def test_conversion(arguments: str, expected: str, capfd: pytest.CaptureFixture[str]) -> None:
    body = f'words[0] = printf({arguments}); printf("\\n");'
    run(f'extern "C" __global__ void k(unsigned* words) {{ {body} }}', 1, n_threads=1)
    assert capfd.readouterr().out == expected + "\n"


def test_every_thread_prints_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    source = """
extern "C" __global__ void k(unsigned* words) {
  const unsigned i = threadIdx.x;
  if (i % 3 == 0) printf("%u of %u: %s\\n", i, blockIdx.x, i % 2 ? "odd" : "even");
}"""
    run(source, 1, n_blocks=4, n_threads=64)
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == sorted(
        f"{thread} of {block}: {'odd' if thread % 2 else 'even'}"
        for block in range(4)
        for thread in range(0, 64, 3)
    )
