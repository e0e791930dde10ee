# SPDX-License-Identifier: Apache-2.0
"""Parts of PyTorch that lean on parts of the driver of their own."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import torch

from .record import Record
from .torch_support import DEVICE, floats, seed


def sdpa(record: Record) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for backend in ("MATH", "EFFICIENT_ATTENTION", "FLASH_ATTENTION", "CUDNN_ATTENTION"):
        seed()
        q, k, v = (
            torch.randn(2, 8, 512, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        )
        with sdpa_kernel(getattr(SDPBackend, backend)):

            def run(q: Any = q, k: Any = k, v: Any = v) -> Any:
                out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                out.sum().backward()
                torch.cuda.synchronize()
                return out

            out = run()
            record.close(f"{backend}: output", floats(out), 1e-2)
            record.close(f"{backend}: gradient of q", floats(q.grad), 2e-2)
            record.median_of(f"{backend}: forward and backward", run)


def compile(record: Record) -> None:
    seed()
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 2048),
        torch.nn.GELU(),
        torch.nn.LayerNorm(2048),
        torch.nn.Linear(2048, 512),
    ).to(DEVICE)
    x = torch.randn(64, 512, device=DEVICE)
    for mode in ("default", "reduce-overhead"):
        compiled = torch.compile(model, mode=mode)

        def step(compiled: Any = compiled) -> Any:
            model.zero_grad(set_to_none=True)
            out = compiled(x)
            out.square().mean().backward()
            torch.cuda.synchronize()
            return out

        with record.timed(f"{mode}: compiling"):
            out = step()
        record.close(f"{mode}: output", floats(out), 1e-3)
        record.close(f"{mode}: gradient", floats(model[0].weight.grad), 1e-2)
        record.median_of(f"{mode}: step", step, 20)


def torch_graphs(record: Record) -> None:
    seed()
    layer = torch.nn.Linear(256, 256, device=DEVICE)
    x = torch.randn(32, 256, device=DEVICE)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            layer(x).relu()
    torch.cuda.current_stream().wait_stream(side)
    graph, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.no_grad():
        with torch.cuda.graph(graph):
            y = layer(x).relu()
        with torch.cuda.graph(second, pool=graph.pool()):
            z = y * 2 + torch.rand_like(y)
        for n in range(3):
            x.copy_(torch.full_like(x, 0.1 * n))
            graph.replay()
            second.replay()
            record.close(f"replay {n}", floats(y) + floats(z), 1e-5)

    def replay_all() -> None:
        for _ in range(100):
            graph.replay()
        torch.cuda.synchronize()

    record.median_of("100 replays", replay_all)
    graphed = torch.cuda.make_graphed_callables(
        torch.nn.Linear(256, 8, device=DEVICE), (x.clone(),)
    )
    out = graphed(x)
    out.sum().backward()
    record.close("graphed callable", floats(out), 1e-4)


def allocate_and_compute(record: Record) -> None:
    """Memory that grows, shrinks and is given back, in two streams."""
    seed()
    streams = [torch.cuda.Stream() for _ in range(2)]
    sums = []
    for mib in (1, 17, 64, 3, 128, 9, 256):
        for stream in streams:
            with torch.cuda.stream(stream):
                block = torch.full((mib << 18,), 1.0, device=DEVICE)
                sums.append(block.sum(dtype=torch.float64))
    torch.cuda.synchronize()
    record.equal("sums", [float(value) for value in sums])
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    try:
        torch.empty(total * 2, dtype=torch.uint8, device=DEVICE)
        record.equal("twice the memory", "was given")
    except torch.cuda.OutOfMemoryError:
        record.equal("twice the memory", "OutOfMemoryError")

    def churn() -> None:
        for n in range(200):
            torch.empty((n % 13 + 1) << 18, device=DEVICE).fill_(n)
        torch.cuda.synchronize()

    record.median_of("200 allocations", churn)


def expandable_segments(record: Record) -> None:
    allocate_and_compute(record)


def malloc_async(record: Record) -> None:
    allocate_and_compute(record)


class Squares(torch.utils.data.Dataset[Any]):  # type: ignore[misc]
    """Item n: 1,000 times n squared."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, n: int) -> Any:
        return torch.full((1000,), float(n * n))


def dataloader(record: Record) -> None:
    torch.ones(1, device=DEVICE)
    total = torch.zeros((), dtype=torch.float64, device=DEVICE)
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=32, num_workers=4, pin_memory=True, multiprocessing_context="fork"
    )
    with record.timed("one epoch"):
        for batch in loader:
            assert batch.is_pinned()
            total += batch.to(DEVICE, non_blocking=True).sum(dtype=torch.float64)
        record.equal("sum", float(total))


def torch_math(record: Record) -> None:
    seed()
    a = torch.randn(256, 256, device=DEVICE, dtype=torch.float64)
    spd = a @ a.T + 256 * torch.eye(256, device=DEVICE, dtype=torch.float64)
    record.close("fft", floats(torch.fft.rfft2(a).abs()), 1e-9)
    record.close("cholesky", floats(torch.linalg.cholesky(spd)), 1e-9)
    record.close("solve", floats(torch.linalg.solve(spd, a)), 1e-9)
    record.close("svd", floats(torch.linalg.svdvals(a)), 1e-9)
    record.close("eigh", floats(torch.linalg.eigvalsh(spd)), 1e-9)
    record.close("qr", floats(torch.linalg.qr(a).R.abs()), 1e-6)
    sparse = torch.where(a > 1, a, 0).to_sparse_csr()
    record.close("sparse", floats(sparse @ a), 1e-9)
    record.digest("random", torch.randn(10_000, device=DEVICE).cpu().numpy())
    record.digest("randperm", torch.randperm(100_000, device=DEVICE).cpu().numpy())
    record.digest("sort", torch.sort(a.flatten()).values.cpu().numpy())
    x, w = (torch.randn(64, 64, device=DEVICE).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=DEVICE)
    out = torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    record.close("fp8 matmul", floats(out), 1e-2)

    def solve() -> None:
        torch.linalg.solve(spd, a)
        torch.cuda.synchronize()

    record.median_of("solve 256", solve)


def profiler(record: Record) -> None:
    x = torch.randn(256, 256, device=DEVICE)
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CPU]) as profile:
        (x @ x).sum().item()
    record.equal(
        "CPU events", sorted({e.key for e in profile.key_averages() if e.key == "aten::mm"})
    )
    with contextlib.redirect_stderr(io.StringIO()):
        with torch.profiler.profile(activities=[activity.CPU, activity.CUDA]) as profile:
            (x @ x).sum().item()
    names = {event.key for event in profile.key_averages()}
    record.equal("CPU events beside CUDA's", "aten::mm" in names)


def read_shared(pipe: Any) -> None:
    """The other process: adds up a tensor of its parent's, then doubles it."""
    tensor = pipe.recv()
    pipe.send(float(tensor.sum()))
    tensor.mul_(2)
    torch.cuda.synchronize()
    del tensor
    pipe.send("done")


def torch_ipc(record: Record) -> None:
    context = torch.multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    # A daemon: Python waits for ever for other children, of a parent that has failed, too.
    process = context.Process(target=read_shared, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    tensor = torch.arange(100_000, dtype=torch.float32, device=DEVICE)
    pipe.send(tensor)  # raises what the driver refuses; a queue's thread prints that, and no more
    assert pipe.poll(120)
    record.equal("sum seen there", pipe.recv())
    assert pipe.poll(120)
    assert pipe.recv() == "done"
    process.join(60)
    record.equal("exit status", process.exitcode)
    record.equal("sum seen here", float(tensor.sum(dtype=torch.float64)))
