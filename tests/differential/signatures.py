# SPDX-License-Identifier: Apache-2.0
"""How the entry points are called that differential programs call.

One word per parameter: `i32 u32 u64 f32` a number, `text` a string, `=` a value that works;
`dptr` a device pointer, `host` a page-locked and `page` a pageable one; else the kind of a handle.
`out:KIND` stores a new symbol of that kind; `get:TYPE` is a result to compare, `drop:TYPE` one that
may differ, `where` a pointer: symbol and offset.
"""

from __future__ import annotations

SIGNATURES: dict[str, tuple[str, ...]] = {
    name: tuple(words.split())  # a text has no spaces
    for name, words in {
        # memory
        "cuMemAlloc_v2": "out:dptr u64=4096",
        "cuMemAllocPitch_v2": "out:dptr drop:u64 u64=100 u64=20 u32=4",
        "cuMemFree_v2": "dptr",
        "cuMemGetInfo_v2": "drop:u64 drop:u64",
        "cuMemGetAddressRange_v2": "where get:u64 dptr",
        "cuMemAllocAsync": "out:dptr u64=4096 stream",
        "cuMemAllocFromPoolAsync": "out:dptr u64=4096 pool stream",
        "cuMemFreeAsync": "dptr stream",
        "cuMemHostAlloc": "out:host u64=4096 u32=0",
        "cuMemFreeHost": "host",
        "cuMemHostGetFlags": "get:u32 host",
        "cuMemHostGetDevicePointer_v2": "where host u32=0",
        "cuMemHostRegister_v2": "page u64=4096 u32=0",
        "cuMemHostUnregister": "page",
        "cuMemcpy": "dptr dptr u64=64",
        "cuMemcpyHtoD_v2": "dptr page u64=64",
        "cuMemcpyDtoH_v2": "page dptr u64=64",
        "cuMemcpyDtoD_v2": "dptr dptr u64=64",
        "cuMemcpyAsync": "dptr dptr u64=64 stream",
        "cuMemcpyHtoDAsync_v2": "dptr page u64=64 stream",
        "cuMemcpyDtoHAsync_v2": "page dptr u64=64 stream",
        "cuMemcpyDtoDAsync_v2": "dptr dptr u64=64 stream",
        "cuMemsetD8_v2": "dptr u32=1 u64=64",
        "cuMemsetD16_v2": "dptr u32=1 u64=64",
        "cuMemsetD32_v2": "dptr u32=1 u64=64",
        "cuMemsetD2D8_v2": "dptr u64=32 u32=1 u64=16 u64=4",
        "cuMemsetD8Async": "dptr u32=1 u64=64 stream",
        "cuMemsetD16Async": "dptr u32=1 u64=64 stream",
        "cuMemsetD32Async": "dptr u32=1 u64=64 stream",
        "cuMemsetD2D32Async": "dptr u64=64 u32=1 u64=8 u64=4 stream",
        "cuPointerGetAttribute": "get:u64 i32=2 dptr",
        # pools
        "cuDeviceGetDefaultMemPool": "out:pool i32=0",
        "cuMemPoolTrimTo": "pool u64=0",
        # streams
        "cuStreamCreate": "out:stream u32=0",
        "cuStreamCreateWithPriority": "out:stream u32=0 i32=0",
        "cuStreamDestroy_v2": "stream",
        "cuStreamSynchronize": "stream",
        "cuStreamQuery": "stream",
        "cuStreamGetFlags": "stream get:u32",
        "cuStreamGetPriority": "stream get:i32",
        "cuStreamWaitEvent": "stream event u32=0",
        "cuStreamIsCapturing": "stream get:i32",
        "cuStreamBeginCapture_v2": "stream i32=1",
        "cuStreamEndCapture": "stream out:graph",
        "cuThreadExchangeStreamCaptureMode": "inout:i32=0",
        # events
        "cuEventCreate": "out:event u32=0",
        "cuEventRecord": "event stream",
        "cuEventRecordWithFlags": "event stream u32=0",
        "cuEventSynchronize": "event",
        "cuEventQuery": "event",
        "cuEventElapsedTime_v2": "drop:f32 event event",
        "cuEventDestroy_v2": "event",
        # graphs
        "cuGraphCreate": "out:graph u32=0",
        "cuGraphAddEmptyNode": "out:node graph nodes u64=0",
        "cuGraphClone": "out:graph graph",
        "cuGraphInstantiateWithFlags": "out:exec graph u64=0",
        "cuGraphLaunch": "exec stream",
        "cuGraphUpload": "exec stream",
        "cuGraphExecGetFlags": "exec get:u64",
        "cuGraphGetNodes": "graph null get:u64",
        "cuGraphGetRootNodes": "graph null get:u64",
        "cuGraphExecDestroy": "exec",
        "cuGraphDestroy": "graph",
        # contexts and devices
        "cuCtxGetCurrent": "where",
        "cuCtxSetCurrent": "context",
        "cuCtxPushCurrent_v2": "context",
        "cuCtxPopCurrent_v2": "where",
        "cuCtxGetDevice": "get:i32",
        "cuCtxGetFlags": "get:u32",
        "cuCtxSynchronize": "",
        "cuCtxGetLimit": "get:u64 i32=1",
        "cuCtxSetLimit": "i32=1 u64=1048576",
        "cuCtxGetApiVersion": "context get:u32",
        "cuCtxGetStreamPriorityRange": "get:i32 get:i32",
        "cuDeviceGet": "get:i32 i32=0",
        "cuDeviceGetAttribute": "get:i32 i32=1 i32=0",
        "cuDevicePrimaryCtxGetState": "i32=0 get:u32 get:i32",
        "cuDevicePrimaryCtxRetain": "out:context i32=0",
        "cuDevicePrimaryCtxRelease_v2": "i32=0",
        # modules and kernels
        "cuModuleLoadData": "out:module image",
        "cuModuleUnload": "module",
        "cuModuleGetFunction": "out:function module text=add_one",
        "cuModuleGetGlobal_v2": "where get:u64 module text=counter",
        "cuModuleGetFunctionCount": "get:u32 module",
        "cuFuncGetAttribute": "get:i32 i32=1 function",
        "cuFuncSetAttribute": "function i32=8 i32=1024",
        "cuFuncSetCacheConfig": "function i32=0",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor": "get:i32 function i32=64 u64=0",
        "cuLaunchKernel": "function u32=1 u32=1 u32=1 u32=1 u32=1 u32=1 u32=0 stream params null",
    }.items()
}
