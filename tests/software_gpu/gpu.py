# SPDX-License-Identifier: Apache-2.0
"""The software GPU's driver API by ctypes: modules from PTX text, arrays in, arrays out."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_char_p, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEADER = ".version 9.0\n.target sm_80\n.address_size 64\n"
INVALID_PTX = 218
JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 5, 6


class CudaError(Exception):
    def __init__(self, code: int, log: str = "") -> None:
        super().__init__(f"CUDA error {code} {log}")
        self.code = code
        self.log = log


class Gpu:
    """Device 0 with its primary context, current in this thread."""

    def __init__(self) -> None:
        path = os.environ.get(
            "KVGPU_SOFTWARE_GPU", str(ROOT / "build/release/host/software_gpu/libcuda.so.1")
        )
        self.cuda = ctypes.CDLL(path)
        self.call("cuInit", 0)
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        if code := getattr(self.cuda, name)(*arguments):
            raise CudaError(code)

    def load(self, ptx: str, header: str = HEADER) -> c_void_p:
        """The module of this text; CudaError with the JIT's log when it is refused."""
        module, log = c_void_p(), ctypes.create_string_buffer(4096)
        options = (c_uint * 2)(JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
        values = (c_void_p * 2)(ctypes.addressof(log), len(log))
        try:
            self.call(
                "cuModuleLoadDataEx",
                byref(module),
                c_char_p((header + ptx).encode()),
                2,
                options,
                values,
            )
        except CudaError as error:
            raise CudaError(error.code, log.value.decode()) from None
        return module

    def unload(self, module: c_void_p) -> None:
        self.call("cuModuleUnload", module)

    def allocate(self, n_bytes: int) -> int:
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(n_bytes))
        return pointer.value

    def free(self, pointer: int) -> None:
        self.call("cuMemFree_v2", c_uint64(pointer))

    def write(self, pointer: int, data: bytes) -> None:
        self.call("cuMemcpyHtoD_v2", c_uint64(pointer), c_char_p(data), c_size_t(len(data)))

    def read(self, pointer: int, n_bytes: int) -> bytes:
        data = ctypes.create_string_buffer(n_bytes)
        self.call("cuMemcpyDtoH_v2", data, c_uint64(pointer), c_size_t(n_bytes))
        return data.raw

    def variable(self, module: c_void_p, name: str) -> int:
        pointer, n_bytes = c_uint64(), c_size_t()
        self.call("cuModuleGetGlobal_v2", byref(pointer), byref(n_bytes), module, name.encode())
        return pointer.value

    def launch(
        self,
        module: c_void_p,
        kernel: str,
        n_threads: int,
        n_blocks: int,
        *arguments: object,
        cooperative: bool = False,
    ) -> None:
        function = c_void_p()
        self.call("cuModuleGetFunction", byref(function), module, kernel.encode())
        pointers = (c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.pointer(each), c_void_p) for each in arguments)  # type: ignore[type-var]
        )
        shape = (function, n_blocks, 1, 1, n_threads, 1, 1, 0, None, pointers)
        if cooperative:
            self.call("cuLaunchCooperativeKernel", *shape)
        else:
            self.call("cuLaunchKernel", *shape, None)
        self.call("cuCtxSynchronize")


@cache
def gpu() -> Gpu:
    return Gpu()
