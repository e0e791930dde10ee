# SPDX-License-Identifier: Apache-2.0
"""For each parameter of each entry point an argument that works."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from differential.scene import Scene
from differential.scene_base import (
    ACCESS,
    ARRAY,
    ARRAY_3D,
    ASYNC_CALLBACK,
    CALLBACK,
    DESCRIPTOR,
    FLOAT,
    GRANULE,
    HOST_FUNCTION,
    KERNELS,
    LAUNCH_CONFIG,
    LOCATION,
    LOG_CALLBACK,
    OLD_ARRAY,
    OLD_ARRAY_3D,
    PHYSICAL,
    POOL,
    SM_RESOURCE,
    TEXTURE,
    buffer,
)

Make = Callable[[Scene], Any]
WIDTHS: dict[str, Any] = {
    **dict.fromkeys(("size_t", "unsigned long long", "cuuint64_t"), ctypes.c_uint64),
    **dict.fromkeys(("unsigned int", "cuuint32_t", "CUdeviceptr_v1"), ctypes.c_uint32),
    **{"unsigned char": ctypes.c_uint8, "unsigned short": ctypes.c_uint16},
    "float": ctypes.c_float,
}  # enumerations, int and CUdevice: 32 bits
# By type: what the scene calls one, an object of another kind, how one ends.
HANDLES: dict[str, tuple[str, str, str]] = {
    "CUcontext": ("context", "stream", ""),
    "CUstream": ("stream", "event", "cuStreamDestroy_v2"),
    "CUevent": ("event", "stream", "cuEventDestroy_v2"),
    "CUmodule": ("module", "stream", "cuModuleUnload"),
    "CUlibrary": ("library", "stream", "cuLibraryUnload"),
    "CUfunction": ("function", "event", ""),
    "CUkernel": ("kernel", "event", ""),
    "CUgraph": ("graph", "event", "cuGraphDestroy"),
    "CUgraphExec": ("exec", "event", "cuGraphExecDestroy"),
    "CUgraphNode": ("node", "event", "cuGraphDestroyNode"),
    "CUgreenCtx": ("green_context", "event", "cuGreenCtxDestroy"),
    "CUuserObject": ("user_object", "event", ""),
    "CUmemoryPool": ("pool", "event", "cuMemPoolDestroy"),
    "CUarray": ("array", "event", "cuArrayDestroy"),
    "CUmipmappedArray": ("mipmapped_array", "event", "cuMipmappedArrayDestroy"),
    "CUtexref": ("texture_reference", "event", "cuTexRefDestroy"),
    "CUsurfref": ("surface_reference", "event", ""),
    "CUtexObject": ("texture", "event", "cuTexObjectDestroy"),
    "CUsurfObject": ("surface", "event", "cuSurfObjectDestroy"),
    "CUlinkState": ("link", "event", "cuLinkDestroy"),
    "CUmemGenericAllocationHandle": ("physical", "event", "cuMemRelease"),
    "CUdevResourceDesc": ("resource_description", "event", ""),
    "CUlogsCallbackHandle": ("log_callback", "event", "cuLogsUnregisterCallback"),
    "CUasyncCallbackHandle": ("async_callback", "event", ""),
}
FUNCTIONS = {
    "CUhostFn": HOST_FUNCTION,
    "CUstreamCallback": CALLBACK,
    "CUlogsCallback": LOG_CALLBACK,
    "CUasyncCallback": ASYNC_CALLBACK,
}


def none(_: Scene) -> None:
    return None


def attribute(name: str) -> Make:
    return lambda scene: getattr(scene, name)


def constant(value: Any) -> Make:
    return lambda _: value


def place(word: bytes) -> Make:
    return lambda _: buffer(word)


def size(number: int) -> Make:
    return lambda _: ctypes.c_size_t(number)


def words(form: str, *numbers: int) -> Make:
    return place(struct.pack(form, *numbers))


BY_TYPE: dict[str, Make] = {
    **{kind: attribute(names[0]) for kind, names in HANDLES.items()},
    **{kind: constant(function) for kind, function in FUNCTIONS.items()},
    "CUoccupancyB2DSize": lambda _: None,
    "CUdeviceptr": lambda s: s.memory,
    "CUdeviceptr_v1": lambda s: s.old_memory.value,
    "const CUDA_MEMCPY2D_v1 *": lambda s: buffer(s.old_copy_2d()),
    "const CUDA_MEMCPY3D_v1 *": lambda s: buffer(s.old_copy_3d()),
    "const CUDA_ARRAY_DESCRIPTOR_v1 *": place(OLD_ARRAY),
    "const CUDA_ARRAY3D_DESCRIPTOR_v1 *": place(OLD_ARRAY_3D),
    "CUgraphNodeParams *": lambda s: buffer(s.any_node()),
    "const CUDA_KERNEL_NODE_PARAMS *": lambda s: buffer(s.kernel_params()),
    "const CUDA_KERNEL_NODE_PARAMS_v1 *": lambda s: buffer(s.kernel_params()),
    "CUDA_MEM_ALLOC_NODE_PARAMS *": lambda s: buffer(s.alloc_params()),
    "const CUDA_BATCH_MEM_OP_NODE_PARAMS *": lambda s: buffer(s.batch_params()),
    "const CUDA_MEMSET_NODE_PARAMS *": lambda s: buffer(s.memset_params()),
    "const CUDA_HOST_NODE_PARAMS *": lambda s: buffer(s.host_params()),
    "const CUmemPoolProps *": place(POOL),
    "CUmemLocation *": place(LOCATION),
    "const CUmemLocation *": place(LOCATION),
    "CUmemLocation": lambda _: ctypes.c_uint64(int.from_bytes(LOCATION, "little")),
    "const CUmemAllocationProp *": place(PHYSICAL),
    "CUmemAllocationHandleType": lambda _: DESCRIPTOR,
    "CUmemPoolPtrExportData *": lambda s: buffer(s.exported_pointer),
    "CUipcMemHandle": lambda s: s.memory_handle,
    "CUipcEventHandle": lambda s: s.event_handle,
    "const CUmemAccessDesc *": place(ACCESS),
    "CUmemAllocationType": lambda _: 1,
    "CUmemPool_attribute": lambda _: 4,  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    "const CUDA_MEMCPY2D *": lambda s: buffer(s.copy_2d()),
    "const CUDA_MEMCPY3D *": lambda s: buffer(s.copy_3d()),
    "const CUDA_MEMCPY3D_PEER *": lambda s: buffer(s.copy_3d_peer()),
    "CUDA_MEMCPY3D_BATCH_OP *": lambda s: buffer(s.copy_3d_batch()),
    "const CUDA_ARRAY_DESCRIPTOR *": place(ARRAY),
    "const CUDA_ARRAY3D_DESCRIPTOR *": place(ARRAY_3D),
    "const CUDA_TEXTURE_DESC *": place(TEXTURE),
    "const CUDA_RESOURCE_DESC *": lambda s: buffer(s.array_resource),
    "CUarray_format": lambda _: FLOAT,
    "CUjitInputType": lambda _: 1,  # CU_JIT_INPUT_PTX
    "const CUlaunchConfig *": lambda s: buffer(
        LAUNCH_CONFIG.pack(*[1] * 6, 0, s.stream.value, 0, 0)
    ),
    "CUDA_LAUNCH_PARAMS *": lambda s: buffer(s.launch_params()),
    "CUstreamBatchMemOpParams *": lambda s: buffer(s.memory_op()),
    "CUarrayMapInfo *": lambda s: buffer(s.array_mapping()),
    "const CUuuid *": place(bytes.fromhex("c693336e1121df11a8c368f355d89593")),
    "const CUdevResource *": lambda s: buffer(s.resource),
    "CUdevResourceType": lambda _: SM_RESOURCE,
    "const char *": lambda s: s.kernel_name,
    "CUlimit": lambda _: 1,  # CU_LIMIT_PRINTF_FIFO_SIZE
    "CUresult": lambda _: 1,
    "CUkernelNodeAttrID": lambda _: 2,  # COOPERATIVE
    "CUstreamAttrID": lambda _: 3,  # SYNCHRONIZATION_POLICY
    "const CUstreamAttrValue *": words("<I", 1),
    "CUfunction_attribute": lambda _: 8,  # MAX_DYNAMIC_SHARED_SIZE_BYTES
    "CUdevice_attribute": lambda _: 1,
    "CUdevice_P2PAttribute": lambda _: 2,  # ACCESS_SUPPORTED
    "CUmem_advise": lambda _: 1,
    "CUflushGPUDirectRDMAWritesScope": lambda _: 100,  # TO_OWNER
    "CUmem_range_attribute": lambda _: 1,
    "size_t": size(64),
    "CUDA_GRAPH_INSTANTIATE_PARAMS *": place(b""),
    "const CUmulticastObjectProp *": words("<I4xQIIQ", 1, GRANULE, 0, 1, 0),
}
# By parameter name, for all functions.
BY_NAME: dict[str, Make] = {
    **dict.fromkeys(
        ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ"), lambda _: 1
    ),
    **dict.fromkeys(("kernelParams", "extra", "jitOptions", "libraryOptions"), lambda _: None),
    **dict.fromkeys(("jitOptionsValues", "libraryOptionValues", "userData"), lambda _: None),
    **dict.fromkeys(("image", "code", "fatCubin"), lambda _: KERNELS),
    **dict.fromkeys(("fname", "fileName"), lambda s: s.file),
    **dict.fromkeys(("options", "optionValues", "paramsArray", "ctxCreateParams"), lambda _: None),
    **dict.fromkeys(("Width", "Height", "WidthInBytes"), size(16)),
    **dict.fromkeys(("dependencies", "dependencyData", "edgeData"), lambda _: None),
    **dict.fromkeys(("srcDevice", "srcDevicePtr"), lambda s: s.other_memory),
    **dict.fromkeys(("srcOffset", "dstOffset"), size(0)),
    "ElementSizeBytes": lambda _: 4,
    "blockSize": lambda _: 32,
    "len": lambda _: 256,
    "numDependencies": size(0),
    "childGraph": lambda s: s.child,
    "hClonedGraph": lambda s: s.clone,
    "symbol": lambda _: b"cuInit",
    "cudaVersion": lambda _: 12000,
    "dynamicSMemSize": size(0),
    "paramIndex": size(0),
    "numChannels": lambda _: 1,
    "NumPackedComponents": lambda _: 1,
    "numMipmapLevels": lambda _: 1,
    "maxAniso": lambda _: 1,
    "initialRefcount": lambda _: 1,
    "peerContext": lambda s: s.peer_context,
}
MEMORY_BATCH: dict[str, Make] = {
    "dsts": lambda s: buffer(struct.pack("<Q", s.memory.value)),
    "srcs": lambda s: buffer(struct.pack("<Q", s.other_memory.value)),
    "sizes": words("<Q", 64),
    "count": size(1),
    "attrs": words("<I20x", 1),  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    "numAttrs": size(1),
}
MANAGED_BATCH: dict[str, Make] = {
    "dptrs": lambda s: buffer(struct.pack("<Q", s.managed.value)),
    "sizes": words("<Q", 1 << 16),
    "count": size(1),
    "prefetchLocs": place(LOCATION),
    "numPrefetchLocs": size(1),
}
TENSOR: dict[str, Make] = {
    "tensorDataType": lambda _: 7,  # FLOAT32
    "tensorRank": lambda _: 4,
    "globalAddress": lambda s: s.memory,
    "globalDim": words("<4Q", 16, 8, 8, 2),
    "globalStrides": words("<3Q", 64, 512, 4096),
    "boxDim": words("<4I", 16, 8, 8, 1),
    "elementStrides": words("<4I", 1, 1, 1, 1),
    "channelsPerPixel": lambda _: 16,
    "pixelsPerColumn": lambda _: 8,
    **dict.fromkeys(("interleave", "l2Promotion", "oobFill"), lambda _: 0),
    "swizzle": lambda _: 0,
}


def of(functions: str, **arguments: Make) -> dict[tuple[str, str], Make]:
    return {(f, name): make for f in functions.split() for name, make in arguments.items()}


def managed(functions: str) -> dict[tuple[str, str], Make]:
    return of(functions, devPtr=lambda s: s.managed, count=size(1 << 16))


# How many entries the arrays have room for.
LISTS = {
    (f"cuGraph{what}{form}", n)
    for what, n in (
        ("GetNodes", "numNodes"),
        ("GetRootNodes", "numRootNodes"),
        ("GetEdges", "numEdges"),
        ("NodeGetDependencies", "numDependencies"),
        ("NodeGetDependentNodes", "numDependentNodes"),
    )
    for form in ("", "_v2")
}
# By function and parameter.
SPECIAL: dict[tuple[str, str], Make] = {
    **{(f"cuMemcpyBatchAsync{v}", n): m for v in ("", "_v2") for n, m in MEMORY_BATCH.items()},
    **{
        (f"cuMem{what}BatchAsync", n): m
        for what in ("Prefetch", "Discard", "DiscardAndPrefetch")
        for n, m in MANAGED_BATCH.items()
    },
    **{
        (f"cuTensorMapEncode{form}", n): m
        for form in ("Tiled", "Im2col", "Im2colWide")
        for n, m in TENSOR.items()
    },
    **of("cuTensorMapEncodeIm2colWide", mode=lambda _: 0, swizzle=lambda _: 3),
    **of(
        "cuTensorMapReplaceAddress",
        tensorMap=lambda s: s.tensor_map,
        globalAddress=lambda s: s.memory,
    ),
    **managed("cuMemAdvise cuMemAdvise_v2 cuMemPrefetchAsync cuMemPrefetchAsync_v2"),
    **managed("cuMemRangeGetAttribute"),
    **of("cuMemRangeGetAttribute", dataSize=size(4)),
    **of(
        "cuMemRangeGetAttributes",
        data=lambda s: buffer(struct.pack("<Q", ctypes.addressof(s.pageable))),
        dataSizes=words("<Q", 4),
        attributes=words("<I", 1),
        numAttributes=size(1),
        devPtr=lambda s: s.managed,
        count=size(1 << 16),
    ),
    **of("cuMemAllocManaged", flags=lambda _: 1),
    **of("cuStreamAttachMemAsync", dptr=lambda s: s.managed, length=size(0), flags=lambda _: 4),
    **of("cuLibraryGetManaged", library=lambda s: s.managed_library, name=lambda _: b"shared"),
    **of("cuCtxSetLimit", value=size(1 << 20)),
    **of(
        "cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags",
        blockSize=lambda _: buffer(),
    ),
    **of("cuOccupancyAvailableDynamicSMemPerBlock", numBlocks=lambda _: 1),
    **of("cuFuncSetBlockShape", x=lambda _: 1, y=lambda _: 1, z=lambda _: 1),
    **of("cuLaunchGrid cuLaunchGridAsync", grid_width=lambda _: 1, grid_height=lambda _: 1),
    **of("cuParamSetTexRef", texunit=lambda _: -1),  # CU_PARAM_TR_DEFAULT
    **of("cuParamSetv", numbytes=lambda _: 4),
    **of("cuParamSetSize", numbytes=lambda _: 8),
    **of("cuLinkAddData cuLinkAddData_v2", data=lambda _: KERNELS, size=size(len(KERNELS))),
    **of("cuLinkAddFile cuLinkAddFile_v2", path=lambda s: s.file),
    **of("cuStreamBatchMemOp cuStreamBatchMemOp_v2", count=lambda _: 1),
    **of("cuMemMapArrayAsync", count=lambda _: 1),
    **of("cuMemPoolSetAccess cuMemSetAccess", count=size(1)),
    **of("cuDeviceGetP2PAtomicCapabilities", count=lambda _: 1, dstDevice=lambda s: s.peer),
    **of("cuDeviceGetP2PAtomicCapabilities cuDeviceGetP2PAttribute", srcDevice=lambda _: 0),
    **of("cuDeviceGetP2PAttribute", dstDevice=lambda s: s.peer),
    **of("cuDeviceCanAccessPeer", peerDev=lambda s: s.peer),
    **of("cuDeviceGetHostAtomicCapabilities", count=lambda _: 1),
    **of("cuDeviceGetByPCIBusId", pciBusId=lambda s: s.bus_id),
    **of("cuMemImportFromShareableHandle", osHandle=lambda s: s.descriptor),
    **of("cuMemPoolImportFromShareableHandle", handle=lambda s: s.pool_descriptor),
    **of("cuMemPoolImportPointer", pool=lambda s: s.imported_pool),
    **of("cuMemPoolExportPointer", shareData_out=lambda _: buffer(), ptr=lambda s: s.of_pool),
    **of("cuIpcOpenMemHandle cuIpcOpenMemHandle_v2", Flags=lambda _: 1),
    **of("cuIpcCloseMemHandle", dptr=lambda s: s.opened_memory),
    **of("cuIpcGetEventHandle", event=lambda s: s.shared_event),
    **of("cuMemCreate cuMemAddressReserve", size=size(GRANULE)),
    **of("cuMemAddressReserve", alignment=size(0), addr=lambda _: ctypes.c_uint64(0)),
    **of("cuMemAddressFree", ptr=lambda s: s.reserved, size=size(GRANULE)),
    **of("cuMemMap", ptr=lambda s: s.reserved, size=size(GRANULE), offset=size(0)),
    **of("cuMemUnmap cuMemSetAccess", ptr=lambda s: s.mapped, size=size(GRANULE)),
    **of("cuMemGetAccess", ptr=lambda s: s.mapped),
    **of("cuMemRetainAllocationHandle", addr=lambda s: s.mapped),
    **of("cuPointerSetAttribute", attribute=lambda _: 6, value=words("<I", 1)),  # SYNC_MEMOPS
    **of("cuPointerGetAttribute", attribute=lambda _: 2),  # MEMORY_TYPE
    **of(
        "cuPointerGetAttributes",
        numAttributes=lambda _: 1,
        attributes=words("<I", 2),
        data=lambda s: buffer(struct.pack("<Q", ctypes.addressof(s.pageable))),
    ),
    **of("cuGreenCtxStreamCreate cuGreenCtxCreate", flags=lambda _: 1),
    **of("cuDevSmResourceSplitByCount", nbGroups=words("<I", 1), minCount=lambda _: 8),
    **of("cuDevResourceGenerateDesc", resources=lambda s: buffer(s.resource)),
    **of("cuDevResourceGenerateDesc", nbResources=lambda _: 1),
    **of("cuLaunchCooperativeKernelMultiDevice", numDevices=lambda _: 1),
    **of("cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_v2", numOps=size(1)),
    **of("cuMemcpy cuMemcpyAsync", src=lambda s: s.other_memory),
    **of("cuMemFreeHost cuMemHostGetDevicePointer_v2 cuMemHostGetFlags", p=lambda s: s.pinned),
    **of("cuMemHostRegister cuMemHostRegister_v2 cuMemHostUnregister", p=lambda s: s.pageable),
    **of("cuModuleGetGlobal cuModuleGetGlobal_v2 cuLibraryGetGlobal", name=lambda _: b"word"),
    **of("cuModuleGetTexRef cuModuleGetSurfRef", hmod=lambda s: s.references),
    **of("cuModuleGetTexRef", name=lambda _: b"texture"),
    **of("cuModuleGetSurfRef", name=lambda _: b"surface"),
    **of("cuSurfRefSetArray", Flags=lambda _: 0),
    **of("cuTexRefSetArray cuTexRefSetMipmappedArray", Flags=lambda _: 1),
    **of("cuTexRefSetAddress2D_v2 cuTexRefSetAddress2D_v3", Pitch=size(64)),
    **of(
        "cuGraphAddDependencies cuGraphAddDependencies_v2 cuGraphRemoveDependencies"
        " cuGraphRemoveDependencies_v2",
        **{"from": lambda s: buffer(struct.pack("<Q", s.node.value))},
        to=lambda s: buffer(struct.pack("<Q", s.second_node.value)),
        numDependencies=size(1),
    ),
    **of("cuGraphDebugDotPrint", path=lambda s: s.file),
    **of(
        "cuGraphNodeGetDependencies cuGraphNodeGetDependencies_v2",
        dependencies=lambda _: buffer(),
    ),
    **{row: words("<Q", 8) for row in LISTS},
    **of("cuGraphNodeGetDependencies_v2", edgeData=lambda _: buffer()),
    **of("cuGraphGetEdges_v2", edgeData=lambda _: buffer()),
    **of("cuGraphKernelNodeCopyAttributes", src=lambda s: s.node),
    **of("cuGraphRetainUserObject cuGraphReleaseUserObject", count=lambda _: 1),
    **of("cuUserObjectRetain cuUserObjectRelease", count=lambda _: 1),
    **of("cuUserObjectCreate", flags=lambda _: 1),
    **of("cuGraphAddMemFreeNode", dptr=lambda s: (s.alloc_node, s.allocated_by_node)[1]),
    **of("cuDeviceSetGraphMemAttribute", attr=lambda _: 1),  # USED_MEM_HIGH
    **of(
        "cuLogsDumpToFile", iterator=lambda s: buffer(s.log_position), pathToFile=lambda s: s.file
    ),
    **of("cuLogsDumpToMemory", iterator=lambda s: buffer(s.log_position), size=words("<Q", 4096)),
    **of("cuMemGetHandleForAddressRange", handleType=lambda _: 1),
    **of("cuLaunchHostFunc", fn=lambda _: HOST_FUNCTION),
    **of("cuTexObjectCreate", pResViewDesc=none),
    **of("cuModuleLoadFatBinary", fatCubin=lambda _: KERNELS),
}
INACTIVE = "cuDevicePrimaryCtxSetFlags"  # works while there is no primary context
IN_CAPTURE = (
    *("cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v2", "cuStreamGetCaptureInfo_v3"),
    *("cuStreamUpdateCaptureDependencies", "cuStreamUpdateCaptureDependencies_v2"),
)
# What has to have happened before a call can work.
BEFORE: dict[str, Callable[[Scene], Any]] = {
    **dict.fromkeys(("cuEventElapsedTime", "cuEventElapsedTime_v2"), Scene.record),
    **dict.fromkeys(("cuCtxDestroy", "cuCtxDestroy_v2", "cuCtxDetach"), Scene.create_context),
    **dict.fromkeys(("cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync"), Scene.set_block_shape),
    **dict.fromkeys(("cuStreamEndCapture", *IN_CAPTURE), Scene.begin_capture),
    "cuMemHostUnregister": Scene.register,
    "cuCtxDisablePeerAccess": Scene.enable_peer,
    "cuLinkComplete": Scene.add_to_link,
    **dict.fromkeys(
        ("cuGraphRemoveDependencies", "cuGraphRemoveDependencies_v2"), Scene.add_dependency
    ),
    "cuGraphReleaseUserObject": Scene.retain_in_graph,
    "cuTexRefGetArray": Scene.set_texture_array,
    "cuTexRefGetMipmappedArray": Scene.set_texture_mipmapped,
    "cuTexRefGetAddress_v2": Scene.set_texture_address,
    "cuSurfRefGetArray": Scene.set_surface_array,
    "cuParamSetTexRef": Scene.set_texture_array,
}


def good(function: str, name: str, kind: str) -> Make:
    """Return what makes an argument that works; places for results are memory full of zeros."""
    found = SPECIAL.get((function, name)) or BY_NAME.get(name) or BY_TYPE.get(kind)
    if kind == "CUdeviceptr_v1":
        found = BY_TYPE[kind]
    if found and not (kind.endswith("_out") or name.endswith("_out")):
        make = found
    elif kind.endswith("*"):
        make = place(b"")
    else:
        make = lambda _: 0  # noqa: E731
    return lambda scene: of_width(kind, make(scene))


def of_width(kind: str, value: Any) -> Any:
    if isinstance(value, int):
        if kind in HANDLES or kind == "CUdeviceptr":
            return ctypes.c_uint64(value)
        return WIDTHS.get(kind, ctypes.c_int32)(value)
    return value
