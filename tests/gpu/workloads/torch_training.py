# SPDX-License-Identifier: Apache-2.0
"""Models that are trained and asked: ResNet-50, a transformer of GPT-2's size, generation."""

from __future__ import annotations

import copy
from typing import Any

import torch

from .record import Record
from .torch_support import DEVICE, floats, seed, train

N_STEPS = 50


def optimizers(parameters: list[Any]) -> dict[str, Any]:
    """SGD and Adam, each fused and foreach."""
    return {
        f"{kind} {form}": make(parameters, lr=rate, **{form: True})
        for kind, make, rate in (("SGD", torch.optim.SGD, 1e-3), ("Adam", torch.optim.Adam, 1e-5))
        for form in ("fused", "foreach")
    }


def train_with_each(record: Record, model: Any, loss_of: Any) -> None:
    """The first optimizer for all steps, the others for few; each from the same weights."""
    weights = copy.deepcopy(model.state_dict())
    names = list(optimizers(list(model.parameters())))
    for index, name in enumerate(names):
        model.load_state_dict(weights)
        optimizer = optimizers(list(model.parameters()))[name]
        train(record, name, loss_of, optimizer, N_STEPS if index == 0 else 5)


def resnet50(record: Record) -> None:
    import torchvision

    seed()
    model = torchvision.models.resnet50(weights=None).to(DEVICE)
    images = torch.randn(32, 3, 224, 224, device=DEVICE)
    labels = torch.randint(0, 1000, (32,), device=DEVICE)

    def loss_of() -> Any:
        return torch.nn.functional.cross_entropy(model(images), labels)

    train_with_each(record, model, loss_of)
    model.eval()
    with torch.inference_mode():
        one = images[:1]
        record.close("fp32 logits", floats(model(one)), 1e-2)
        record.median_of("inference, batch 1", lambda: model(one).cpu())


def resnet50_step(record: Record) -> None:
    import torchvision

    seed()
    with torch.device(DEVICE):
        model = torchvision.models.resnet50(weights=None)
        images, labels = torch.randn(4, 3, 224, 224), torch.randint(0, 1000, (4,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    loss_of = torch.nn.functional.cross_entropy
    train(record, "SGD fused", lambda: loss_of(model(images), labels), optimizer, 2)


def linear_step(record: Record) -> None:
    seed()
    with torch.device(DEVICE):
        layers = torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 16)
        model = torch.nn.Sequential(*layers)
        x = torch.randn(64, 256)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    train(record, "Adam fused", lambda: model(x).square().mean(), optimizer, 4)


def gpt2(record: Record) -> None:
    import transformers

    seed()
    config = transformers.GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    model = transformers.GPT2LMHeadModel(config).to(DEVICE)
    tokens = torch.randint(0, config.vocab_size, (8, 256), device=DEVICE)
    train_with_each(record, model, lambda: model(tokens, labels=tokens).loss)


def generate(record: Record) -> None:
    import transformers

    seed()
    config = transformers.LlamaConfig(
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=8192,
        max_position_embeddings=512,
    )
    model = transformers.LlamaForCausalLM(config).to(DEVICE).eval()
    prompt = torch.randint(0, config.vocab_size, (1, 16), device=DEVICE)
    for cache in ("dynamic", "static"):

        def tokens(cache: str = cache) -> Any:
            return model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=64,
                min_new_tokens=64,
                do_sample=False,
                cache_implementation=cache,
                pad_token_id=0,
            ).cpu()

        # With the static cache, generate compiles its step: Triton's kernels in CUDA graphs.
        record.median_of(f"{cache} cache, 64 tokens", tokens, 3)
        record.equal(f"{cache} cache", tokens().flatten().tolist())
