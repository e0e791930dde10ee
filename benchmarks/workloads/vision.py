# SPDX-License-Identifier: Apache-2.0
"""ResNet-50 and Inception v3: torchvision's, with random weights and synthetic images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch.nn import functional

from benchmarks.workloads.protocol import Figures
from benchmarks.workloads.support import DEVICE, SEED, count, seconds, warm

N_CLASSES = 1000
# A second, whatever the effort: a program that goes on after a pause is slow at first.
N_SMALL_STEPS = 60


def batch(n: int, side: int) -> tuple[Any, Any]:
    images = torch.randn(n, 3, side, side, device=DEVICE)
    return images, torch.randint(0, N_CLASSES, (n,), device=DEVICE)


def training_step(
    network: Any, optimizer: Any, images: Any, labels: Any, is_bf16: bool
) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=is_bf16):
            out = network(images)
            if isinstance(out, tuple):  # Inception's, with an auxiliary head
                loss = sum(
                    weight * functional.cross_entropy(logits, labels)
                    for weight, logits in zip((1.0, 0.4), out, strict=True)
                )
            else:
                loss = functional.cross_entropy(out, labels)
        loss.backward()
        optimizer.step()

    return step


class ResNet:
    """Inference with one image; training with two and with 64."""

    def __init__(self) -> None:
        torch.manual_seed(SEED)
        with torch.device(DEVICE):
            network = torchvision.models.resnet50(weights=None)
            asked = torchvision.models.resnet50(weights=None).eval()
        optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
        image, _ = batch(1, 224)

        def infer() -> None:
            with torch.inference_mode():
                asked(image)

        def train(n: int, is_bf16: bool) -> Callable[[], Any]:
            return warm(training_step(network, optimizer, *batch(n, 224), is_bf16))

        self._infer = warm(infer)
        self._fp32_2, self._bf16_2 = train(2, False), train(2, True)
        self._bf16_64 = train(64, True)

    def measure(self, effort: float) -> Figures:
        def images_per_s(step: Callable[[], Any], n_images: int, n: int) -> tuple[float, str]:
            return n * n_images / seconds(n, step), "img/s"

        return {
            "resnet_inference": images_per_s(self._infer, 1, count(effort, 300)),
            "resnet_train_2": images_per_s(self._fp32_2, 2, N_SMALL_STEPS),
            "resnet_bf16_2": images_per_s(self._bf16_2, 2, N_SMALL_STEPS),
            "resnet_bf16_64": images_per_s(self._bf16_64, 64, count(effort, 25)),
        }


class Inception:
    """As the published measurement of remoting over RDMA has it."""

    def __init__(self) -> None:
        torch.manual_seed(SEED)
        with torch.device(DEVICE):
            network = torchvision.models.inception_v3(weights=None, init_weights=False)
        optimizer = torch.optim.RMSprop(network.parameters(), lr=1e-4)
        self._step = warm(training_step(network, optimizer, *batch(128, 299), True))

    def measure(self, effort: float) -> Figures:
        n = count(effort, 20)
        return {"inception_bf16_128": (128 * n / seconds(n, self._step), "img/s")}
