# SPDX-License-Identifier: Apache-2.0
"""cooperative_groups.h: groups within a block, and the grid as one group."""

from __future__ import annotations

import ctypes
import os

import pytest
from software_gpu.cuda_cpp import kernel, run
from software_gpu.gpu import CudaError, gpu

TOO_LARGE = 720
MULTIPROCESSOR_COUNT = 16
HEAD = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
"""


def test_cooperative_groups_of_a_block() -> None:
    source = (
        HEAD
        + """
extern "C" __global__ void k(unsigned* words) {
  const auto block = cg::this_thread_block();
  const unsigned i = block.thread_rank();
  __shared__ unsigned cells[96];
  cells[i] = i * i;
  block.sync();
  unsigned* to = words + 8 * i;
  to[0] = cells[95 - i];
  to[1] = block.size();
  const auto tile = cg::tiled_partition<8>(block);
  to[2] = cg::reduce(tile, i, cg::plus<unsigned>());
  to[3] = tile.meta_group_rank() * 100 + tile.thread_rank();
  to[4] = cg::inclusive_scan(tile, i, cg::plus<unsigned>());
  to[5] = tile.ballot(i % 3 == 0);
  if (i % 3 == 1) {
    const auto active = cg::coalesced_threads();
    to[6] = active.size() * 1000 + active.thread_rank();
    to[7] = cg::reduce(active, i, cg::greater<unsigned>());
  }
}"""
    )
    got = run(source, 8 * 96, n_threads=96)
    for i in range(96):
        first = i // 8 * 8
        warp = [n for n in range(i // 32 * 32, i // 32 * 32 + 32) if n % 3 == 1]
        assert got[8 * i : 8 * i + 8] == [
            (95 - i) ** 2,
            96,
            sum(range(first, first + 8)),
            i // 8 * 100 + i % 8,
            sum(range(first, i + 1)),
            sum(1 << n for n in range(8) if (first + n) % 3 == 0),
            len(warp) * 1000 + warp.index(i) if i % 3 == 1 else 0,
            warp[-1] if i % 3 == 1 else 0,
        ], i


GRID = (
    HEAD
    + """
extern "C" __global__ void k(unsigned* words) {
  const auto grid = cg::this_grid();
  const unsigned i = grid.thread_rank(), n = grid.size();
  for (unsigned round = 0; round < 4; ++round) {
    words[i] += round + 1;
    grid.sync();
    const unsigned other = words[(i + blockDim.x) % n];  // another block's
    grid.sync();
    words[i] += other;
  }
}"""
)


@pytest.mark.timeout(60)
def test_cooperative_grid_waits_for_all_its_blocks() -> None:
    n_blocks = 4 * (os.cpu_count() or 1) + 1
    value = 0
    for round_ in range(4):
        value = 2 * (value + round_ + 1)
    assert run(GRID, 64 * n_blocks, n_blocks, 64, cooperative=True) == [value] * 64 * n_blocks


def test_cooperative_launch_of_too_many_blocks_is_refused() -> None:
    count, per_core = ctypes.c_int(), ctypes.c_int()
    gpu().call("cuDeviceGetAttribute", ctypes.byref(count), MULTIPROCESSOR_COUNT, 0)
    with kernel(GRID, 64) as made:
        function = ctypes.c_void_p()
        gpu().call("cuModuleGetFunction", ctypes.byref(function), made.module, b"k")
        gpu().call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            ctypes.byref(per_core), function, 1024, ctypes.c_size_t(0),
        )  # fmt: skip
        assert per_core.value > 0
        with pytest.raises(CudaError) as caught:
            made.run(count.value * per_core.value + 1, 1024, cooperative=True)
        assert caught.value.code == TOO_LARGE
    gpu().call("cuCtxSynchronize")  # no fault
