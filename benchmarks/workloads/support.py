# SPDX-License-Identifier: Apache-2.0
"""How a workload is timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

DEVICE = "cuda"
SEED = 20_260


def seconds(n: int, step: Callable[[], Any]) -> float:
    """Return how long `n` steps take, all of their work included."""
    torch.cuda.synchronize()
    begin_s = time.perf_counter()
    for _ in range(n):
        step()
    torch.cuda.synchronize()
    return time.perf_counter() - begin_s


def count(effort: float, n: int) -> int:
    """Return how many of `n` are measured."""
    return max(2, round(effort * n))


def warm(step: Callable[[], Any], n: int = 3) -> Callable[[], Any]:
    for _ in range(n):
        step()
    torch.cuda.synchronize()
    return step
