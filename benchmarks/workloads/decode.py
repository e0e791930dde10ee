# SPDX-License-Identifier: Apache-2.0
"""Greedy decoding by a transformer of GPT-2's size, fp32, one sequence: eagerly, with a cache that
grows; as a CUDA graph and by torch.compile, with a cache of fixed size."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.workloads.protocol import Figures
from benchmarks.workloads.support import DEVICE, SEED, count, seconds, warm

LAYERS, HEADS, WIDTH, VOCABULARY, CONTEXT = 12, 12, 768, 50257, 1024
PROMPT = 16
END_TOKEN = -1  # which never comes: each step looks for it
TOKENS = 128  # of one measurement


class Block(nn.Module):  # type: ignore[misc]
    """Attention and a two-layer network, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any, attend: Any) -> Any:
        q, k, v = (
            part.view(1, -1, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).split(WIDTH, dim=2)
        )
        attended = attend(q, k, v).transpose(1, 2).reshape(1, -1, WIDTH)
        x = x + self.out(attended)
        return x + self.down(gelu(self.up(self.norm_2(x))))


def gelu(x: Any) -> Any:
    """GPT-2's, written out as libraries have it: eight kernels."""
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Any, positions: Any, attends: Any) -> Any:
        x = self.tokens(tokens) + self.positions(positions)
        for block, attend in zip(self.blocks, attends, strict=True):
            x = block(x, attend)
        return functional.linear(self.norm(x[:, -1]), self.tokens.weight)


def model() -> Any:
    torch.manual_seed(SEED)
    torch.set_grad_enabled(False)
    with torch.device(DEVICE):
        return Model().eval()


class Growing:
    """A layer's keys and values, appended to."""

    def __init__(self) -> None:
        self._kv: tuple[Any, Any] | None = None

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        is_prompt = self._kv is None
        if self._kv is not None:
            k, v = torch.cat((self._kv[0], k), dim=2), torch.cat((self._kv[1], v), dim=2)
        self._kv = k, v
        return functional.scaled_dot_product_attention(q, k, v, is_causal=is_prompt)


class Fixed:
    """A layer's keys and values in memory that stays where it is."""

    def __init__(self, position: Any, mask: Any) -> None:
        shape = (1, HEADS, PROMPT + TOKENS, WIDTH // HEADS)
        self._position, self._mask = position, mask
        self._k, self._v = torch.zeros(shape, device=DEVICE), torch.zeros(shape, device=DEVICE)

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        self._k.index_copy_(2, self._position, k)
        self._v.index_copy_(2, self._position, v)
        return functional.scaled_dot_product_attention(q, self._k, self._v, attn_mask=self._mask)


def decode_eagerly(network: Any, n: int) -> list[int]:
    """Return `n` tokens; each step brings two numbers back, as generation loops do."""
    attends = [Growing() for _ in range(LAYERS)]
    tokens = torch.arange(PROMPT, device=DEVICE).view(1, -1)
    positions = tokens.clone()
    unfinished = torch.ones(1, dtype=torch.long, device=DEVICE)
    found = []
    for _ in range(n):
        token = network(tokens, positions, attends).argmax(dim=-1)
        unfinished = unfinished * (token != END_TOKEN).long()
        found.append(token.item())
        if unfinished.max().item() == 0:
            break
        tokens, positions = token.view(1, 1), positions[:, -1:] + 1
    return found


class FixedStep:
    """One step whose inputs and outputs stay where they are."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.token = torch.zeros(1, 1, dtype=torch.long, device=DEVICE)
        self._position = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self._places = torch.arange(PROMPT + TOKENS, device=DEVICE)
        self._mask = torch.zeros(1, 1, 1, PROMPT + TOKENS, dtype=torch.bool, device=DEVICE)
        self._attends = [Fixed(self._position, self._mask) for _ in range(LAYERS)]

    def __call__(self) -> None:
        self._mask.copy_((self._places <= self._position).view(1, 1, 1, -1))
        logits = self._network(self.token, self._position.view(1, 1), self._attends)
        self.token.copy_(logits.argmax(dim=-1, keepdim=True))
        self._position.add_(1)

    def rewind(self) -> None:
        self._position.zero_()
        self.token.zero_()


def decode_by(step: Any, fixed: FixedStep, n: int) -> float:
    """Return the seconds that `n` tokens take, each of them brought back."""
    fixed.rewind()

    def one() -> None:
        step()
        fixed.token.item()

    return seconds(n, one)


class Decode:
    """Eagerly, and by a captured step."""

    def __init__(self) -> None:
        self._network = model()
        warm(lambda: decode_eagerly(self._network, 8))
        self._fixed = FixedStep(self._network)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            warm(self._fixed)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=side):
            self._fixed()

    def measure(self, effort: float) -> Figures:
        n = count(effort, TOKENS)
        eager_s = seconds(1, lambda: decode_eagerly(self._network, n))
        graph_s = decode_by(self._graph.replay, self._fixed, n)
        return {
            "decode_eager": (n / eager_s, "token/s"),
            "decode_graph": (n / graph_s, "token/s"),
        }


class Compiled:
    """The step with a fixed cache, by torch.compile."""

    def __init__(self) -> None:
        self._fixed = FixedStep(model())
        self._step = torch.compile(self._fixed.__call__, dynamic=False)
        warm(self._step, 5)

    def measure(self, effort: float) -> Figures:
        n = count(effort, TOKENS)
        return {"decode_compiled": (n / decode_by(self._step, self._fixed, n), "token/s")}
