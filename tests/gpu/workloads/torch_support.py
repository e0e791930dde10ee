# SPDX-License-Identifier: Apache-2.0
"""What the PyTorch workloads share: seeds, models with random weights, training steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .record import Record

DEVICE = "cuda"
SEED = 20_260


def seed() -> None:
    torch.manual_seed(SEED)


def norms(parameters: Iterable[Any]) -> list[float]:
    """The norm of each gradient."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    assert gradients
    return [float(norm) for norm in torch.stack([g.float().norm() for g in gradients]).cpu()]


def floats(tensor: Any, n: int = 64) -> list[float]:
    """`n` values spread over the tensor."""
    flat = tensor.detach().flatten()
    step = max(1, flat.numel() // n)
    return [float(value) for value in flat[::step][:n].float().cpu()]


def train(
    record: Record, name: str, loss_of: Callable[[], Any], optimizer: Any, steps: int
) -> None:
    """Train; keeps the gradients' norms of the first step, the losses, and the time of a step."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    losses: list[Any] = []

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = loss_of()
        loss.backward()
        if not losses:
            record.close(f"{name}: gradients of the first step", norms(parameters), 1e-2)
        optimizer.step()
        losses.append(loss.detach())

    step()
    torch.cuda.synchronize()
    with record.timed(f"{name}: {steps - 1} steps"):
        for _ in range(steps - 1):
            step()
        torch.cuda.synchronize()
    curve = [float(loss) for loss in torch.stack(losses).float().cpu()]
    assert all(value == value for value in curve), curve
    record.close(f"{name}: losses", curve, 2e-2)
