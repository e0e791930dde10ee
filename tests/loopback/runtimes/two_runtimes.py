# SPDX-License-Identifier: Apache-2.0
"""two_runtimes.py LIBCUDART LIBCUDART: two CUDA runtimes in one process share the driver.

Each has a state of its own, both have the primary context: memory and streams of one are the
other's, too. Prints one line per check; the same natively and remoted.
"""

from __future__ import annotations

import ctypes
import sys

N_BYTES = 1 << 20
TO_DEVICE, TO_HOST, BETWEEN = 1, 2, 3
ALL_CORRECT = [True]


def report(what: str, correct: bool) -> None:
    print(f"{what}: {'ok' if correct else 'WRONG'}", flush=True)
    ALL_CORRECT[0] = ALL_CORRECT[0] and correct


class Runtime:
    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        version = ctypes.c_int()
        self.must("cudaRuntimeGetVersion", ctypes.byref(version))
        self.name = f"runtime {version.value // 1000}.{version.value % 1000 // 10}"

    def must(self, name: str, *arguments: object) -> None:
        result = getattr(self.library, name)(*arguments)
        assert result == 0, (name, result)

    def made(self, name: str, *arguments: object) -> ctypes.c_void_p:
        value = ctypes.c_void_p()
        self.must(name, ctypes.byref(value), *arguments)
        return value


def main() -> None:
    first, second = (Runtime(path) for path in sys.argv[1:])
    print(first.name, "and", second.name)
    report("two libraries", first.name != second.name)
    size = ctypes.c_size_t(N_BYTES)
    source = bytes(n % 251 for n in range(4096)) * (N_BYTES // 4096)
    for one, other in ((first, second), (second, first)):
        memory, copied = one.made("cudaMalloc", size), other.made("cudaMalloc", size)
        stream, event = one.made("cudaStreamCreate"), other.made("cudaEventCreate")
        back = ctypes.create_string_buffer(N_BYTES)
        one.must("cudaMemcpy", memory, source, size, TO_DEVICE)
        other.must("cudaMemcpyAsync", copied, memory, size, BETWEEN, stream)
        other.must("cudaMemsetAsync", copied, 7, ctypes.c_size_t(100), stream)
        one.must("cudaEventRecord", event, stream)
        other.must("cudaEventSynchronize", event)
        other.must("cudaMemcpy", back, copied, size, TO_HOST)
        report(f"memory of {one.name} in {other.name}", back.raw == b"\7" * 100 + source[100:])
        error = (
            one.library.cudaFree(ctypes.c_void_p((memory.value or 0) + 16)),
            other.library.cudaGetLastError(),
        )
        report("an error is of one runtime only", error[0] != 0 and error[1] == 0)
        report("where it stays", one.library.cudaGetLastError() == error[0])
        other.must("cudaFree", memory)
        one.must("cudaFree", copied)
        other.must("cudaStreamDestroy", stream)
        one.must("cudaEventDestroy", event)
    first.must("cudaDeviceSynchronize")
    second.must("cudaDeviceSynchronize")
    first.must("cudaDeviceReset")  # ends the context of both
    memory = first.made("cudaMalloc", size)
    back = ctypes.create_string_buffer(N_BYTES)
    first.must("cudaMemcpy", memory, source, size, TO_DEVICE)
    first.must("cudaMemcpy", back, memory, size, TO_HOST)
    report("after a reset", back.raw == source)
    print("two_runtimes:", "all results correct" if ALL_CORRECT[0] else "WRONG results")


if __name__ == "__main__":
    main()
