# SPDX-License-Identifier: Apache-2.0
"""Other ways to a GPU from Python: CuPy, JAX, numba, Triton, cuda-python, NVML."""

from __future__ import annotations

from typing import Any

from .record import Record


def cupy(record: Record) -> None:
    import cupy as cp
    import numpy as np

    a = cp.arange(1_000_000, dtype=cp.float32)
    record.equal("sum of squares", float((a.astype(cp.float64) ** 2).sum()))
    cube = cp.RawKernel(
        'extern "C" __global__ void cube(double* x, int n)'
        "{ int i = blockDim.x * blockIdx.x + threadIdx.x; if (i < n) x[i] = x[i] * x[i] * x[i]; }",
        "cube",
    )
    x = cp.linspace(0, 1, 1000)
    cube((4,), (256,), (x, 1000))
    record.digest("RawKernel", x.get())
    m = cp.asarray(np.random.default_rng(1).standard_normal((300, 300)))
    record.close("matmul", (m @ m).ravel()[:64].get(), 1e-9)
    record.close("fft", cp.abs(cp.fft.fft2(m)).ravel()[:64].get(), 1e-9)
    record.digest("random", cp.random.default_rng(7).random(10_000).get())
    record.digest("sort", cp.sort(m.ravel()).get())
    pinned = cp.cuda.alloc_pinned_memory(8000)
    host = np.frombuffer(pinned, np.float64, 1000)
    with cp.cuda.Stream(non_blocking=True) as stream:
        x.get(stream=stream, out=host)
        stream.synchronize()
    record.digest("pinned", host)
    old = cp.cuda.get_allocator()
    cp.cuda.set_allocator(cp.cuda.MemoryPool(cp.cuda.malloc_managed).malloc)
    managed = cp.ones(100_000)
    record.equal("managed", float(managed.sum()))
    cp.cuda.set_allocator(old)
    record.median_of("x + 1 and back", lambda: (x + 1).get(), 50)


def loss_of(weights: Any, x: Any, y: Any) -> Any:
    import jax.numpy as jnp

    hidden = jnp.tanh(x @ weights[0])
    return jnp.mean((hidden @ weights[1] - y) ** 2)


def jax(record: Record) -> None:
    import jax as j

    keys = j.random.split(j.random.PRNGKey(3), 4)
    weights = [0.1 * j.random.normal(keys[0], (64, 128)), 0.1 * j.random.normal(keys[1], (128, 8))]
    x, y = j.random.normal(keys[2], (256, 64)), j.random.normal(keys[3], (256, 8))
    step = j.jit(
        lambda w, x, y: [p - 0.1 * g for p, g in zip(w, j.grad(loss_of)(w, x, y), strict=True)]
    )
    with record.timed("compiling"):
        weights = j.block_until_ready(step(weights, x, y))
    losses = []
    for _ in range(100):
        weights = step(weights, x, y)
        losses.append(float(loss_of(weights, x, y)))
    record.close("losses", losses, 1e-3)
    per_row = j.jit(j.vmap(lambda row: loss_of(weights, row, y[0])))
    record.close("vmap", per_row(x)[:64].tolist(), 1e-3)
    record.median_of("step", lambda: j.block_until_ready(step(weights, x, y)), 50)


def numba(record: Record) -> None:
    import numpy as np

    # NumPy 2.4 has it no longer, numba-cuda of 2025 asks for it.
    vars(np).setdefault("row_stack", np.vstack)
    from numba import cuda, int32

    @cuda.jit  # type: ignore[untyped-decorator]
    def histogram(values: Any, counts: Any) -> None:
        local = cuda.shared.array(16, int32)
        if cuda.threadIdx.x < 16:
            local[cuda.threadIdx.x] = 0
        cuda.syncthreads()
        i = cuda.grid(1)
        if i < values.size:
            cuda.atomic.add(local, values[i] % 16, 1)
        cuda.syncthreads()
        if cuda.threadIdx.x < 16:
            cuda.atomic.add(counts, cuda.threadIdx.x, local[cuda.threadIdx.x])

    values = np.arange(100_003, dtype=np.int32) ** 2 % 1009
    stream = cuda.stream()
    on_device = cuda.to_device(values, stream=stream)
    counts = cuda.to_device(np.zeros(16, np.int32), stream=stream)
    histogram[400, 256, stream](on_device, counts)
    record.equal("histogram", counts.copy_to_host(stream=stream).tolist())
    expected = np.bincount(values % 16, minlength=16).tolist()
    stream.synchronize()
    assert record.same["histogram"] == expected

    def launch() -> None:
        histogram[400, 256, stream](on_device, counts)
        stream.synchronize()

    record.median_of("launch and wait", launch, 50)


def triton(record: Record) -> None:
    import torch

    from .triton_kernels import matmul, softmax

    torch.manual_seed(5)
    x = torch.randn(512, 781, device="cuda")
    y = softmax(x)
    torch.testing.assert_close(y, torch.softmax(x, 1))
    record.digest("softmax", y.cpu().numpy())
    a, b = (torch.randn(256, 256, device="cuda", dtype=torch.float16) for _ in range(2))
    c = matmul(a, b)
    torch.testing.assert_close(c, a @ b, atol=1e-1, rtol=1e-2)
    record.digest("matmul", c.cpu().numpy())

    def run() -> None:
        matmul(a, b)
        torch.cuda.synchronize()

    record.median_of("matmul 256", run, 50)


SAXPY = """
extern "C" __global__ void saxpy(float a, const float* x, float* y, size_t n) {
  size_t i = (size_t)blockDim.x * blockIdx.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
"""


def cuda_python(record: Record) -> None:
    import ctypes

    import numpy as np
    from cuda.core import (
        Device,
        LaunchConfig,
        Linker,
        LinkerOptions,
        Program,
        ProgramOptions,
        launch,
    )

    device = Device()
    device.set_current()
    stream = device.create_stream()
    arch = f"sm_{''.join(str(part) for part in device.compute_capability)}"
    options = ProgramOptions(arch=arch, relocatable_device_code=True)
    ptx = Program(SAXPY, "c++", options).compile("ptx")
    linked = Linker(ptx, options=LinkerOptions(arch=arch)).link("cubin")
    kernel = linked.get_kernel("saxpy")
    n = 100_000
    x, y = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    buffers = [device.allocate(x.nbytes, stream=stream) for _ in range(2)]
    from cuda.bindings import driver

    def check(status: Any) -> None:
        assert status[0] == driver.CUresult.CUDA_SUCCESS, status

    for buffer, host in zip(buffers, (x, y), strict=True):
        check(driver.cuMemcpyHtoD(int(buffer.handle), host.ctypes.data, host.nbytes))
    config = LaunchConfig(grid=(n + 255) // 256, block=256)
    launch(stream, config, kernel, ctypes.c_float(2.0), *buffers, ctypes.c_size_t(n))
    stream.sync()
    check(driver.cuMemcpyDtoH(y.ctypes.data, int(buffers[1].handle), y.nbytes))
    assert (y == 2 * x + 1).all()
    record.digest("saxpy", y)
    record.equal("arch", arch)

    def go() -> None:
        launch(stream, config, kernel, ctypes.c_float(0.0), *buffers, ctypes.c_size_t(n))
        stream.sync()

    record.median_of("launch and wait", go, 50)
