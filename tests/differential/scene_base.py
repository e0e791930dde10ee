# SPDX-License-Identifier: Apache-2.0
"""Objects of a driver that a call under test needs, made when they are first asked for."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import tempfile
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from differential.prototypes import is_old

KERNELS = b""".version 7.0
.target sm_52
.address_size 64
.global .align 4 .u32 word;
.visible .entry empty()
{
  ret;
}
.visible .entry one_parameter(.param .u32 number)
{
  ret;
}
.visible .entry fault()
{
  trap;
  ret;
}
\0"""
REFERENCES = b""".version 7.0
.target sm_52
.address_size 64
.global .texref texture;
.global .surfref surface;
.visible .entry empty()
{
  ret;
}
\0"""
MANAGED = b""".version 7.0
.target sm_52
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 shared;
.visible .entry empty()
{
  ret;
}
\0"""
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
    lambda _stream, _status, _user: None
)
LOG_CALLBACK = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
)(lambda _data, _level, _message, _length: None)
ASYNC_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    lambda _info, _user, _handle: None
)

DEVICE_MEMORY = 2  # CU_MEMORYTYPE_DEVICE
DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
LOCATION = struct.pack("<II", 1, 0)  # device 0
POOL = struct.pack("<II8s72x", 1, 0, LOCATION)  # of pinned allocations
SHARED_POOL = struct.pack("<II8s72x", 1, DESCRIPTOR, LOCATION)
PHYSICAL = struct.pack("<II8sQ8x", 1, DESCRIPTOR, LOCATION, 0)  # pinned memory of device 0
TILE_POOL = struct.pack("<II8sQ2xH4x", 1, 0, LOCATION, 0, 1)
ACCESS = LOCATION + struct.pack("<I", 3)
GRANULE = 2 << 20  # what cuMemGetAllocationGranularity says of every GPU so far
KERNEL_NODE = struct.Struct("<Q7I4x4Q")  # function, grid, block, shared bytes, arguments, kernel
MEMSET_NODE = struct.Struct("<QQIIQQQ")  # address, pitch, value, element size, width, height
MEM_OP = struct.Struct("<I4xQQ24x")  # operation, address, value
WRITE_VALUE_32 = 2
LAUNCH_CONFIG = struct.Struct("<7I4xQQI4x")  # grid, block, shared bytes, stream, attributes, count
FLOAT = 0x20  # CU_AD_FORMAT_FLOAT
ARRAY = struct.pack("<QQII", 16, 16, FLOAT, 1)
OLD_ARRAY = struct.pack("<4I", 16, 16, FLOAT, 1)
OLD_ARRAY_3D = struct.pack("<6I", 16, 16, 0, FLOAT, 1, 0)
SURFACE_LDST = 2
ARRAY_3D = struct.pack("<QQQIII4x", 16, 16, 0, FLOAT, 1, SURFACE_LDST)
PLANES = struct.pack("<QQQIII4x", 16, 16, 0, 0xB0, 3, 0x100)  # NV12, for video
SPARSE = struct.pack("<QQQIII4x", 512, 512, 0, FLOAT, 1, 0x40)
DEFERRED = struct.pack("<QQQIII4x", 512, 512, 0, FLOAT, 1, 0x80)
TEXTURE = struct.pack("<3I3I", 1, 1, 1, 0, 2, 0)  # clamped, nearest, normalised coordinates
VIEW = struct.pack("<I4xQQ", 0x16, 16, 16)  # of one 32-bit float each
SM_RESOURCE = 1  # CU_DEV_RESOURCE_TYPE_SM
MEMSET = 2  # CU_GRAPH_NODE_TYPE_MEMSET


class Opaque(ctypes.Structure):
    """CUipcMemHandle, CUipcEventHandle."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


KEPT: list[Any] = []  # a driver may still know of it

CONTEXTS: dict[str, Any] = {}  # those that a process makes once, since that takes long


def buffer(data: bytes = b"", size: int = 4096, align: int = 64) -> Any:
    """Memory for a structure or a result, aligned as any of them wants it."""
    raw = ctypes.create_string_buffer(size + align)
    start = -ctypes.addressof(raw) % align
    ctypes.memmove(ctypes.addressof(raw) + start, data, len(data))
    KEPT.append(raw)
    return (ctypes.c_char * size).from_buffer(raw, start)


@cache
def handles_of_another() -> tuple[bytes, bytes]:
    """IPC handles of memory and an event of another process, which ends with this one."""
    program = str(Path(__file__).resolve().with_name("other_process.py"))
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-P", program], stdin=pipe, stdout=pipe, text=True)
    KEPT.append(process)
    assert process.stdout
    words = process.stdout.readline().split()
    if len(words) != 2:
        raise SceneError("another process has no handles")
    memory, event = words
    return bytes.fromhex(memory), bytes.fromhex(event)


class SceneError(Exception):
    """A call that was to make something has failed: name and CUresult."""


FAILED: dict[str, SceneError] = {}  # likewise those that cannot be made


class Base:
    """Fresh objects for one call of `function`: without structures and graphs."""

    def __init__(self, cuda: ctypes.CDLL, function: str) -> None:
        self.cuda = cuda
        self.for_function = function
        self.contexts: list[Any] = []  # made for this call
        self.must("cuInit", 0)
        self.forget_contexts()
        self.context = self.primary = self.once("cuDevicePrimaryCtxRetain", 0)
        self.must("cuCtxSetCurrent", self.primary)
        if is_old(function):
            self.context = self.once("cuCtxCreate", 0, 0)
            self.must("cuCtxPushCurrent_v2", self.context)

    def must(self, name: str, *arguments: Any) -> None:
        code = getattr(self.cuda, name)(*arguments)
        if code != 0:
            raise SceneError(f"{name}={code}")

    def made(self, name: str, *arguments: Any, last: bool = False) -> Any:
        """Call a function that creates something; return what it put into its out parameter."""
        out = ctypes.c_uint64()
        given = (*arguments, ctypes.byref(out)) if last else (ctypes.byref(out), *arguments)
        self.must(name, *given)
        return out

    def once(self, name: str, *arguments: Any) -> Any:
        """Likewise a context, for all calls of this process."""
        if name in FAILED:
            raise FAILED[name]
        if name not in CONTEXTS:
            try:
                CONTEXTS[name] = self.made(name, *arguments)
            except SceneError as error:
                FAILED[name] = error
                raise
            self.forget_contexts()
            self.must("cuCtxSetCurrent", CONTEXTS["cuDevicePrimaryCtxRetain"])
        return CONTEXTS[name]

    def enter_other_context(self) -> None:
        """Make another context current: of this call, if that is about contexts."""
        if self.for_function.startswith("cuCtx"):
            self.contexts.append(self.made("cuCtxCreate_v2", 0, 0))
        else:
            self.must("cuCtxPushCurrent_v2", self.once("cuCtxCreate_v2", 0, 0))

    def end(self) -> bool:
        """End what takes much; whether what the process keeps has stayed whole."""
        for context in self.contexts:
            self.cuda.cuCtxDestroy_v2(context)
        self.forget_contexts()
        return all(
            self.cuda.cuCtxSetCurrent(context) == 0 and self.cuda.cuCtxSynchronize() == 0
            for context in reversed(CONTEXTS.values())
        )

    def forget_contexts(self) -> None:
        """Leave the thread without a current context, under which there may be others."""
        while self.cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_uint64())) == 0:
            pass

    # -- plain objects ----------------------------------------------------------------------------

    @cached_property
    def peer(self) -> int:
        """The ordinal of another device, where there is one."""
        count = ctypes.c_int()
        self.must("cuDeviceGetCount", ctypes.byref(count))
        return min(1, count.value - 1)

    @cached_property
    def peer_context(self) -> Any:
        return self.made("cuDevicePrimaryCtxRetain", 1) if self.peer else self.context

    @cached_property
    def bus_id(self) -> bytes:
        text = ctypes.create_string_buffer(32)
        self.must("cuDeviceGetPCIBusId", text, 32, 0)
        return text.value

    @cached_property
    def stream(self) -> Any:
        return self.made("cuStreamCreate", 1)

    @cached_property
    def other_stream(self) -> Any:
        return self.made("cuStreamCreate", 1)

    @cached_property
    def event(self) -> Any:
        return self.made("cuEventCreate", 0)

    @cached_property
    def shared_event(self) -> Any:
        return self.made("cuEventCreate", 2 | 4)  # DISABLE_TIMING, INTERPROCESS

    @cached_property
    def module(self) -> Any:
        return self.made("cuModuleLoadData", KERNELS)

    @cached_property
    def references(self) -> Any:
        return self.made("cuModuleLoadData", REFERENCES)

    def load_library(self, image: bytes) -> Any:
        return self.made("cuLibraryLoadData", image, None, None, 0, None, None, 0)

    @cached_property
    def library(self) -> Any:
        return self.load_library(KERNELS)

    @cached_property
    def managed_library(self) -> Any:
        return self.load_library(MANAGED)

    @property
    def kernel_name(self) -> bytes:
        return b"one_parameter" if "ParamInfo" in self.for_function else b"empty"

    @cached_property
    def function(self) -> Any:
        return self.made("cuModuleGetFunction", self.module, self.kernel_name)

    @cached_property
    def kernel(self) -> Any:
        return self.made("cuLibraryGetKernel", self.library, self.kernel_name)

    @cached_property
    def user_object(self) -> Any:
        return self.made("cuUserObjectCreate", None, HOST_FUNCTION, 1, 1)

    @cached_property
    def resource(self) -> bytes:
        data = buffer()
        self.must("cuDeviceGetDevResource", 0, data, SM_RESOURCE)
        return bytes(data.raw[:144])

    @cached_property
    def resource_description(self) -> Any:
        return self.made("cuDevResourceGenerateDesc", buffer(self.resource), 1)

    @cached_property
    def green_context(self) -> Any:
        return self.made("cuGreenCtxCreate", self.resource_description, 0, 1)

    @cached_property
    def link(self) -> Any:
        return self.made("cuLinkCreate_v2", 0, None, None, last=True)

    @cached_property
    def log_callback(self) -> Any:
        return self.made("cuLogsRegisterCallback", LOG_CALLBACK, None, last=True)

    @cached_property
    def async_callback(self) -> Any:
        return self.made("cuDeviceRegisterAsyncNotification", 0, ASYNC_CALLBACK, None, last=True)

    @cached_property
    def log_position(self) -> bytes:
        return struct.pack("<I", self.made("cuLogsCurrent", 0).value)

    @cached_property
    def file(self) -> bytes:
        handle, path = tempfile.mkstemp(prefix="kvgpu-scene-")
        os.write(handle, KERNELS[:-1])
        os.close(handle)
        return path.encode()

    # -- memory -----------------------------------------------------------------------------------

    def allocated(self) -> Any:
        memory = self.made("cuMemAlloc_v2", ctypes.c_size_t(1 << 20))
        self.must("cuMemsetD8_v2", memory, ctypes.c_ubyte(0), ctypes.c_size_t(1 << 20))
        self.must("cuStreamSynchronize", None)
        return memory

    @cached_property
    def memory(self) -> Any:
        return self.allocated()

    @cached_property
    def other_memory(self) -> Any:
        return self.allocated()

    @cached_property
    def old_memory(self) -> Any:
        """As CUDA before 3.2 had it, with an address of 32 bits."""
        return self.made("cuMemAlloc", 1 << 20)

    @cached_property
    def managed(self) -> Any:
        return self.made("cuMemAllocManaged", ctypes.c_size_t(1 << 20), 1)

    @cached_property
    def pinned(self) -> Any:
        return self.made("cuMemHostAlloc", ctypes.c_size_t(4096), 0)

    @cached_property
    def pageable(self) -> Any:
        return buffer(align=4096)

    @cached_property
    def pool(self) -> Any:
        shared = "Export" in self.for_function or "Import" in self.for_function
        return self.made("cuMemPoolCreate", buffer(SHARED_POOL if shared else POOL))

    @cached_property
    def of_pool(self) -> Any:
        size = ctypes.c_size_t(64)
        memory = self.made("cuMemAllocFromPoolAsync", size, self.pool, self.stream)
        self.must("cuStreamSynchronize", self.stream)
        return memory

    @cached_property
    def pool_descriptor(self) -> Any:
        fd, none = ctypes.c_int(), ctypes.c_uint64(0)
        self.must("cuMemPoolExportToShareableHandle", ctypes.byref(fd), self.pool, DESCRIPTOR, none)
        return ctypes.c_void_p(fd.value)

    @cached_property
    def imported_pool(self) -> Any:
        none = ctypes.c_uint64(0)
        return self.made(
            "cuMemPoolImportFromShareableHandle", self.pool_descriptor, DESCRIPTOR, none
        )

    @cached_property
    def exported_pointer(self) -> bytes:
        data = buffer()
        self.must("cuMemPoolExportPointer", data, self.of_pool)
        return bytes(data.raw[:64])

    @cached_property
    def physical(self) -> Any:
        none = ctypes.c_uint64(0)
        return self.made("cuMemCreate", ctypes.c_size_t(GRANULE), buffer(PHYSICAL), none)

    @cached_property
    def descriptor(self) -> Any:
        fd, none = ctypes.c_int(), ctypes.c_uint64(0)
        self.must("cuMemExportToShareableHandle", ctypes.byref(fd), self.physical, DESCRIPTOR, none)
        return ctypes.c_void_p(fd.value)

    @cached_property
    def reserved(self) -> Any:
        none, size = ctypes.c_uint64(0), ctypes.c_size_t(GRANULE)
        return self.made("cuMemAddressReserve", size, ctypes.c_size_t(0), none, none)

    @cached_property
    def mapped(self) -> Any:
        none, size = ctypes.c_uint64(0), ctypes.c_size_t(GRANULE)
        self.must("cuMemMap", self.reserved, size, ctypes.c_size_t(0), self.physical, none)
        return self.reserved

    def own_handle(self, name: str, thing: Any) -> Any:
        handle = Opaque()
        self.must(name, ctypes.byref(handle), thing)
        return handle

    @cached_property
    def memory_handle(self) -> Any:
        return Opaque.from_buffer_copy(handles_of_another()[0])

    @cached_property
    def event_handle(self) -> Any:
        return Opaque.from_buffer_copy(handles_of_another()[1])

    @cached_property
    def opened_memory(self) -> Any:
        return self.made("cuIpcOpenMemHandle_v2", self.memory_handle, 1)
