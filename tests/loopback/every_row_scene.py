# SPDX-License-Identifier: Apache-2.0
"""What every_row.py calls entry points with: the objects that a program would have made before."""

import ctypes
import os
import struct
from pathlib import Path
from typing import Any, ClassVar

PTX = b""".version 7.0
.target sm_52
.address_size 64
.global .align 4 .u32 word;
.visible .entry empty()
{
  ret;
}
\0"""
IMAGE_FILE = Path(os.environ["NULL_WORKER_LOG"]).with_name("image.ptx")
cuda = ctypes.CDLL("libcuda.so.1")
log = Path(os.environ["NULL_WORKER_LOG"])
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
    lambda _stream, _status, _user: None
)
HOST_NODE = struct.pack(
    "<QQ", ctypes.cast(HOST_FUNCTION, ctypes.c_void_p).value or 0, 0
)  # function, argument


def must(name: str, *arguments: Any) -> None:
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        raise SystemExit(f"{name}, needed by the calls under test: {code}")


def made(name: str, *arguments: Any, last: bool = False) -> Any:
    """Call a function that creates something; return what it put into its out parameter."""
    out = ctypes.c_uint64()
    given = (*arguments, ctypes.byref(out)) if last else (ctypes.byref(out), *arguments)
    must(name, *given)
    return out


DEVICE_MEMORY = 2  # CU_MEMORYTYPE_DEVICE
LOCATION = struct.pack("<II", 1, 0)  # device 0
POOL = struct.pack("<II8s72x", 1, 0, LOCATION)  # of pinned allocations
DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
SHARED_POOL = struct.pack("<II8s72x", 1, DESCRIPTOR, LOCATION)
PHYSICAL = struct.pack("<II8sQ8x", 1, DESCRIPTOR, LOCATION, 0)  # pinned memory of device 0


class Opaque(ctypes.Structure):
    """CUipcMemHandle, CUipcEventHandle."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


class Scene:
    """Fresh objects for one call."""

    green_contexts: ClassVar[list[Any]] = []  # of all calls

    def __init__(self) -> None:
        must("cuInit", 0)
        self.context = made("cuDevicePrimaryCtxRetain", 0)
        must("cuCtxSetCurrent", self.context)
        self.stream = made("cuStreamCreate", 1)
        self.event = made("cuEventCreate", 0)
        self.module = made("cuModuleLoadData", PTX)
        self.library = made("cuLibraryLoadData", PTX, None, None, 0, None, None, 0)
        self.function = made("cuModuleGetFunction", self.module, b"empty")
        self.kernel = made("cuLibraryGetKernel", self.library, b"empty")
        self.device_memory = made("cuMemAlloc_v2", ctypes.c_size_t(1 << 20))
        self.other_memory = made("cuMemAlloc_v2", ctypes.c_size_t(1 << 20))
        self.pinned = made("cuMemHostAlloc", ctypes.c_size_t(4096), 0)
        self.buffer = ctypes.create_string_buffer(4096)
        self.file = str(IMAGE_FILE).encode()

    def work(self) -> None:
        """Give the stream something to wait for."""
        length = ctypes.c_size_t(64)
        must("cuMemsetD8Async", self.device_memory, ctypes.c_ubyte(0), length, self.stream)

    def record(self) -> None:
        self.work()
        must("cuEventRecord", self.event, self.stream)

    def green_context(self) -> Any:
        self.green_contexts.append(made("cuGreenCtxCreate", None, 0, 1))
        return self.green_contexts[-1]

    def keep_made_green_context(self) -> None:
        self.green_contexts.append(ctypes.c_uint64.from_buffer_copy(self.buffer))

    def end_green_contexts(self) -> None:
        """They keep the primary one; one of them may have been what was to be destroyed."""
        while self.green_contexts:
            cuda.cuGreenCtxDestroy(self.green_contexts.pop())

    def forget_context(self) -> None:
        self.end_green_contexts()
        must("cuDevicePrimaryCtxReset_v2", 0)

    def set_block_shape(self) -> None:
        must("cuFuncSetBlockShape", self.function, 1, 1, 1)

    def pool(self) -> Any:
        return made("cuMemPoolCreate", SHARED_POOL)

    def of_pool(self) -> Any:
        return made("cuMemAllocAsync", ctypes.c_size_t(64), self.stream)

    def exported_pointer(self) -> bytes:
        data = ctypes.create_string_buffer(64)
        must("cuMemPoolExportPointer", data, self.of_pool())
        return data.raw

    def descriptor(self) -> Any:
        fd = ctypes.c_int()
        none = ctypes.c_uint64(0)
        must("cuMemExportToShareableHandle", ctypes.byref(fd), self.physical(), DESCRIPTOR, none)
        return ctypes.c_void_p(fd.value)

    def shared_event(self) -> Any:
        return made("cuEventCreate", 2 | 4)  # DISABLE_TIMING, INTERPROCESS

    def memory_handle(self) -> Opaque:
        handle = Opaque()
        must("cuIpcGetMemHandle", ctypes.byref(handle), self.device_memory)
        return handle

    def event_handle(self) -> Opaque:
        handle = Opaque()
        must("cuIpcGetEventHandle", ctypes.byref(handle), self.shared_event())
        return handle

    def opened_memory(self) -> Any:
        return made("cuIpcOpenMemHandle_v2", self.memory_handle(), 1)

    def physical(self) -> Any:
        return made("cuMemCreate", ctypes.c_size_t(4096), PHYSICAL, ctypes.c_uint64(0))

    def map_released(self) -> None:
        """Map memory that the program has no handle of any more."""
        none, length, memory = ctypes.c_uint64(0), ctypes.c_size_t(4096), self.physical()
        self.mapped = made("cuMemAddressReserve", length, ctypes.c_size_t(0), none, none)
        must("cuMemMap", self.mapped, length, ctypes.c_size_t(0), memory, none)
        must("cuMemRelease", memory)

    def register(self) -> None:
        must("cuMemHostRegister_v2", self.buffer, ctypes.c_size_t(4096), 0)
        self.work()  # that might use it

    def unregister(self) -> None:
        must("cuMemHostUnregister", self.buffer)

    def copy_3d_batch(self) -> bytes:
        def operand(memory: int) -> bytes:
            return struct.pack("<I4xQ24x", 1, memory)  # CU_MEMCPY_OPERAND_TYPE_POINTER

        operands = operand(self.other_memory.value) + operand(self.device_memory.value)
        return operands + struct.pack("<3QII", 64, 1, 1, 1, 0)

    def launch_params(self) -> bytes:
        return struct.pack("<Q7I4xQQ", self.function.value, *[1] * 6, 0, self.stream.value, 0)

    def copy_2d(self) -> bytes:
        source = (0, 0, DEVICE_MEMORY, 0, self.other_memory.value, 0, 64)
        target = (0, 0, DEVICE_MEMORY, 0, self.device_memory.value, 0, 64)
        return struct.pack("<" + "2QI4x4Q" * 2 + "2Q", *source, *target, 64, 1)

    def copy_3d(self) -> bytes:
        source = (0, 0, 0, 0, DEVICE_MEMORY, 0, self.other_memory.value, 0, 0, 64, 1)
        target = (0, 0, 0, 0, DEVICE_MEMORY, 0, self.device_memory.value, 0, 0, 64, 1)
        return struct.pack("<" + "4QI4x6Q" * 2 + "3Q", *source, *target, 64, 1, 1)

    def array(self) -> Any:
        return made("cuArray3DCreate_v2", ARRAY_3D)

    def array_mapping(self) -> bytes:
        """All zeros, but for what is mapped where, and by which device."""
        array, memory = self.array().value, self.physical().value
        return struct.pack("<8xQ40xIIQQI12x", array, 1, 0, memory, 0, 1)

    def mipmapped_array(self) -> Any:
        return made("cuMipmappedArrayCreate", ARRAY_3D, 1)

    def link(self) -> Any:
        return made("cuLinkCreate_v2", 0, None, None, last=True)

    def create_context(self) -> None:
        self.context = made("cuCtxCreate_v2", 0, 0)

    def begin_capture(self) -> None:
        must("cuStreamBeginCapture_v2", self.stream, 0)

    def graph(self) -> Any:
        self.begin_capture()
        return self.end_capture()

    def end_capture(self) -> Any:
        return made("cuStreamEndCapture", self.stream, last=True)

    def graph_exec(self) -> Any:
        self.begin_capture()
        must("cuLaunchHostFunc", self.stream, HOST_FUNCTION, None)
        return made("cuGraphInstantiateWithFlags", self.end_capture(), ctypes.c_uint64(0))

    def plain_exec(self) -> Any:
        return made("cuGraphInstantiateWithFlags", self.graph(), ctypes.c_uint64(0))

    def kernel_node(self) -> bytes:
        return KERNEL_NODE.pack(self.function.value, *[1] * 6, 0, 0, 0, 0, 0)

    def batch_node(self) -> bytes:
        self.batch = ctypes.create_string_buffer(
            MEM_OP.pack(WRITE_VALUE_32, self.device_memory.value, 1)
        )
        return struct.pack("<QI4xQI4x", 0, 1, ctypes.addressof(self.batch), 0)

    def memset_node(self) -> bytes:
        return MEMSET_NODE.pack(self.device_memory.value, 64, 1, 4, 16, 1, 0)

    def any_node(self) -> bytes:
        return struct.pack("<I12x", MEMSET) + self.memset_node().ljust(240, b"\0")


# The worker chooses the handles of nodes; null_worker.cpp knows this one.
NODE = ctypes.c_uint64(0x6B << 56 | 1 << 36 | 13 << 32 | 1)
KERNEL_NODE = struct.Struct("<Q7I4x4Q")  # function, grid, block, shared bytes, arguments, kernel
MEMSET_NODE = struct.Struct("<QQIIQQQ")  # address, pitch, value, element size, width, height
MEMSET = 2  # CU_GRAPH_NODE_TYPE_MEMSET
MEM_OP = struct.Struct("<I4xQQ24x")  # operation, address, value
WRITE_VALUE_32 = 2
COOPERATIVE = 2  # CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE
FLOAT = 0x20  # CU_AD_FORMAT_FLOAT
ARRAY = struct.pack("<QQII", 16, 16, FLOAT, 1)
ARRAY_3D = struct.pack("<QQQIII4x", 16, 16, 0, FLOAT, 1, 0)
LAUNCH_CONFIG = struct.Struct("<7I4xQQI4x")  # grid, block, shared bytes, stream, attributes, count
