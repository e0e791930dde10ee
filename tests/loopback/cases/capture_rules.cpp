// SPDX-License-Identifier: Apache-2.0
// Which calls a capture in global mode forbids to the thread that began it.
#include <cstdlib>

#include "support.h"


namespace {

// What the calls are made on: all of it is there before the capture begins.
struct Things {
  Things() {
    CU(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CU(cuEventCreate(&event, CU_EVENT_DEFAULT));
    CU(cuEventCreate(&second_event, CU_EVENT_DEFAULT));
    CU(cuEventRecord(event, other));
    CU(cuEventRecord(second_event, other));
    CU(cuMemAlloc(&dptr, 256));
    CU(cuMemAlloc(&spare, 256));
    CU(cuMemAllocHost(&pinned, 4096));
    CU(cuMemAllocHost(&spare_pinned, 4096));
    CU(cuLibraryLoadData(&library, kernels_ptx(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    CU(cuLibraryLoadData(&spare_library, kernels_ptx(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    CU(cuLibraryGetKernel(&kernel, library, "add_one"));
    CU(cuModuleLoadData(&spare_module, kernels_ptx()));
    CU(cuDeviceGetDefaultMemPool(&pool, gpu.device));
    CU(cuGraphCreate(&graph, 0));
    CUgraphNode node;
    CU(cuGraphAddEmptyNode(&node, graph, nullptr, 0));
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(cuStreamSynchronize(other));
  }
  Gpu gpu;
  CUstream capturing = nullptr, other = nullptr, made_stream = nullptr;
  CUevent event = nullptr, second_event = nullptr, made_event = nullptr;
  CUdeviceptr dptr = 0, spare = 0, address = 0;
  void *pinned = nullptr, *spare_pinned = nullptr, *pointer = nullptr;
  alignas(4096) char page[8192] = {};
  CUlibrary library = nullptr, spare_library = nullptr, made_library = nullptr;
  CUkernel kernel = nullptr;
  CUmodule module = nullptr, spare_module = nullptr;
  CUfunction function = nullptr;
  CUmemoryPool pool = nullptr;
  CUgraph graph = nullptr, made_graph = nullptr;
  CUgraphExec exec = nullptr, made_exec = nullptr;
  CUcontext context = nullptr;
  size_t bytes = 0, pitch = 0;
  int number = 0;
  float ms = 0;
  unsigned flags = 0;
};

struct Rule {
  const char* name;
  CUresult (*call)(Things& t);
  CUresult expected;
};

#define RULE(code, call) {#call, []([[maybe_unused]] Things& t) { return call; }, static_cast<CUresult>(code)}
// clang-format off
const Rule RULES[] = {
    RULE(0, cuLibraryLoadData(&t.made_library, kernels_ptx(), nullptr, nullptr, 0, nullptr, nullptr, 0)),
    RULE(0, cuLibraryUnload(t.spare_library)),
    RULE(0, cuLibraryGetKernel(&t.kernel, t.library, "read_counter")),
    RULE(0, cuLibraryGetModule(&t.module, t.library)),
    RULE(0, cuLibraryGetGlobal(&t.address, &t.bytes, t.library, "counter")),
    RULE(0, cuKernelGetFunction(&t.function, t.kernel)),
    RULE(0, cuKernelGetAttribute(&t.number, CU_FUNC_ATTRIBUTE_NUM_REGS, t.kernel, t.gpu.device)),
    RULE(0, cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50, t.kernel, t.gpu.device)),
    RULE(0, cuModuleLoadData(&t.module, kernels_ptx())),
    RULE(0, cuModuleUnload(t.spare_module)),
    RULE(0, cuModuleGetFunction(&t.function, t.gpu.module, "read_counter")),
    RULE(0, cuModuleGetGlobal(&t.address, &t.bytes, t.gpu.module, "counter")),
    RULE(0, cuFuncGetAttribute(&t.number, CU_FUNC_ATTRIBUTE_NUM_REGS, t.gpu.function("add_one"))),
    RULE(0, cuFuncSetAttribute(t.gpu.function("add_one"), CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50)),
    RULE(0, cuFuncSetCacheConfig(t.gpu.function("add_one"), CU_FUNC_CACHE_PREFER_L1)),
    RULE(0, cuFuncLoad(t.gpu.function("add_one"))),
    RULE(0, cuOccupancyMaxActiveBlocksPerMultiprocessor(&t.number, t.gpu.function("add_one"), 32, 0)),
    RULE(0, cuMemAlloc(&t.address, 256)),
    RULE(0, cuMemAllocPitch(&t.address, &t.pitch, 256, 2, 4)),
    RULE(0, cuMemFree(t.spare)),
    RULE(0, cuMemAllocHost(&t.pointer, 256)),
    RULE(0, cuMemHostAlloc(&t.pointer, 256, 0)),
    RULE(0, cuMemFreeHost(t.spare_pinned)),
    RULE(0, cuMemHostRegister(t.page, 4096, 0)),
    RULE(0, cuMemHostGetDevicePointer(&t.address, t.pinned, 0)),
    RULE(0, cuMemHostGetFlags(&t.flags, t.pinned)),
    RULE(0, cuMemGetInfo(&t.bytes, &t.pitch)),
    RULE(0, cuMemGetAddressRange(&t.address, &t.bytes, t.dptr)),
    RULE(0, cuPointerGetAttribute(&t.number, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, t.dptr)),
    RULE(0, cuMemcpyHtoD(t.dptr, t.page, 16)),
    RULE(0, cuMemcpyDtoH(t.page, t.dptr, 16)),
    RULE(0, cuMemcpyDtoD(t.dptr, t.spare, 16)),
    RULE(0, cuMemcpyHtoDAsync(t.dptr, t.page, 16, t.other)),
    RULE(0, cuMemsetD8(t.dptr, 1, 16)),
    RULE(0, cuMemsetD8Async(t.dptr, 1, 16, t.other)),
    RULE(0, cuMemAllocAsync(&t.address, 256, t.other)),
    RULE(0, cuMemPoolTrimTo(t.pool, 0)),
    RULE(0, cuMemPoolSetAttribute(t.pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &t.number)),
    RULE(0, cuMemPoolGetAttribute(t.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &t.bytes)),
    RULE(0, cuStreamCreate(&t.made_stream, CU_STREAM_NON_BLOCKING)),
    RULE(0, cuStreamDestroy(t.other)),
    RULE(0, cuStreamQuery(t.other)),
    RULE(0, cuStreamSynchronize(t.other)),
    RULE(0, cuStreamSynchronize(nullptr)),
    RULE(0, cuStreamQuery(nullptr)),
    RULE(0, cuStreamGetFlags(t.capturing, &t.flags)),
    RULE(0, cuStreamGetFlags(nullptr, &t.flags)),
    RULE(0, cuStreamGetPriority(t.capturing, &t.number)),
    RULE(0, cuStreamGetCtx(t.capturing, &t.context)),
    RULE(0, cuStreamWaitEvent(t.other, t.event, 0)),
    RULE(0, cuStreamWaitEvent(t.capturing, t.event, 0)),
    RULE(0, cuEventCreate(&t.made_event, CU_EVENT_DEFAULT)),
    RULE(0, cuEventDestroy(t.second_event)),
    RULE(0, cuEventRecord(t.event, t.other)),
    RULE(0, cuEventQuery(t.event)),
    RULE(0, cuEventSynchronize(t.event)),
    RULE(0, cuEventElapsedTime(&t.ms, t.event, t.second_event)),
    RULE(0, cuCtxSynchronize()),
    RULE(0, cuCtxGetLimit(&t.bytes, CU_LIMIT_STACK_SIZE)),
    RULE(0, cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 1 << 20)),
    RULE(0, cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1)),
    RULE(0, cuCtxResetPersistingL2Cache()),
    RULE(0, cuCtxCreate(&t.context, nullptr, 0, t.gpu.device)),
    RULE(0, cuGraphCreate(&t.made_graph, 0)),
    RULE(0, cuGraphInstantiateWithFlags(&t.made_exec, t.graph, 0)),
    RULE(0, cuGraphLaunch(t.exec, t.other)),
    RULE(0, cuGraphUpload(t.exec, t.other)),
    RULE(0, cuGraphExecDestroy(t.exec)),
    RULE(0, cuGraphDestroy(t.graph)),
    RULE(0, cuStreamBeginCapture(t.other, CU_STREAM_CAPTURE_MODE_GLOBAL)),
};
// clang-format on

}  // namespace

TEST_CASE("capture: which calls are unsafe") {
  for (const Rule& rule : RULES) {
    Things t;
    CU(cuStreamBeginCapture(t.capturing, CU_STREAM_CAPTURE_MODE_GLOBAL));
    const CUresult result = rule.call(t);
    CUstreamCaptureStatus status;
    CU(cuStreamIsCapturing(t.capturing, &status));
    printf("RULE %3d %d %s\n", result, status, rule.name);
    CUgraph graph = nullptr;
    (void)cuStreamEndCapture(t.capturing, &graph);
  }
}
