# SPDX-License-Identifier: Apache-2.0
"""The smallest things that PyTorch does."""

from __future__ import annotations

import statistics
import time

import torch

from benchmarks.workloads.protocol import Figures
from benchmarks.workloads.support import DEVICE, count, seconds, warm

IN_A_ROW = 200  # fewer than the driver takes, so that the GPU is not what is measured
ROUNDS = 500  # half a second or more: a program that goes on after a pause is slow at first


class Small:
    """x + 1 as the program sees it, and a number brought back."""

    def __init__(self) -> None:
        self._x = torch.ones(8, device=DEVICE)
        self._one = torch.ones((), device=DEVICE)
        warm(lambda: (self._x + 1).sum().item(), 100)

    def measure(self, effort: float) -> Figures:
        n = count(effort, 5000)
        return {
            "x_plus_1": (self._x_plus_1_us(ROUNDS), "us"),
            "item": (1e6 * seconds(n, self._one.item) / n, "us"),
        }

    def _x_plus_1_us(self, n: int) -> float:
        x = self._x
        times_s = []
        for _ in range(n):
            torch.cuda.synchronize()
            begin_s = time.perf_counter()
            for _ in range(IN_A_ROW):
                x + 1
            times_s.append(time.perf_counter() - begin_s)
        return 1e6 * statistics.median(times_s) / IN_A_ROW
