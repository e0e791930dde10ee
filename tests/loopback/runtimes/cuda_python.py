# SPDX-License-Identifier: Apache-2.0
"""cuda-python (cuda.bindings) with NVRTC: a vector add, events, a captured graph, and an error.

Prints one line per check; the same natively and remoted. Knows nothing of kvgpu.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from cuda.bindings import driver, nvrtc

N = 10_000
N_BYTES = 4 * N
KERNELS = b"""
extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
extern "C" __global__ void scale(float* values, float factor, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] *= factor;
}
"""
Floats = ctypes.c_float * N
failures: list[str] = []


def check(answer: tuple[Any, ...]) -> Any:
    """Return what a call gave beside its status; raise if that is an error."""
    status, *results = answer
    if int(status) != 0:
        raise RuntimeError(f"{status!r}")
    return results[0] if len(results) == 1 else tuple(results)


def report(what: str, correct: bool) -> None:
    print(f"{what}: {'ok' if correct else 'WRONG'}", flush=True)
    if not correct:
        failures.append(what)


def compile_ptx() -> bytes:
    program = check(nvrtc.nvrtcCreateProgram(KERNELS, b"kernels.cu", 0, [], []))
    check(nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_80"]))
    ptx: bytes = b" " * check(nvrtc.nvrtcGetPTXSize(program))
    check(nvrtc.nvrtcGetPTX(program, ptx))
    return ptx


def launch(function: Any, stream: Any, values: tuple[Any, ...], types: tuple[Any, ...]) -> None:
    shape = ((N + 255) // 256, 1, 1, 256, 1, 1)
    check(driver.cuLaunchKernel(function, *shape, 0, stream, (values, types), 0))


def main() -> int:
    check(driver.cuInit(0))
    device = check(driver.cuDeviceGet(0))
    report("device", check(driver.cuDeviceGetCount()) >= 1)
    context = check(driver.cuDevicePrimaryCtxRetain(device))
    check(driver.cuCtxSetCurrent(context))
    module = check(driver.cuModuleLoadData(compile_ptx()))
    add = check(driver.cuModuleGetFunction(module, b"add"))
    scale = check(driver.cuModuleGetFunction(module, b"scale"))
    stream = check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    begin, end = (check(driver.cuEventCreate(0)) for _ in range(2))

    a = Floats(*(i % 512 * 0.5 for i in range(N)))
    b = Floats(*(i % 333 * 0.25 for i in range(N)))
    c = Floats()
    on_device = [check(driver.cuMemAlloc(N_BYTES)) for _ in range(3)]
    pointers = (ctypes.c_void_p,) * 3
    check(driver.cuEventRecord(begin, stream))
    for target, source in zip(on_device, (a, b), strict=False):
        check(driver.cuMemcpyHtoDAsync(target, ctypes.addressof(source), N_BYTES, stream))
    arguments = (*(int(p) for p in on_device), N), (*pointers, ctypes.c_int)
    launch(add, stream, *arguments)
    check(driver.cuMemcpyDtoHAsync(ctypes.addressof(c), on_device[2], N_BYTES, stream))
    check(driver.cuEventRecord(end, stream))
    check(driver.cuEventSynchronize(end))
    report("vector add", all(c[i] == a[i] + b[i] for i in range(N)))
    report("events", check(driver.cuEventElapsedTime(begin, end)) >= 0)

    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    check(driver.cuStreamBeginCapture(stream, mode))
    launch(add, stream, *arguments)
    factor = (int(on_device[2]), 2.0, N), (ctypes.c_void_p, ctypes.c_float, ctypes.c_int)
    launch(scale, stream, *factor)
    graph = check(driver.cuStreamEndCapture(stream))
    ready = check(driver.cuGraphInstantiate(graph, 0))
    for _ in range(2):
        check(driver.cuGraphLaunch(ready, stream))
    check(driver.cuStreamSynchronize(stream))
    check(driver.cuMemcpyDtoH(ctypes.addressof(c), on_device[2], N_BYTES))
    report("graph", all(c[i] == (a[i] + b[i]) * 2 for i in range(N)))
    (status, _) = driver.cuModuleGetFunction(module, b"no_such_kernel")
    report("an error by its name", status == driver.CUresult.CUDA_ERROR_NOT_FOUND)

    check(driver.cuGraphExecDestroy(ready))
    check(driver.cuGraphDestroy(graph))
    for pointer in on_device:
        check(driver.cuMemFree(pointer))
    for event in (begin, end):
        check(driver.cuEventDestroy(event))
    check(driver.cuStreamDestroy(stream))
    check(driver.cuModuleUnload(module))
    check(driver.cuDevicePrimaryCtxRelease(device))
    print("cuda_python: " + ("some results are wrong" if failures else "all results correct"))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
