# SPDX-License-Identifier: Apache-2.0
"""What a call under test needs: objects of a real driver.

Objects are made when they are first asked for.
"""

from __future__ import annotations

import ctypes
import os
import struct
import tempfile
from collections.abc import Callable
from functools import cached_property
from typing import Any

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

DEVICE_MEMORY = 2  # CU_MEMORYTYPE_DEVICE
DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
LOCATION = struct.pack("<II", 1, 0)  # device 0
POOL = struct.pack("<II8s72x", 1, 0, LOCATION)  # of pinned allocations
SHARED_POOL = struct.pack("<II8s72x", 1, DESCRIPTOR, LOCATION)
PHYSICAL = struct.pack("<II8sQ8x", 1, DESCRIPTOR, LOCATION, 0)  # pinned memory of device 0
ACCESS = LOCATION + struct.pack("<I", 3)
GRANULE = 2 << 20  # what cuMemGetAllocationGranularity says of every GPU so far
KERNEL_NODE = struct.Struct("<Q7I4x4Q")  # function, grid, block, shared bytes, arguments, kernel
MEMSET_NODE = struct.Struct("<QQIIQQQ")  # address, pitch, value, element size, width, height
MEM_OP = struct.Struct("<I4xQQ24x")  # operation, address, value
WRITE_VALUE_32 = 2
LAUNCH_CONFIG = struct.Struct("<7I4xQQI4x")  # grid, block, shared bytes, stream, attributes, count
FLOAT = 0x20  # CU_AD_FORMAT_FLOAT
ARRAY = struct.pack("<QQII", 16, 16, FLOAT, 1)
SURFACE_LDST = 2
ARRAY_3D = struct.pack("<QQQIII4x", 16, 16, 0, FLOAT, 1, SURFACE_LDST)
TEXTURE = struct.pack("<3I3I", 1, 1, 1, 0, 2, 0)  # clamped, nearest, normalised coordinates
SM_RESOURCE = 1  # CU_DEV_RESOURCE_TYPE_SM
MEMSET = 2  # CU_GRAPH_NODE_TYPE_MEMSET


class Opaque(ctypes.Structure):
    """CUipcMemHandle, CUipcEventHandle."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


KEPT: list[Any] = []  # a driver may still know of it

RETAINED: list[Any] = []


def buffer(data: bytes = b"", size: int = 4096) -> Any:
    """Memory for a structure or a result, aligned as any of them wants it."""
    raw = ctypes.create_string_buffer(size + 64)
    start = -ctypes.addressof(raw) % 64
    ctypes.memmove(ctypes.addressof(raw) + start, data, len(data))
    KEPT.append(raw)
    return (ctypes.c_char * size).from_buffer(raw, start)


class SceneError(Exception):
    """A call that was to make something has failed: name and CUresult."""


class Scene:
    """Fresh objects for one call of `function`."""

    def __init__(self, cuda: ctypes.CDLL, function: str) -> None:
        self.cuda = cuda
        self.for_function = function
        self.must("cuInit", 0)
        self.forget_contexts()
        self.context = self.primary = self.retained()
        self.must("cuCtxSetCurrent", self.primary)

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

    def retained(self) -> Any:
        """The primary context, of which each process counts one use."""
        if not RETAINED:
            RETAINED.append(self.made("cuDevicePrimaryCtxRetain", 0))
        return RETAINED[0]

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
        return self.made("cuMemAlloc", 4096)

    @cached_property
    def managed(self) -> Any:
        return self.made("cuMemAllocManaged", ctypes.c_size_t(1 << 20), 1)

    @cached_property
    def pinned(self) -> Any:
        return self.made("cuMemHostAlloc", ctypes.c_size_t(4096), 0)

    @cached_property
    def pageable(self) -> Any:
        return buffer()

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

    @cached_property
    def memory_handle(self) -> Any:
        handle = Opaque()
        self.must("cuIpcGetMemHandle", ctypes.byref(handle), self.memory)
        return handle

    @cached_property
    def event_handle(self) -> Any:
        handle = Opaque()
        self.must("cuIpcGetEventHandle", ctypes.byref(handle), self.shared_event)
        return handle

    # -- arrays and textures ----------------------------------------------------------------------

    @cached_property
    def array(self) -> Any:
        return self.made("cuArray3DCreate_v2", buffer(ARRAY_3D))

    @cached_property
    def mipmapped_array(self) -> Any:
        return self.made("cuMipmappedArrayCreate", buffer(ARRAY_3D), 1)

    @cached_property
    def array_resource(self) -> bytes:
        return struct.pack("<I4xQ128x", 0, self.array.value)

    @cached_property
    def texture(self) -> Any:
        return self.made("cuTexObjectCreate", buffer(self.array_resource), buffer(TEXTURE), None)

    @cached_property
    def surface(self) -> Any:
        return self.made("cuSurfObjectCreate", buffer(self.array_resource))

    @cached_property
    def texture_reference(self) -> Any:
        return self.made("cuTexRefCreate")

    @cached_property
    def surface_reference(self) -> Any:
        return self.made("cuModuleGetSurfRef", self.references, b"surface")

    @cached_property
    def tensor_map(self) -> Any:
        out = buffer()
        numbers = ctypes.c_uint64 * 2
        small = ctypes.c_uint32 * 2
        self.must(
            *("cuTensorMapEncodeTiled", out, 7, 2, self.memory, numbers(64, 64), numbers(256)),
            *(small(16, 16), small(1, 1), 0, 0, 0, 0),
        )
        return out

    # -- structures -------------------------------------------------------------------------------

    def copy_2d(self) -> bytes:
        source = (0, 0, DEVICE_MEMORY, 0, self.other_memory.value, 0, 64)
        target = (0, 0, DEVICE_MEMORY, 0, self.memory.value, 0, 64)
        return struct.pack("<" + "2QI4x4Q" * 2 + "2Q", *source, *target, 64, 1)

    def copy_3d(self) -> bytes:
        source = (0, 0, 0, 0, DEVICE_MEMORY, 0, self.other_memory.value, 0, 0, 64, 1)
        target = (0, 0, 0, 0, DEVICE_MEMORY, 0, self.memory.value, 0, 0, 64, 1)
        return struct.pack("<" + "4QI4x6Q" * 2 + "3Q", *source, *target, 64, 1, 1)

    def copy_3d_peer(self) -> bytes:
        """Alike, with the contexts where CUDA_MEMCPY3D reserves words."""
        data = bytearray(self.copy_3d())
        for place in (64, 152):
            struct.pack_into("<Q", data, place, self.context.value)
        return bytes(data)

    def copy_3d_batch(self) -> bytes:
        def operand(memory: int) -> bytes:
            return struct.pack("<I4xQ24x", 1, memory)  # CU_MEMCPY_OPERAND_TYPE_POINTER

        operands = operand(self.other_memory.value) + operand(self.memory.value)
        return operands + struct.pack("<3QII", 64, 1, 1, 1, 0)

    def launch_params(self) -> bytes:
        return struct.pack("<Q7I4xQQ", self.function.value, *[1] * 6, 0, self.stream.value, 0)

    def kernel_params(self) -> bytes:
        return KERNEL_NODE.pack(self.function.value, *[1] * 6, 0, 0, 0, 0, 0)

    def memory_op(self) -> bytes:
        return MEM_OP.pack(WRITE_VALUE_32, self.memory.value, 1)

    def batch_params(self) -> bytes:
        self.batch = buffer(self.memory_op())
        return struct.pack("<QI4xQI4x", self.context.value, 1, ctypes.addressof(self.batch), 0)

    def memset_params(self) -> bytes:
        return MEMSET_NODE.pack(self.memory.value, 64, 1, 4, 16, 1, 0)

    def host_params(self) -> bytes:
        return struct.pack("<QQ", ctypes.cast(HOST_FUNCTION, ctypes.c_void_p).value or 0, 0)

    def alloc_params(self) -> bytes:
        return POOL + struct.pack("<QQQQ", 0, 0, 64, 0)

    def any_node(self) -> bytes:
        return struct.pack("<I12x", MEMSET) + self.memset_params().ljust(240, b"\0")

    # -- graphs -----------------------------------------------------------------------------------

    @cached_property
    def graph(self) -> Any:
        return self.made("cuGraphCreate", 0)

    @cached_property
    def child(self) -> Any:
        graph = self.made("cuGraphCreate", 0)
        self.made("cuGraphAddEmptyNode", graph, None, ctypes.c_size_t(0))
        return graph

    def add(self, name: str, *rest: Any) -> Any:
        return self.made(f"cuGraphAdd{name}", self.graph, None, ctypes.c_size_t(0), *rest)

    @cached_property
    def alloc_node(self) -> Any:
        params = buffer(self.alloc_params())
        node = self.add("MemAllocNode", params)
        (self.allocated_by_node,) = struct.unpack_from("<Q", params.raw, 88 + 24)
        return node

    @cached_property
    def free_node(self) -> Any:
        none = self.alloc_node
        del none
        return self.add("MemFreeNode", ctypes.c_uint64(self.allocated_by_node))

    @cached_property
    def node(self) -> Any:
        """A node of `graph`, of the kind that the function is about."""
        for kind, make in NODES.items():
            if kind in self.for_function:
                return make(self)
        return self.add("MemsetNode", buffer(self.memset_params()), self.context)

    @cached_property
    def second_node(self) -> Any:
        return self.add("EmptyNode")

    @cached_property
    def exec(self) -> Any:
        node = self.node
        del node
        return self.made("cuGraphInstantiateWithFlags", self.graph, ctypes.c_uint64(0))

    @cached_property
    def clone(self) -> Any:
        node = self.node
        del node
        return self.made("cuGraphClone", self.graph)

    # -- what has to have happened ----------------------------------------------------------------

    def record(self) -> None:
        self.must("cuEventRecord", self.event, self.stream)
        self.must("cuStreamSynchronize", self.stream)

    def set_block_shape(self) -> None:
        self.must("cuFuncSetBlockShape", self.function, 1, 1, 1)

    def register(self) -> None:
        self.must("cuMemHostRegister_v2", self.pageable, ctypes.c_size_t(4096), 0)

    def begin_capture(self) -> None:
        self.must("cuStreamBeginCapture_v2", self.stream, 0)

    def begin_other_capture(self) -> None:
        self.must("cuStreamBeginCapture_v2", self.other_stream, 0)

    def push_context(self) -> None:
        self.must("cuCtxPushCurrent_v2", self.context)

    def create_context(self) -> None:
        self.context = self.made("cuCtxCreate_v2", 0, 0)

    def add_to_link(self) -> None:
        none = (0, None, None)
        size = ctypes.c_size_t(len(KERNELS))
        self.must("cuLinkAddData_v2", self.link, 1, KERNELS, size, b"kernels", *none)

    def add_dependency(self) -> None:
        one = ctypes.c_size_t(1)
        nodes = [ctypes.byref(self.node), ctypes.byref(self.second_node)]
        self.must("cuGraphAddDependencies", self.graph, *nodes, one)

    def retain_in_graph(self) -> None:
        self.must("cuGraphRetainUserObject", self.graph, self.user_object, 1, 0)

    def set_texture_array(self) -> None:
        self.must("cuTexRefSetArray", self.texture_reference, self.array, 1)

    def set_texture_mipmapped(self) -> None:
        self.must("cuTexRefSetMipmappedArray", self.texture_reference, self.mipmapped_array, 1)

    def set_texture_address(self) -> None:
        out, size = ctypes.c_size_t(), ctypes.c_size_t(64)
        reference = self.texture_reference
        self.must("cuTexRefSetAddress_v2", ctypes.byref(out), reference, self.memory, size)

    def set_surface_array(self) -> None:
        self.must("cuSurfRefSetArray", self.surface_reference, self.array, 0)


NODES: dict[str, Callable[[Scene], Any]] = {
    "KernelNode": lambda s: s.add("KernelNode_v2", buffer(s.kernel_params())),
    "MemsetNode": lambda s: s.add("MemsetNode", buffer(s.memset_params()), s.context),
    "MemcpyNode": lambda s: s.add("MemcpyNode", buffer(s.copy_3d()), s.context),
    "HostNode": lambda s: s.add("HostNode", buffer(s.host_params())),
    "EventRecordNode": lambda s: s.add("EventRecordNode", s.event),
    "EventWaitNode": lambda s: s.add("EventWaitNode", s.event),
    "ChildGraphNode": lambda s: s.add("ChildGraphNode", s.child),
    "MemAllocNode": lambda s: s.alloc_node,
    "MemFreeNode": lambda s: s.free_node,
    "BatchMemOpNode": lambda s: s.add("BatchMemOpNode", buffer(s.batch_params())),
}
