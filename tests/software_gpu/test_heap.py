# SPDX-License-Identifier: Apache-2.0
"""malloc and free in kernels: pieces outlive the launch, are freed once, and are not endless."""

from __future__ import annotations

import ctypes
import itertools

import pytest
from software_gpu.gpu import CudaError, gpu

N = 64
ILLEGAL_ADDRESS = 700
PTX = """
.extern .func (.param .b64 r) malloc(.param .b64 n);
.extern .func free(.param .b64 p);
.visible .entry take(.param .u64 out, .param .u64 n) {
  .reg .b64 to, offset, size, piece; .reg .b32 tid; .reg .pred none;
  ld.param.u64 to, [out]; ld.param.u64 size, [n]; mov.u32 tid, %tid.x;
  mul.wide.u32 offset, tid, 8; add.u64 to, to, offset;
  { .param .b64 a; .param .b64 b; st.param.b64 [a], size; call.uni (b), malloc, (a);
    ld.param.b64 piece, [b]; }
  st.global.u64 [to], piece;
  setp.eq.u64 none, piece, 0;
  @!none st.u32 [piece], tid;
  ret; }
.visible .entry give(.param .u64 from, .param .u64 out) {
  .reg .b64 at, to, offset, piece; .reg .b32 tid, value;
  ld.param.u64 at, [from]; ld.param.u64 to, [out]; mov.u32 tid, %tid.x;
  mul.wide.u32 offset, tid, 8; add.u64 at, at, offset; ld.global.u64 piece, [at];
  ld.u32 value, [piece];
  mul.wide.u32 offset, tid, 4; add.u64 to, to, offset; st.global.u32 [to], value;
  { .param .b64 a; st.param.b64 [a], piece; call.uni free, (a); }
  ret; }
"""


def numbers(pointer: int, size: int) -> list[int]:
    data = gpu().read(pointer, N * size)
    return [int.from_bytes(data[i : i + size], "little") for i in range(0, N * size, size)]


def test_pieces_are_apart_and_outlive_the_launch() -> None:
    module, pieces, values = gpu().load(PTX), gpu().allocate(8 * N), gpu().allocate(4 * N)
    for _ in range(2):  # what was freed can be had again
        gpu().launch(module, "take", N, 1, ctypes.c_uint64(pieces), ctypes.c_uint64(100 << 10))
        got = sorted(numbers(pieces, 8))
        assert all(b - a >= 100 << 10 and a % 16 == 0 for a, b in itertools.pairwise(got))
        gpu().launch(module, "give", N, 1, ctypes.c_uint64(pieces), ctypes.c_uint64(values))
        assert numbers(values, 4) == list(range(N))


def test_what_there_is_no_room_for_is_null_and_a_second_free_a_fault() -> None:
    module, pieces, values = gpu().load(PTX), gpu().allocate(8 * N), gpu().allocate(4 * N)
    gpu().launch(module, "take", 2, 1, ctypes.c_uint64(pieces), ctypes.c_uint64(5 << 20))
    assert [piece == 0 for piece in numbers(pieces, 8)[:2]] == [False, True]
    gpu().launch(module, "give", 1, 1, ctypes.c_uint64(pieces), ctypes.c_uint64(values))
    with pytest.raises(CudaError) as caught:
        gpu().launch(module, "give", 1, 1, ctypes.c_uint64(pieces), ctypes.c_uint64(values))
    assert caught.value.code == ILLEGAL_ADDRESS
    gpu().call("cuDevicePrimaryCtxReset_v2", 0)
    gpu.cache_clear()
