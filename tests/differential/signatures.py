# SPDX-License-Identifier: Apache-2.0
"""How the entry points are called that differential programs call.

One word per parameter: `i32 u32 u64 f32` a number; `dptr` a device pointer; `host` a host pointer;
`text` a string; `handle` any handle. `out:KIND` stores a new symbol of that kind; `get:TYPE` is
a result to compare, `drop:TYPE` one that may differ, `where` a pointer: symbol and offset.
"""

from __future__ import annotations

SIGNATURES: dict[str, tuple[str, ...]] = {
    name: tuple(words.split())
    for name, words in {
        # memory
        "cuMemAlloc_v2": "out:dptr u64",
        "cuMemAllocPitch_v2": "out:dptr drop:u64 u64 u64 u32",
        "cuMemFree_v2": "dptr",
        "cuMemGetInfo_v2": "drop:u64 drop:u64",
        "cuMemGetAddressRange_v2": "where get:u64 dptr",
        "cuMemAllocAsync": "out:dptr u64 handle",
        "cuMemAllocFromPoolAsync": "out:dptr u64 handle handle",
        "cuMemFreeAsync": "dptr handle",
        "cuMemHostAlloc": "out:host u64 u32",
        "cuMemFreeHost": "host",
        "cuMemHostGetFlags": "get:u32 host",
        "cuMemHostGetDevicePointer_v2": "where host u32",
        "cuMemHostRegister_v2": "host u64 u32",
        "cuMemHostUnregister": "host",
        "cuMemcpy": "dptr dptr u64",
        "cuMemcpyHtoD_v2": "dptr host u64",
        "cuMemcpyDtoH_v2": "host dptr u64",
        "cuMemcpyDtoD_v2": "dptr dptr u64",
        "cuMemcpyAsync": "dptr dptr u64 handle",
        "cuMemcpyHtoDAsync_v2": "dptr host u64 handle",
        "cuMemcpyDtoHAsync_v2": "host dptr u64 handle",
        "cuMemcpyDtoDAsync_v2": "dptr dptr u64 handle",
        "cuMemsetD8_v2": "dptr u32 u64",
        "cuMemsetD16_v2": "dptr u32 u64",
        "cuMemsetD32_v2": "dptr u32 u64",
        "cuMemsetD2D8_v2": "dptr u64 u32 u64 u64",
        "cuMemsetD8Async": "dptr u32 u64 handle",
        "cuMemsetD16Async": "dptr u32 u64 handle",
        "cuMemsetD32Async": "dptr u32 u64 handle",
        "cuMemsetD2D32Async": "dptr u64 u32 u64 u64 handle",
        "cuPointerGetAttribute": "get:u64 i32 dptr",
        # pools
        "cuDeviceGetDefaultMemPool": "out:pool i32",
        "cuMemPoolTrimTo": "handle u64",
        # streams
        "cuStreamCreate": "out:stream u32",
        "cuStreamCreateWithPriority": "out:stream u32 i32",
        "cuStreamDestroy_v2": "handle",
        "cuStreamSynchronize": "handle",
        "cuStreamQuery": "handle",
        "cuStreamGetFlags": "handle get:u32",
        "cuStreamGetPriority": "handle get:i32",
        "cuStreamWaitEvent": "handle handle u32",
        "cuStreamIsCapturing": "handle get:i32",
        "cuStreamBeginCapture_v2": "handle i32",
        "cuStreamEndCapture": "handle out:graph",
        "cuThreadExchangeStreamCaptureMode": "inout:i32",
        # events
        "cuEventCreate": "out:event u32",
        "cuEventRecord": "handle handle",
        "cuEventRecordWithFlags": "handle handle u32",
        "cuEventSynchronize": "handle",
        "cuEventQuery": "handle",
        "cuEventElapsedTime_v2": "drop:f32 handle handle",
        "cuEventDestroy_v2": "handle",
        # graphs
        "cuGraphCreate": "out:graph u32",
        "cuGraphAddEmptyNode": "out:node handle nodes u64",
        "cuGraphClone": "out:graph handle",
        "cuGraphInstantiateWithFlags": "out:exec handle u64",
        "cuGraphLaunch": "handle handle",
        "cuGraphUpload": "handle handle",
        "cuGraphExecGetFlags": "handle get:u64",
        "cuGraphGetNodes": "handle null get:u64",
        "cuGraphGetRootNodes": "handle null get:u64",
        "cuGraphExecDestroy": "handle",
        "cuGraphDestroy": "handle",
        # contexts and devices
        "cuCtxGetCurrent": "where",
        "cuCtxSetCurrent": "handle",
        "cuCtxPushCurrent_v2": "handle",
        "cuCtxPopCurrent_v2": "where",
        "cuCtxGetDevice": "get:i32",
        "cuCtxGetFlags": "get:u32",
        "cuCtxSynchronize": "",
        "cuCtxGetLimit": "get:u64 i32",
        "cuCtxSetLimit": "i32 u64",
        "cuCtxGetApiVersion": "handle get:u32",
        "cuCtxGetStreamPriorityRange": "get:i32 get:i32",
        "cuDeviceGet": "get:i32 i32",
        "cuDeviceGetAttribute": "get:i32 i32 i32",
        "cuDevicePrimaryCtxGetState": "i32 get:u32 get:i32",
        "cuDevicePrimaryCtxRetain": "out:context i32",
        "cuDevicePrimaryCtxRelease_v2": "i32",
        # modules and kernels
        "cuModuleLoadData": "out:module image",
        "cuModuleUnload": "handle",
        "cuModuleGetFunction": "out:function handle text",
        "cuModuleGetGlobal_v2": "where get:u64 handle text",
        "cuModuleGetFunctionCount": "get:u32 handle",
        "cuFuncGetAttribute": "get:i32 i32 handle",
        "cuFuncSetAttribute": "handle i32 i32",
        "cuFuncSetCacheConfig": "handle i32",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor": "get:i32 handle i32 u64",
        "cuLaunchKernel": "handle u32 u32 u32 u32 u32 u32 u32 handle params null",
    }.items()
}
