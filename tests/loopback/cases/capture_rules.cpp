// SPDX-License-Identifier: Apache-2.0
// Which calls a capture in global mode forbids to the thread that began it.
#include <cstdlib>

#include "profiler.h"
#include "support.h"

// What CUDA 13.0 calls deprecated is still called by programs.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

// What the calls are made on: all of it is there before the capture begins.
struct Things {
  explicit Things(CUcontext for_destruction) : spare_context(for_destruction) {
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
    CU(cuStreamCreate(&made_other, CU_STREAM_NON_BLOCKING));
    pool_properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    pool_properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device};
    access = {pool_properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CU(cuMemPoolCreate(&made_pool, &pool_properties));
    CU(cuMemAllocAsync(&pooled, 256, other));
    registered = page + 4096;
    CU(cuMemHostRegister(registered, 4096, 0));
    CU(cuStreamSynchronize(other));
  }
  // The context goes on: a real GPU takes a third of a second to make one.
  ~Things() {
    (void)cuCtxSetCurrent(gpu.context);
    CUgraph ended = nullptr;
    for (const CUstream stream : {capturing, made_other}) (void)cuStreamEndCapture(stream, &ended);
    (void)cuMemHostUnregister(registered);
    (void)cuMemFree(pooled);            // what is left there, the device's own pool keeps
    (void)cuMemPoolDestroy(made_pool);  // addresses for a hundred of them are many
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
  CUcontext spare_context;
  CUstream made_other = nullptr;
  CUmemPoolProps pool_properties{};
  CUmemAccessDesc access{};
  CUmemAccess_flags access_flags{};
  CUmemoryPool made_pool = nullptr;
  CUdeviceptr pooled = 0;
  CUfunc_cache cache{};
  CUgraphExecUpdateResultInfo update{};
  CUgraphNode node = nullptr;
  CUlinkState link = nullptr;
  void* registered = nullptr;
  unsigned long long id = 0;
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

constexpr CUresult ALLOWED = CUDA_SUCCESS;
constexpr CUresult UNSAFE = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

#define RULE(code, call) {#call, []([[maybe_unused]] Things& t) { return call; }, code}
// clang-format off
const Rule RULES[] = {
    RULE(ALLOWED, cuLibraryLoadData(&t.made_library, kernels_ptx(), nullptr, nullptr, 0, nullptr, nullptr, 0)),
    RULE(UNSAFE, cuLibraryUnload(t.spare_library)),
    RULE(ALLOWED, cuLibraryGetKernel(&t.kernel, t.library, "read_counter")),
    RULE(ALLOWED, cuLibraryGetModule(&t.module, t.library)),
    RULE(ALLOWED, cuLibraryGetGlobal(&t.address, &t.bytes, t.library, "counter")),
    RULE(ALLOWED, cuKernelGetFunction(&t.function, t.kernel)),
    RULE(ALLOWED, cuKernelGetAttribute(&t.number, CU_FUNC_ATTRIBUTE_NUM_REGS, t.kernel, t.gpu.device)),
    RULE(ALLOWED, cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50, t.kernel, t.gpu.device)),
    RULE(ALLOWED, cuModuleLoadData(&t.module, kernels_ptx())),
    RULE(UNSAFE, cuModuleUnload(t.spare_module)),
    RULE(ALLOWED, cuModuleGetFunction(&t.function, t.gpu.module, "read_counter")),
    RULE(ALLOWED, cuModuleGetGlobal(&t.address, &t.bytes, t.gpu.module, "counter")),
    RULE(ALLOWED, cuFuncGetAttribute(&t.number, CU_FUNC_ATTRIBUTE_NUM_REGS, t.gpu.function("add_one"))),
    RULE(ALLOWED, cuFuncSetAttribute(t.gpu.function("add_one"), CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50)),
    RULE(ALLOWED, cuFuncSetCacheConfig(t.gpu.function("add_one"), CU_FUNC_CACHE_PREFER_L1)),
    RULE(ALLOWED, cuFuncLoad(t.gpu.function("add_one"))),
    RULE(ALLOWED, cuOccupancyMaxActiveBlocksPerMultiprocessor(&t.number, t.gpu.function("add_one"), 32, 0)),
    RULE(UNSAFE, cuMemAlloc(&t.address, 256)),
    RULE(UNSAFE, cuMemAllocPitch(&t.address, &t.pitch, 256, 2, 4)),
    RULE(UNSAFE, cuMemFree(t.spare)),
    RULE(UNSAFE, cuMemAllocHost(&t.pointer, 256)),
    RULE(UNSAFE, cuMemHostAlloc(&t.pointer, 256, 0)),
    RULE(UNSAFE, cuMemFreeHost(t.spare_pinned)),
    RULE(UNSAFE, cuMemHostRegister(t.page, 4096, 0)),
    RULE(UNSAFE, cuProfilerStart()),
    RULE(UNSAFE, cuProfilerStop()),
    RULE(UNSAFE, cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE)),
    RULE(ALLOWED, cuMemHostGetDevicePointer(&t.address, t.pinned, 0)),
    RULE(ALLOWED, cuMemHostGetFlags(&t.flags, t.pinned)),
    RULE(ALLOWED, cuMemGetInfo(&t.bytes, &t.pitch)),
    RULE(ALLOWED, cuMemGetAddressRange(&t.address, &t.bytes, t.dptr)),
    RULE(ALLOWED, cuPointerGetAttribute(&t.number, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, t.dptr)),
    RULE(ALLOWED, cuMemcpyHtoD(t.dptr, t.page, 16)),
    RULE(ALLOWED, cuMemcpyDtoH(t.page, t.dptr, 16)),
    RULE(ALLOWED, cuMemcpyDtoD(t.dptr, t.spare, 16)),
    RULE(ALLOWED, cuMemcpyHtoDAsync(t.dptr, t.page, 16, t.other)),
    RULE(ALLOWED, cuMemsetD8(t.dptr, 1, 16)),
    RULE(ALLOWED, cuMemsetD8Async(t.dptr, 1, 16, t.other)),
    RULE(UNSAFE, cuMemAllocAsync(&t.address, 256, t.other)),
    RULE(UNSAFE, cuMemPoolTrimTo(t.pool, 0)),
    RULE(UNSAFE, cuMemPoolSetAttribute(t.pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &t.number)),
    RULE(UNSAFE, cuMemPoolGetAttribute(t.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &t.bytes)),
    RULE(ALLOWED, cuStreamCreate(&t.made_stream, CU_STREAM_NON_BLOCKING)),
    RULE(ALLOWED, cuStreamDestroy(t.other)),
    RULE(UNSAFE, cuStreamQuery(t.other)),
    RULE(UNSAFE, cuStreamSynchronize(t.other)),
    RULE(UNSAFE, cuStreamSynchronize(nullptr)),
    RULE(UNSAFE, cuStreamQuery(nullptr)),
    RULE(UNSAFE, cuStreamGetFlags(t.capturing, &t.flags)),
    RULE(ALLOWED, cuStreamGetFlags(nullptr, &t.flags)),
    RULE(ALLOWED, cuStreamGetPriority(t.capturing, &t.number)),
    RULE(ALLOWED, cuStreamGetCtx(t.capturing, &t.context)),
    RULE(ALLOWED, cuStreamWaitEvent(t.other, t.event, 0)),
    RULE(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(t.capturing, t.event, 0)),
    RULE(ALLOWED, cuEventCreate(&t.made_event, CU_EVENT_DEFAULT)),
    RULE(ALLOWED, cuEventDestroy(t.second_event)),
    RULE(ALLOWED, cuEventRecord(t.event, t.other)),
    RULE(UNSAFE, cuEventQuery(t.event)),
    RULE(UNSAFE, cuEventSynchronize(t.event)),
    RULE(ALLOWED, cuEventElapsedTime(&t.ms, t.event, t.second_event)),
    RULE(UNSAFE, cuCtxSynchronize()),
    RULE(ALLOWED, cuCtxGetLimit(&t.bytes, CU_LIMIT_STACK_SIZE)),
    RULE(UNSAFE, cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 1 << 20)),
    RULE(UNSAFE, cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1)),
    RULE(ALLOWED, cuCtxResetPersistingL2Cache()),
    RULE(ALLOWED, cuCtxCreate(&t.context, nullptr, 0, t.gpu.device)),
    RULE(ALLOWED, cuGraphCreate(&t.made_graph, 0)),
    RULE(UNSAFE, cuGraphInstantiateWithFlags(&t.made_exec, t.graph, 0)),
    RULE(ALLOWED, cuGraphLaunch(t.exec, t.other)),
    RULE(ALLOWED, cuGraphUpload(t.exec, t.other)),
    RULE(UNSAFE, cuGraphLaunch(t.exec, t.capturing)),
    RULE(UNSAFE, cuGraphUpload(t.exec, t.capturing)),
    RULE(UNSAFE, cuGraphExecDestroy(t.exec)),
    RULE(ALLOWED, cuGraphDestroy(t.graph)),
    RULE(ALLOWED, cuStreamBeginCapture(t.made_other, CU_STREAM_CAPTURE_MODE_GLOBAL)),
    RULE(UNSAFE, cuMemPoolCreate(&t.pool, &t.pool_properties)),
    RULE(UNSAFE, cuMemPoolDestroy(t.made_pool)),
    RULE(UNSAFE, cuMemPoolSetAccess(t.pool, &t.access, 1)),
    RULE(UNSAFE, cuMemPoolGetAccess(&t.access_flags, t.pool, &t.access.location)),
    RULE(UNSAFE, cuMemFreeAsync(t.pooled, t.other)),
    RULE(ALLOWED, cuDeviceGetDefaultMemPool(&t.pool, t.gpu.device)),
    RULE(UNSAFE, cuDeviceSetMemPool(t.gpu.device, t.pool)),
    RULE(ALLOWED, cuDeviceGraphMemTrim(t.gpu.device)),
    RULE(ALLOWED, cuCtxGetCacheConfig(&t.cache)),
    RULE(ALLOWED, cuCtxSetFlags(CU_CTX_SCHED_YIELD)),
    RULE(ALLOWED, cuCtxGetApiVersion(t.gpu.context, &t.flags)),
    RULE(ALLOWED, cuCtxDestroy(t.spare_context)),
    RULE(ALLOWED, cuDevicePrimaryCtxRetain(&t.context, t.gpu.device)),
    RULE(ALLOWED, cuGraphClone(&t.made_graph, t.graph)),
    RULE(ALLOWED, cuGraphExecUpdate(t.exec, t.graph, &t.update)),
    RULE(ALLOWED, cuGraphAddEmptyNode(&t.node, t.graph, nullptr, 0)),
    RULE(ALLOWED, cuLaunchHostFunc(t.other, [](void*) {}, nullptr)),
    RULE(ALLOWED, cuStreamAddCallback(t.other, [](CUstream, CUresult, void*) {}, nullptr, 0)),
    RULE(ALLOWED, cuStreamCopyAttributes(t.other, t.made_other)),
    RULE(UNSAFE, cuStreamGetId(t.capturing, &t.id)),
    RULE(ALLOWED, cuStreamWriteValue32(t.other, t.dptr, 1, 0)),
    RULE(UNSAFE, cuMemHostUnregister(t.registered)),
    RULE(UNSAFE, cuPointerSetAttribute(&t.number, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, t.dptr)),
    RULE(ALLOWED, cuLinkCreate(0, nullptr, nullptr, &t.link)),
};
// clang-format on

}  // namespace

TEST_CASE("capture: which calls are unsafe") {
  const Gpu lasting;
  CUcontext spare = nullptr, popped = nullptr;
  CU(cuCtxCreate(&spare, nullptr, 0, lasting.device));
  CU(cuCtxPopCurrent(&popped));
  for (const Rule& rule : RULES) {
    Things t(spare);
    CU(cuStreamBeginCapture(t.capturing, CU_STREAM_CAPTURE_MODE_GLOBAL));
    const CUresult result = rule.call(t);
    CUstreamCaptureStatus status;
    CU(cuStreamIsCapturing(t.capturing, &status));
    INFO(std::string(rule.name));
    CU_IS(result, rule.expected);
    CHECK(status == (rule.expected == ALLOWED ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                              : CU_STREAM_CAPTURE_STATUS_INVALIDATED));
  }
}
