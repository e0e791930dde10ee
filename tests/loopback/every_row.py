#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Call every served entry point once, with arguments that a program might give.

Standard input: JSON, {name: {"class": ..., "params": [[name, type], ...]}}. NULL_WORKER_LOG: the
file to which the worker adds a line per record. Prints JSON: {name: [code, records]}.
"""

import ctypes
import faulthandler
import json
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from loopback.every_row_scene import (
    ARRAY,
    ARRAY_3D,
    CALLBACK,
    COOPERATIVE,
    DESCRIPTOR,
    HOST_FUNCTION,
    HOST_NODE,
    IMAGE_FILE,
    LAUNCH_CONFIG,
    LOCATION,
    MEM_OP,
    NODE,
    PHYSICAL,
    POOL,
    PTX,
    WRITE_VALUE_32,
    Scene,
    cuda,
    log,
    made,
)

GRACE_S = 2.0  # for a record to be read
LAST = (
    *("cuCtxDestroy", "cuCtxDestroy_v2", "cuCtxDetach", "cuDevicePrimaryCtxRelease"),
    *("cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"),
)

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
    "CUgreenCtx": lambda s: s.green_context(),
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
    ("cuMemMapArrayAsync", "mapInfoList"): lambda s: s.array_mapping(),
    ("cuMemMapArrayAsync", "count"): lambda _: 1,
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
    **dict.fromkeys(LAST, Scene.end_green_contexts),
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
    "cuGreenCtxCreate": Scene.keep_made_green_context,
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
