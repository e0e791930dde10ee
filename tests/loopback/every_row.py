#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Call every served entry point once, with arguments that a program might give.

Standard input: JSON, {name: {"class": ..., "params": [[name, type], ...]}}. NULL_WORKER_LOG: the
file to which the worker adds a line per record. Prints JSON: {name: [code, records]}.
"""

import ctypes
import faulthandler
import json
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
GRACE_S = 2.0  # for a record to be read
LAST = (
    *("cuCtxDestroy", "cuCtxDestroy_v2", "cuCtxDetach", "cuDevicePrimaryCtxRelease"),
    *("cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"),
)

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

    def forget_context(self) -> None:
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
COOPERATIVE = 2  # CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE
FLOAT = 0x20  # CU_AD_FORMAT_FLOAT
ARRAY = struct.pack("<QQII", 16, 16, FLOAT, 1)
ARRAY_3D = struct.pack("<QQQIII4x", 16, 16, 0, FLOAT, 1, 0)
LAUNCH_CONFIG = struct.Struct("<7I4xQQI4x")  # grid, block, shared bytes, stream, attributes, count

# What a parameter of this type gets; out parameters (other pointers) get zeroed memory.
BY_TYPE: dict[str, Callable[[Scene], Any]] = {
    "CUcontext": lambda s: s.context,
    "CUstream": lambda s: s.stream,
    "CUevent": lambda s: s.event,
    "CUmodule": lambda s: s.module,
    "CUlibrary": lambda s: s.library,
    "CUfunction": lambda s: s.function,
    "CUkernel": lambda s: s.kernel,
    "CUgraph": lambda s: s.graph(),
    "CUgraphExec": lambda s: s.graph_exec(),
    "CUgraphNode": lambda _: NODE,
    "CUgreenCtx": lambda _: made("cuGreenCtxCreate", None, 0, 1),
    "CUuserObject": lambda _: made("cuUserObjectCreate", None, HOST_FUNCTION, 1, 1),
    "CUgraphNodeParams *": lambda s: s.any_node(),
    "const CUDA_KERNEL_NODE_PARAMS *": lambda s: s.kernel_node(),
    "const CUDA_KERNEL_NODE_PARAMS_v1 *": lambda s: s.kernel_node(),
    "CUDA_MEM_ALLOC_NODE_PARAMS *": lambda _: POOL + struct.pack("<QQQQ", 0, 0, 64, 0),
    "const CUDA_BATCH_MEM_OP_NODE_PARAMS *": lambda s: s.batch_node(),
    "const CUDA_MEMSET_NODE_PARAMS *": lambda s: s.memset_node(),
    "const CUDA_HOST_NODE_PARAMS *": lambda _: HOST_NODE,
    "CUdeviceptr": lambda s: s.device_memory,
    "CUmemoryPool": lambda s: s.pool(),
    "const CUmemPoolProps *": lambda _: POOL,
    "CUmemLocation *": lambda _: LOCATION,
    "const CUmemLocation *": lambda _: LOCATION,
    "const CUmemAllocationProp *": lambda _: PHYSICAL,
    "CUmemGenericAllocationHandle": lambda s: s.physical(),
    "CUmemAllocationHandleType": lambda _: DESCRIPTOR,
    "CUmemPoolPtrExportData *": lambda s: s.exported_pointer(),
    "CUipcMemHandle": lambda s: s.memory_handle(),
    "CUipcEventHandle": lambda s: s.event_handle(),
    "const CUmemAccessDesc *": lambda _: LOCATION + struct.pack("<I", 3),
    "CUmemAllocationType": lambda _: 1,
    "CUmemPool_attribute": lambda _: 4,  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    "const CUDA_MEMCPY2D *": lambda s: s.copy_2d(),
    "const CUDA_MEMCPY3D *": lambda s: s.copy_3d(),
    "const CUDA_MEMCPY3D_PEER *": lambda s: s.copy_3d(),  # alike, of the current context
    "CUarray": lambda s: s.array(),
    "CUmipmappedArray": lambda s: s.mipmapped_array(),
    "CUtexref": lambda _: made("cuTexRefCreate"),
    "CUsurfref": lambda s: made("cuModuleGetSurfRef", s.module, b"surface"),
    "const CUDA_ARRAY_DESCRIPTOR *": lambda _: ARRAY,
    "const CUDA_ARRAY3D_DESCRIPTOR *": lambda _: ARRAY_3D,
    "const CUDA_RESOURCE_DESC *": lambda s: struct.pack("<I4xQ128x", 0, s.array().value),
    "CUlinkState": lambda s: s.link(),
    "CUjitInputType": lambda _: 1,  # CU_JIT_INPUT_PTX
    "CUhostFn": lambda _: HOST_FUNCTION,
    "CUstreamCallback": lambda _: CALLBACK,
    "const CUlaunchConfig *": lambda s: LAUNCH_CONFIG.pack(*[1] * 6, 0, s.stream.value, 0, 0),
    "const char *": lambda _: b"empty",
    "size_t": lambda _: ctypes.c_size_t(64),
    "unsigned long long": lambda _: ctypes.c_uint64(0),
    "cuuint64_t": lambda _: ctypes.c_uint64(0),
}
# By parameter name, for all functions.
BY_NAME: dict[str, Callable[[Scene], Any]] = {
    **dict.fromkeys(
        ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "blockSize"),
        lambda _: 1,
    ),
    **dict.fromkeys(("kernelParams", "extra", "jitOptions", "libraryOptions"), lambda _: None),
    **dict.fromkeys(("image", "code", "fatCubin"), lambda _: PTX),
    **dict.fromkeys(("fname", "fileName"), lambda s: s.file),
    **dict.fromkeys(("options", "optionValues"), lambda _: None),
    "srcDevice": lambda s: s.other_memory,
    **dict.fromkeys(("Width", "Height"), lambda _: ctypes.c_size_t(16)),
    "ElementSizeBytes": lambda _: 4,
    "len": lambda _: 256,
    "numDependencies": lambda _: ctypes.c_size_t(0),
    "symbol": lambda _: b"cuInit",
    "cudaVersion": lambda _: 12000,
}
MEM_OP = struct.Struct("<I4xQQ24x")  # operation, address, value
WRITE_VALUE_32 = 2
COPY_IN_ORDER = struct.pack("<I20x", 1)  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
SYNCHRONIZATION_POLICY = 3
SM_RESOURCE = struct.pack("<I140x", 1)  # CU_DEV_RESOURCE_TYPE_SM
# By function and parameter.
SPECIAL: dict[tuple[str, str], Callable[[Scene], Any]] = {
    ("cuOccupancyMaxPotentialBlockSize", "blockSize"): lambda s: s.buffer,
    ("cuOccupancyMaxPotentialBlockSizeWithFlags", "blockSize"): lambda s: s.buffer,
    **{("cuFuncSetBlockShape", axis): lambda _: 1 for axis in "xyz"},
    **{
        (f"cuLaunchGrid{form}", side): lambda _: 1
        for form in ("", "Async")
        for side in ("grid_width", "grid_height")
    },
    **{
        (f"cuLinkAddData{form}", name): value
        for form in ("", "_v2")
        for name, value in (("data", lambda _: PTX), ("size", lambda _: ctypes.c_size_t(len(PTX))))
    },
    **{(f"cuLinkAddFile{form}", "path"): lambda s: s.file for form in ("", "_v2")},
    **{(f"cuStreamBatchMemOp{form}", "count"): lambda _: 1 for form in ("", "_v2")},
    **{
        (f"cuStreamBatchMemOp{form}", "paramArray"): lambda s: MEM_OP.pack(
            WRITE_VALUE_32, s.device_memory.value, 1
        )
        for form in ("", "_v2")
    },
    **{
        (f"cuStream{verb}Attribute", "attr"): lambda _: SYNCHRONIZATION_POLICY
        for verb in ("Get", "Set")
    },
    ("cuMemPoolSetAccess", "count"): lambda _: ctypes.c_size_t(1),
    ("cuMemSetAccess", "count"): lambda _: ctypes.c_size_t(1),
    ("cuDeviceGetP2PAtomicCapabilities", "count"): lambda _: 1,
    ("cuMemImportFromShareableHandle", "osHandle"): lambda s: s.descriptor(),
    ("cuMemPoolImportFromShareableHandle", "handle"): lambda s: s.descriptor(),
    ("cuMemPoolExportPointer", "shareData_out"): lambda s: s.buffer,
    ("cuMemPoolExportPointer", "ptr"): lambda s: s.of_pool(),
    **{(f"cuIpcOpenMemHandle{form}", "Flags"): lambda _: 1 for form in ("", "_v2")},
    ("cuIpcCloseMemHandle", "dptr"): lambda s: s.opened_memory(),
    ("cuIpcGetEventHandle", "event"): lambda s: s.shared_event(),
    ("cuMemRetainAllocationHandle", "addr"): lambda s: s.mapped,
    ("cuPointerSetAttribute", "attribute"): lambda _: 6,  # CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
    ("cuPointerSetAttribute", "value"): lambda _: struct.pack("<I", 1),
    ("cuStreamSetAttribute", "value"): lambda _: struct.pack("<I64x", 1),
    **{
        (f"cuMemcpyBatchAsync{form}", name): value
        for form in ("", "_v2")
        for name, value in (
            ("dsts", lambda s: struct.pack("<Q", s.device_memory.value)),
            ("srcs", lambda s: struct.pack("<Q", s.other_memory.value)),
            ("sizes", lambda _: struct.pack("<Q", 64)),
            ("count", lambda _: ctypes.c_size_t(1)),
            ("attrs", lambda _: COPY_IN_ORDER),
            ("numAttrs", lambda _: ctypes.c_size_t(1)),
        )
    },
    ("cuGreenCtxStreamCreate", "flags"): lambda _: 1,  # CU_STREAM_NON_BLOCKING
    ("cuDevSmResourceSplitByCount", "input"): lambda _: SM_RESOURCE,
    ("cuDevResourceGenerateDesc", "resources"): lambda _: SM_RESOURCE,
    ("cuDevResourceGenerateDesc", "nbResources"): lambda _: 1,
    ("cuDeviceGetHostAtomicCapabilities", "count"): lambda _: 1,
    ("cuLaunchCooperativeKernelMultiDevice", "launchParamsList"): lambda s: s.launch_params(),
    ("cuLaunchCooperativeKernelMultiDevice", "numDevices"): lambda _: 1,
    **{
        (f"cuMemcpy3DBatchAsync{form}", name): value
        for form in ("", "_v2")
        for name, value in (
            ("opList", lambda s: s.copy_3d_batch()),
            ("numOps", lambda _: ctypes.c_size_t(1)),
        )
    },
    ("cuMemcpy", "src"): lambda s: s.other_memory,
    ("cuMemcpyAsync", "src"): lambda s: s.other_memory,
    ("cuMemFreeHost", "p"): lambda s: s.pinned,
    ("cuMemHostGetDevicePointer_v2", "p"): lambda s: s.pinned,
    ("cuMemHostGetFlags", "p"): lambda s: s.pinned,
    ("cuModuleGetFunction", "name"): lambda _: b"another",
    ("cuLibraryGetKernel", "name"): lambda _: b"another",
    ("cuDeviceGetByPCIBusId", "pciBusId"): lambda _: b"0000:01:00.0",
    ("cuModuleGetGlobal_v2", "name"): lambda _: b"word",
    ("cuLibraryGetGlobal", "name"): lambda _: b"word",
    **{
        (f"cuGraph{verb}Dependencies{form}", name): value
        for verb in ("Add", "Remove")
        for form in ("", "_v2")
        for name, value in (
            ("from", lambda _: struct.pack("<Q", NODE.value)),
            ("to", lambda _: struct.pack("<Q", NODE.value)),
            ("numDependencies", lambda _: ctypes.c_size_t(1)),
        )
    },
    ("cuGraphDebugDotPrint", "path"): lambda _: b"/dev/null",
    ("cuGraphExecChildGraphNodeSetParams", "hGraphExec"): lambda s: s.plain_exec(),
    **{
        (f"cuGraph{what}{form}", name): lambda _: struct.pack("<Q", 8)
        for what, name in (
            ("GetNodes", "numNodes"),
            ("GetRootNodes", "numRootNodes"),
            ("GetEdges", "numEdges"),
            ("NodeGetDependencies", "numDependencies"),
            ("NodeGetDependentNodes", "numDependentNodes"),
        )
        for form in ("", "_v2")
    },
    **{
        (f"cuGraphKernelNode{verb}Attribute", "attr"): lambda _: COOPERATIVE
        for verb in ("Get", "Set")
    },
    ("cuPointerGetAttribute", "attribute"): lambda _: 2,  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    ("cuFuncSetAttribute", "attrib"): lambda _: 8,
    ("cuKernelSetAttribute", "attrib"): lambda _: 8,
}
BEGIN_CAPTURE = ("cuStreamBeginCapture", "cuStreamBeginCapture_v2", "cuStreamBeginCaptureToGraph")
IN_CAPTURE = (
    *("cuStreamGetCaptureInfo_v2", "cuStreamGetCaptureInfo_v3"),
    *("cuStreamUpdateCaptureDependencies", "cuStreamUpdateCaptureDependencies_v2"),
)
# What has to have happened before; its records do not count, but for COUNTED.
BEFORE: dict[str, Callable[[Scene], None]] = {
    **dict.fromkeys(
        ("cuStreamSynchronize", "cuStreamQuery", "cuCtxSynchronize", "cuCtxSynchronize_v2"),
        Scene.work,
    ),
    **dict.fromkeys(("cuEventElapsedTime", "cuEventElapsedTime_v2"), Scene.record),
    **dict.fromkeys(("cuEventQuery", "cuEventSynchronize", "cuStreamWaitEvent"), Scene.record),
    **dict.fromkeys(("cuCtxDestroy", "cuCtxDestroy_v2", "cuCtxDetach"), Scene.create_context),
    **dict.fromkeys(("cuLaunchGrid", "cuLaunchGridAsync"), Scene.set_block_shape),
    "cuMemHostUnregister": Scene.register,
    "cuMemRetainAllocationHandle": Scene.map_released,
    "cuDevicePrimaryCtxRetain": Scene.forget_context,
    **dict.fromkeys(("cuStreamEndCapture", *IN_CAPTURE), Scene.begin_capture),
}
# They look for the number that their event's record asked for.
COUNTED = {"cuEventQuery", "cuEventSynchronize"}


AFTER: dict[str, Callable[[Scene], Any]] = {
    **dict.fromkeys(("cuMemHostRegister", "cuMemHostRegister_v2"), Scene.unregister),
    **dict.fromkeys((*BEGIN_CAPTURE, *IN_CAPTURE), Scene.end_capture),
}


def argument(scene: Scene, function: str, name: str, kind: str) -> Any:
    found = SPECIAL.get((function, name)) or BY_NAME.get(name) or BY_TYPE.get(kind)
    if found:
        return found(scene)
    return scene.buffer if kind.endswith("*") else None  # 0 of any width


def records() -> int:
    return log.read_bytes().count(b"\n")


def settled_records() -> int:
    """Return the number of records once the worker has read all of them."""
    out = ctypes.c_size_t()
    cuda.cuMemGetInfo_v2(ctypes.byref(out), ctypes.byref(out))  # waits for its reply
    return records()


def call(function: str, params: list[list[str]], is_local: bool) -> tuple[int, int]:
    """Return the call's CUresult and how many records it made."""
    scene = Scene()
    start = settled_records()
    if prepare := BEFORE.get(function):
        prepare(scene)
    arguments = [argument(scene, function, name, kind) for name, kind in params]
    before = start if function in COUNTED else settled_records()
    code = getattr(cuda, function)(*arguments)
    deadline_s = time.monotonic() + (0 if is_local else GRACE_S)
    while records() == before and time.monotonic() < deadline_s:
        time.sleep(0.001)
    n_records = records() - before
    if tidy := AFTER.get(function):
        tidy(scene)
    return code, n_records


def main() -> None:
    faulthandler.enable()
    IMAGE_FILE.write_bytes(PTX[:-1])
    rows = json.load(sys.stdin)
    results = {}
    for name in sorted(rows, key=lambda name: (name in LAST, name)):
        print(name, file=sys.stderr, flush=True)
        row = rows[name]
        results[name] = call(name, row["params"], row["class"] == "local")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
