# SPDX-License-Identifier: Apache-2.0
"""More entry points of differential programs: those with structures, arrays of handles, functions.

Beside the words of signatures.py: `struct:NAME` and `structs:NAME` a structure and an array of them
(structures.py), `nodes` an array of handles, `cell:TYPE` a number by its address, `result` the
first number of a structure that the driver fills in, `fn` and `callback` functions of the executor.
"""

from __future__ import annotations

from differential.signatures import SIGNATURES as PLAIN

_NODE = "out:node graph nodes u64=0"

SIGNATURES: dict[str, tuple[str, ...]] = PLAIN | {
    name: tuple(words.split())
    for name, words in {
        # memory
        "cuMemcpy2D_v2": "struct:CUDA_MEMCPY2D",
        "cuMemcpy2DUnaligned_v2": "struct:CUDA_MEMCPY2D",
        "cuMemcpy2DAsync_v2": "struct:CUDA_MEMCPY2D stream",
        "cuMemcpy3D_v2": "struct:CUDA_MEMCPY3D",
        "cuMemcpy3DAsync_v2": "struct:CUDA_MEMCPY3D stream",
        "cuMemcpyPeer": "dptr context dptr context u64=64",
        "cuMemcpyPeerAsync": "dptr context dptr context u64=64 stream",
        "cuMemsetD2D8Async": "dptr u64=64 u32=1 u64=8 u64=4 stream",
        "cuMemsetD2D16Async": "dptr u64=64 u32=1 u64=8 u64=4 stream",
        "cuMemsetD2D16_v2": "dptr u64=64 u32=1 u64=8 u64=4",
        "cuMemsetD2D32_v2": "dptr u64=64 u32=1 u64=8 u64=4",
        # arrays
        "cuArrayCreate_v2": "out:array struct:CUDA_ARRAY_DESCRIPTOR",
        "cuArray3DCreate_v2": "out:array struct:CUDA_ARRAY3D_DESCRIPTOR",
        "cuArrayGetDescriptor_v2": "result array",
        "cuArray3DGetDescriptor_v2": "result array",
        "cuArrayDestroy": "array",
        "cuMemcpyHtoA_v2": "array u64=0 page u64=4",
        "cuMemcpyAtoH_v2": "page array u64=0 u64=4",
        "cuMemcpyDtoA_v2": "array u64=0 dptr u64=4",
        "cuMemcpyAtoD_v2": "dptr array u64=0 u64=4",
        "cuMemcpyHtoAAsync_v2": "array u64=0 page u64=4 stream",
        "cuMemcpyAtoHAsync_v2": "page array u64=0 u64=4 stream",
        # virtual memory
        "cuMemAddressReserve": "out:va u64=2097152 u64=0 va u64=0",
        "cuMemAddressFree": "va u64=2097152",
        "cuMemCreate": "out:phys u64=2097152 struct:CUmemAllocationProp u64=0",
        "cuMemRelease": "phys",
        "cuMemMap": "va u64=2097152 u64=0 phys u64=0",
        "cuMemUnmap": "va u64=2097152",
        "cuMemSetAccess": "va u64=2097152 structs:CUmemAccessDesc u64=1",
        "cuMemGetAccess": "get:u64 struct:CUmemLocation va",
        "cuMemRetainAllocationHandle": "out:phys va",
        "cuMemGetAllocationGranularity": "get:u64 struct:CUmemAllocationProp u32=0",
        # pools
        "cuMemPoolCreate": "out:pool struct:CUmemPoolProps",
        "cuMemPoolDestroy": "pool",
        "cuMemPoolSetAttribute": "pool u32=4 cell:u64",
        "cuMemPoolGetAttribute": "pool u32=4 get:u64",
        "cuMemPoolSetAccess": "pool structs:CUmemAccessDesc u64=1",
        "cuMemPoolGetAccess": "get:u32 pool struct:CUmemLocation",
        "cuDeviceGetMemPool": "out:pool i32=0",
        # streams
        "cuStreamWriteValue32_v2": "stream dptr u32=1 u32=0",
        "cuStreamWriteValue64_v2": "stream dptr u64=1 u32=0",
        "cuStreamWaitValue32_v2": "stream dptr u32=0 u32=0",
        "cuStreamWaitValue64_v2": "stream dptr u64=0 u32=0",
        "cuStreamBatchMemOp_v2": "stream u32=1 structs:CUstreamBatchMemOpParams u32=0",
        "cuLaunchHostFunc": "stream fn page",
        "cuStreamAddCallback": "stream callback page u32=0",
        "cuStreamGetCtx": "stream where",
        "cuStreamGetDevice": "stream get:i32",
        "cuStreamGetId": "stream drop:u64",
        "cuStreamCopyAttributes": "stream stream",
        "cuStreamGetCaptureInfo_v2": "stream get:i32 drop:u64 null null null",
        "cuLaunchKernelEx": "struct:CUlaunchConfig function params null",
        # graphs
        "cuGraphAddKernelNode_v2": f"{_NODE} struct:CUDA_KERNEL_NODE_PARAMS",
        "cuGraphAddMemsetNode": f"{_NODE} struct:CUDA_MEMSET_NODE_PARAMS context",
        "cuGraphAddMemcpyNode": f"{_NODE} struct:CUDA_MEMCPY3D context",
        "cuGraphAddHostNode": f"{_NODE} struct:CUDA_HOST_NODE_PARAMS",
        "cuGraphAddChildGraphNode": f"{_NODE} graph",
        "cuGraphAddEventRecordNode": f"{_NODE} event",
        "cuGraphAddEventWaitNode": f"{_NODE} event",
        "cuGraphAddDependencies_v2": "graph nodes nodes null u64=1",
        "cuGraphDestroyNode": "node",
        "cuGraphNodeGetType": "node get:i32",
        "cuGraphGetEdges_v2": "graph null null null get:u64",
        "cuGraphNodeGetDependencies_v2": "node null null get:u64",
        "cuGraphNodeGetDependentNodes_v2": "node null null get:u64",
        "cuGraphMemsetNodeSetParams": "node struct:CUDA_MEMSET_NODE_PARAMS",
        "cuGraphKernelNodeSetParams_v2": "node struct:CUDA_KERNEL_NODE_PARAMS",
        "cuGraphExecMemsetNodeSetParams": "exec node struct:CUDA_MEMSET_NODE_PARAMS context",
        "cuGraphExecKernelNodeSetParams_v2": "exec node struct:CUDA_KERNEL_NODE_PARAMS",
        "cuGraphNodeSetEnabled": "exec node u32=1",
        "cuGraphNodeGetEnabled": "exec node get:u32",
        "cuGraphExecUpdate_v2": "exec graph result",
        # libraries
        "cuLibraryLoadData": "out:library image null null u32=0 null null u32=0",
        "cuLibraryUnload": "library",
        "cuLibraryGetKernel": "out:kernel library text=add_one",
        "cuLibraryGetGlobal": "where get:u64 library text=counter",
        "cuLibraryGetKernelCount": "get:u32 library",
        "cuKernelGetFunction": "out:function kernel",
        # devices
        "cuDeviceCanAccessPeer": "get:i32 i32=0 i32=0",
        "cuCtxEnablePeerAccess": "context u32=0",
        "cuCtxDisablePeerAccess": "context",
        "cuDeviceGetP2PAttribute": "get:i32 i32=1 i32=0 i32=0",
    }.items()
}
