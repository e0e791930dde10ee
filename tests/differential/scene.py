# SPDX-License-Identifier: Apache-2.0
"""What a call under test needs: objects, structures that name them, what came before."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import cached_property
from typing import Any

from differential.prototypes import is_old
from differential.scene_base import (
    ARRAY_3D,
    DEFERRED,
    DEVICE_MEMORY,
    GRANULE,
    HOST_FUNCTION,
    KERNEL_NODE,
    KERNELS,
    MEM_OP,
    MEMSET,
    MEMSET_NODE,
    OLD_ARRAY,
    PLANES,
    POOL,
    SPARSE,
    TEXTURE,
    TILE_POOL,
    VIEW,
    WRITE_VALUE_32,
    Base,
    buffer,
)


class Scene(Base):
    """Fresh objects for one call of `function`."""

    # -- arrays and textures ----------------------------------------------------------------------

    @property
    def array_3d(self) -> bytes:
        """The kind of array that the function is about."""
        if "SparseProperties" in self.for_function or self.for_function == "cuMemMapArrayAsync":
            return SPARSE
        return DEFERRED if "MemoryRequirements" in self.for_function else ARRAY_3D

    @cached_property
    def array(self) -> Any:
        if self.for_function == "cuArrayGetPlane":
            out = ctypes.c_uint64()
            if self.cuda.cuArray3DCreate_v2(ctypes.byref(out), buffer(PLANES)) == 0:
                return out
        if is_old(self.for_function):
            return self.made("cuArrayCreate", buffer(OLD_ARRAY))
        return self.made("cuArray3DCreate_v2", buffer(self.array_3d))

    @cached_property
    def mipmapped_array(self) -> Any:
        return self.made("cuMipmappedArrayCreate", buffer(self.array_3d), 1)

    @cached_property
    def array_resource(self) -> bytes:
        return struct.pack("<I4xQ128x", 0, self.array.value)

    @cached_property
    def texture(self) -> Any:
        view = buffer(VIEW) if "View" in self.for_function else None
        return self.made("cuTexObjectCreate", buffer(self.array_resource), buffer(TEXTURE), view)

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

    def old_copy_2d(self) -> bytes:
        place = self.old_memory.value
        source = (0, 0, DEVICE_MEMORY, 0, place, 0, 64)
        target = (0, 0, DEVICE_MEMORY, 0, place + 4096, 0, 64)
        return struct.pack("<3I4xQI4xQI3IQI4xQI2I", *source, *target, 64, 1)

    def old_copy_3d(self) -> bytes:
        place = self.old_memory.value
        source = (0, 0, 0, 0, DEVICE_MEMORY, 0, place, 0, 0, 64, 1)
        target = (0, 0, 0, 0, DEVICE_MEMORY, 0, place + 4096, 0, 0, 64, 1)
        return struct.pack("<" + "5I4xQI4xQQ2I" * 2 + "3I", *source, *target, 64, 1, 1)

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

    def array_mapping(self) -> bytes:
        """One tile of 128 by 128 elements, at the start of a pool."""
        size, none = ctypes.c_size_t(GRANULE), ctypes.c_uint64(0)
        pool = self.made("cuMemCreate", size, buffer(TILE_POOL), none)
        tile = struct.pack("<8I", 0, 0, 0, 0, 0, 128, 128, 1)
        where = struct.pack("<I4xQI4x32s", 0, self.array.value, 0, tile)
        return where + struct.pack("<IIQQII8x", 1, 0, pool.value, 0, 1, 0)

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

    def without_primary(self) -> Any:
        """The device, whose primary context has ended."""
        self.must("cuDevicePrimaryCtxRelease", 0)
        return ctypes.c_int32(0)

    def create_context(self) -> None:
        self.context = self.made("cuCtxCreate_v2", 0, 0)

    def enable_peer(self) -> None:
        """Where there is another device."""
        if self.peer:
            self.must("cuCtxEnablePeerAccess", self.peer_context, 0)

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
