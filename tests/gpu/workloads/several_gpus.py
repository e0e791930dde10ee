# SPDX-License-Identifier: Apache-2.0
"""What needs more than one GPU: NCCL's collectives, DDP, JAX's pmap. No multicast (NVLS)."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import torch

from .record import Record


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def start_rank(rank: int, n: int, port: int, body: Callable[..., None], queue: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", rank=rank, world_size=n)
    body(rank, n, queue)
    torch.distributed.destroy_process_group()


def on_ranks(n: int, body: Callable[..., None]) -> dict[str, Any]:
    """Run `body(rank, n, queue)` in a process for each GPU; return what rank 0 puts there.

    By fork, before CUDA's start: each of them importing torch would take minutes in an emulated VM.
    """
    queue = torch.multiprocessing.get_context("fork").SimpleQueue()
    arguments = (n, free_port(), body, queue)
    torch.multiprocessing.start_processes(start_rank, arguments, nprocs=n, start_method="fork")
    answers: dict[str, Any] = queue.get()
    return answers


def all_collectives(rank: int, n: int, queue: Any) -> None:
    dist = torch.distributed
    x = torch.arange(1024.0, device="cuda") + rank
    answers: dict[str, float] = {}

    def keep(name: str, tensor: Any) -> None:
        torch.cuda.synchronize()
        answers[name] = float(tensor.double().sum())

    for op in ("SUM", "PRODUCT", "MIN", "MAX", "AVG"):
        y = x / 1024 + 1
        dist.all_reduce(y, getattr(dist.ReduceOp, op))
        keep(f"all_reduce {op}", y)
    y = x.clone()
    dist.broadcast(y, n - 1)
    keep("broadcast", y)
    dist.reduce(y, 0)
    keep("reduce", y)
    gathered = torch.empty(n * 1024, device="cuda")
    dist.all_gather_into_tensor(gathered, x)
    keep("all_gather", gathered)
    part = torch.empty(1024, device="cuda")
    dist.reduce_scatter_tensor(part, gathered)
    keep("reduce_scatter", part)
    exchanged = torch.empty_like(gathered)
    dist.all_to_all_single(exchanged, gathered * (rank + 1))
    keep("all_to_all", exchanged)
    parts = [torch.empty_like(x) for _ in range(n)] if rank == 0 else None
    dist.gather(x, parts, 0)
    keep("gather", torch.cat(parts) if parts else x)
    dist.scatter(part, [x + r for r in range(n)] if rank == 0 else None, 0)
    keep("scatter", part)
    received = torch.empty_like(x)
    requests = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x, (rank + 1) % n),
            dist.P2POp(dist.irecv, received, (rank - 1) % n),
        ]
    )
    for request in requests:
        request.wait()
    keep("send and receive", received)
    dist.barrier()
    if rank == 0:
        queue.put(answers)


def train_ddp(rank: int, n: int, queue: Any) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)
    ).cuda()
    ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    generator = torch.Generator(device="cuda").manual_seed(rank)
    losses = []
    for _ in range(50):
        x = torch.randn(64, 128, device="cuda", generator=generator)
        loss = ddp(x).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    if rank == 0:
        weights = [float(p.detach().double().norm()) for p in model.parameters()]
        queue.put({"losses": losses, "weights": weights})


def collectives(record: Record, n: int) -> None:
    with record.timed("start to end"):
        for name, value in on_ranks(n, all_collectives).items():
            record.close(name, [value], 1e-6)


def ddp(record: Record, n: int) -> None:
    with record.timed("50 steps, start to end"):
        for name, values in on_ranks(n, train_ddp).items():
            record.close(name, values, 1e-3)


def nccl_2(record: Record) -> None:
    collectives(record, 2)


def nccl_4(record: Record) -> None:
    collectives(record, 4)


def ddp_2(record: Record) -> None:
    ddp(record, 2)


def ddp_4(record: Record) -> None:
    ddp(record, 4)


def jax_pmap(record: Record) -> None:
    import jax

    n = 2
    devices = jax.devices()[:n]
    summed = jax.pmap(lambda x: jax.lax.psum(x * x, "i"), axis_name="i", devices=devices)
    x = jax.numpy.arange(n * 1000.0).reshape(n, 1000)
    record.close("psum", summed(x)[0][:64].tolist(), 1e-6)
    record.median_of("pmap", lambda: jax.block_until_ready(summed(x)), 20)


def peers(record: Record) -> None:
    record.equal("can access", torch.cuda.can_device_access_peer(0, 1))
    x = torch.arange(1_000_000.0, device="cuda:0")
    y = x.to("cuda:1") * 2
    record.equal("there and back", float(y.to("cuda:0").sum(dtype=torch.float64)))
    block = torch.ones(64 << 20, dtype=torch.uint8, device="cuda:0")

    def copy() -> None:
        block.to("cuda:1")
        torch.cuda.synchronize(1)

    record.median_of("copy of 64 MiB", copy, 20)
