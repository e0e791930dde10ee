# SPDX-License-Identifier: Apache-2.0
"""Kernels written in CUDA C++, compiled by NVRTC, on the software GPU."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_size_t, c_uint64, c_void_p
from functools import cache

from software_gpu.gpu import ROOT, gpu

(TOOLKIT,) = ROOT.glob(".venv/lib/python3.*/site-packages/nvidia/cu13")


@cache
def nvrtc() -> ctypes.CDLL:
    ctypes.CDLL(str(next(TOOLKIT.glob("lib/libnvrtc-builtins.so*"))), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(next(TOOLKIT.glob("lib/libnvrtc.so*"))))


def text_of(program: c_void_p, what: str) -> str:
    n_bytes = c_size_t()
    getattr(nvrtc(), f"nvrtcGet{what}Size")(program, byref(n_bytes))
    buffer = ctypes.create_string_buffer(n_bytes.value)
    getattr(nvrtc(), f"nvrtcGet{what}")(program, buffer)
    return buffer.value.decode()


def compile_here(source: str, name: str) -> str:
    program = c_void_p()
    lib = nvrtc()
    failed = lib.nvrtcCreateProgram(byref(program), source.encode(), name.encode(), 0, None, None)
    options = [b"--gpu-architecture=compute_80", b"--std=c++17", b"-lineinfo"]
    options += [f"-I{TOOLKIT}/include{cccl}".encode() for cccl in ("", "/cccl")]
    array = (c_char_p * len(options))(*options)
    failed = failed or lib.nvrtcCompileProgram(program, len(options), array)
    if failed:
        sys.exit(text_of(program, "ProgramLog"))
    return text_of(program, "PTX")


@cache
def compiled(source: str, name: str) -> str:
    """The PTX. In a process of its own: NVRTC looks for a driver in its own way."""
    command = [sys.executable, "-P", __file__, name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(
        command, input=source, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Kernel:
    """The kernel `k(unsigned* words, ...)` of a source."""

    def __init__(self, source: str, n_words: int, name: str = "test.cu") -> None:
        self.module = gpu().load(compiled(source, name), header="")
        self.n_words = n_words
        self.words = gpu().allocate(4 * n_words)
        gpu().write(self.words, bytes(4 * n_words))

    def run(self, n_blocks: int, n_threads: int, cooperative: bool = False) -> list[int]:
        """Launch, wait, and return all words."""
        words = c_uint64(self.words)
        gpu().launch(self.module, "k", n_threads, n_blocks, words, cooperative=cooperative)
        data = gpu().read(self.words, 4 * self.n_words)
        return [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]

    def close(self) -> None:
        gpu().unload(self.module)
        gpu().free(self.words)


@contextmanager
def kernel(source: str, n_words: int, name: str = "test.cu") -> Iterator[Kernel]:
    made = Kernel(source, n_words, name)
    try:
        yield made
    finally:
        made.close()


def run(
    source: str, n_words: int, n_blocks: int = 1, n_threads: int = 32, cooperative: bool = False
) -> list[int]:
    """What `extern "C" __global__ void k(unsigned* words)` leaves in `words`, zero before."""
    with kernel(source, n_words) as made:
        return made.run(n_blocks, n_threads, cooperative)


def reset() -> None:
    """Begin with a new context after a fault, which is sticky."""
    gpu().call("cuDevicePrimaryCtxReset_v2", 0)
    gpu.cache_clear()


if __name__ == "__main__":
    print(compile_here(sys.stdin.read(), sys.argv[1]))
