# SPDX-License-Identifier: Apache-2.0
"""Triton's compiler reads the source of these functions."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def softmax_kernel(out, x, stride, n_columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < n_columns
    values = tl.load(x + row * stride + columns, mask=inside, other=float("-inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride + columns, values / tl.sum(values, axis=0), mask=inside)


def softmax(x: Any) -> Any:
    """Of each row of a contiguous (rows, columns) tensor."""
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](
        out, x, x.stride(0), x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1])
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def matmul_kernel(a, b, c, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        left = tl.load(a + rows[:, None] * n + (start + inner)[None, :])
        right = tl.load(b + (start + inner)[:, None] * n + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16))


def matmul(a: Any, b: Any) -> Any:
    """Of two (n, n) half matrices, n a multiple of 64."""
    n, block = a.shape[0], 64
    assert n % block == 0
    c = torch.empty_like(a)
    matmul_kernel[(n // block, n // block)](a, b, c, n, BLOCK=block)
    return c
