// SPDX-License-Identifier: Apache-2.0
// What driver 580 answers after a fault, without a current context, and to whom who wants only a
// part of an answer.
#include <thread>

#include "support.h"

namespace {

CUlibrary load_library() {
  CUlibrary library = nullptr;
  CU(cuLibraryLoadData(&library, kernels_ptx(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  return library;
}

// What a thread without a context gets.
template <typename F>
void without_context(F body) {
  std::thread(body).join();
}

}  // namespace

TEST_CASE("error: after a fault questions about what is in the context answer with it") {
  const Gpu gpu;
  const CUfunction function = gpu.function("write_to");
  CUlibrary library = load_library();
  CUkernel kernel = nullptr;
  CU(cuLibraryGetKernel(&kernel, library, "write_to"));
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  void* pinned = nullptr;
  CU(cuMemHostAlloc(&pinned, 64, 0));
  CUgreenCtx made = nullptr;
  CU(cuGreenCtxCreate(&made, nullptr, gpu.device, CU_GREEN_CTX_DEFAULT_STREAM));
  CUdeviceptr wild = 0x10, address = 0;
  launch(function, stream, {&wild});
  constexpr CUresult FAULT = CUDA_ERROR_ILLEGAL_ADDRESS;
  CU_IS(cuCtxSynchronize(), FAULT);

  unsigned flags = 0;
  int number = 0, other = 0;
  unsigned long long id = 0;
  size_t offset = 0, bytes = 0;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUgreenCtx green = nullptr;
  CUstreamCaptureStatus status{};
  CUfunction same = nullptr;
  CUmodule module = nullptr;
  const char* name = nullptr;
  CU_IS(cuStreamGetFlags(stream, &flags), FAULT);
  CU_IS(cuStreamGetPriority(stream, &number), FAULT);
  CU_IS(cuStreamGetId(stream, &id), FAULT);
  CU_IS(cuStreamGetDevice(stream, &device), FAULT);
  CU_IS(cuStreamGetCtx(stream, &context), FAULT);
  CU_IS(cuStreamGetCtx_v2(stream, &context, &green), FAULT);
  CU_IS(cuStreamIsCapturing(stream, &status), FAULT);
  CU_IS(cuStreamGetCaptureInfo(stream, &status, nullptr, nullptr, nullptr, nullptr, nullptr),
        FAULT);
  CU_IS(cuCtxGetStreamPriorityRange(&number, &other), FAULT);
  CU_IS(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, function), FAULT);
  CU_IS(cuFuncGetName(&name, function), FAULT);
  CU_IS(cuFuncGetParamInfo(function, 0, &offset, &bytes), FAULT);
  CU_IS(cuKernelGetFunction(&same, kernel), FAULT);
  CU_IS(cuKernelGetParamInfo(kernel, 0, &offset, &bytes), FAULT);
  CU_IS(cuLibraryGetModule(&module, library), FAULT);
  CU_IS(cuMemHostGetDevicePointer(&address, pinned, 0), FAULT);

  // Nothing is wanted, or there is no context that is broken.
  CU_IS(cuStreamGetId(stream, nullptr), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuFuncGetAttribute(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, function),
        CUDA_ERROR_INVALID_VALUE);
  without_context([] { CU_IS(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT); });

  CU_IS(cuDevicePrimaryCtxRetain(&context, gpu.device), CUDA_SUCCESS);
  CU_IS(cuGreenCtxDestroy(made), CUDA_SUCCESS);
  CU_IS(cuKernelGetName(&name, kernel), CUDA_SUCCESS);
  CU_IS(cuKernelGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel, gpu.device),
        CUDA_SUCCESS);
  CU_IS(cuCtxGetCurrent(&context), CUDA_SUCCESS);
  CU_IS(cuCtxGetId(context, &id), CUDA_SUCCESS);
  CU_IS(cuCtxGetFlags(&flags), CUDA_SUCCESS);
  CU_IS(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_WARP_SIZE, gpu.device), CUDA_SUCCESS);
  CU_IS(cuPointerGetAttribute(&number, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                              reinterpret_cast<CUdeviceptr>(pinned)),
        CUDA_SUCCESS);
}

TEST_CASE("found: functions, arrays, nodes and sets need no current context") {
  const Gpu gpu;
  const Ints data(4);
  const CUfunction function = gpu.function("add_one");
  CUlibrary library = load_library();
  CUkernel kernel = nullptr;
  CU(cuLibraryGetKernel(&kernel, library, "add_one"));
  const CUDA_ARRAY3D_DESCRIPTOR d{16, 16, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  CUmipmappedArray mipmap = nullptr;
  CU(cuMipmappedArrayCreate(&mipmap, &d, 2));
  CUgraph graph = nullptr;
  CUgraphNode set = nullptr;
  CU(cuGraphCreate(&graph, 0));
  const CUDA_MEMSET_NODE_PARAMS fill{data.dptr, 0, 7, 4, 4, 1};
  CU(cuGraphAddMemsetNode(&set, graph, nullptr, 0, &fill, gpu.context));
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));

  without_context([&] {
    constexpr auto SHARED = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    CUfunctionLoadingState state{};
    CUfunction same = nullptr;
    CU_IS(cuFuncSetAttribute(function, SHARED, 1024), CUDA_SUCCESS);
    CU_IS(cuFuncIsLoaded(&state, function), CUDA_SUCCESS);
    CU_IS(cuKernelSetAttribute(SHARED, 1024, kernel, gpu.device), CUDA_SUCCESS);
    CU_IS(cuKernelSetAttribute(SHARED, 1024, kernel, 99), CUDA_ERROR_INVALID_DEVICE);
    CU_IS(cuKernelGetFunction(&same, kernel), CUDA_ERROR_INVALID_CONTEXT);
    CUarray level = nullptr;
    CU_IS(cuMipmappedArrayGetLevel(&level, mipmap, 0), CUDA_SUCCESS);
    CU_IS(cuMipmappedArrayDestroy(mipmap), CUDA_SUCCESS);
    CU_IS(cuMemsetD8Async(data.dptr, 1, 16, stream), CUDA_SUCCESS);
    CU_IS(cuMemsetD32(data.dptr, 1, 4), CUDA_ERROR_INVALID_CONTEXT);
    CUgraphNode node = nullptr;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc{};
    alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    alloc.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device};
    alloc.bytesize = 256;
    CU_IS(cuGraphMemsetNodeSetParams(set, &fill), CUDA_SUCCESS);
    CU_IS(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &alloc), CUDA_SUCCESS);
    CU_IS(cuGraphAddMemFreeNode(&node, graph, &node, 1, alloc.dptr), CUDA_SUCCESS);
  });
  CU(cuStreamSynchronize(stream));
  CHECK(data.read() == std::vector<int>(4, 0x01010101));
  CU(cuStreamDestroy(stream));
  CU(cuGraphDestroy(graph));
  CU(cuLibraryUnload(library));
}

TEST_CASE("found: what is not wanted may be null") {
  const Gpu gpu;
  const Ints data(1);
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  add_one(gpu, data, stream);
  CU(cuStreamEndCapture(stream, nullptr));
  CU_IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);

  CUcontext context = nullptr;
  CUgreenCtx green = nullptr;
  CU(cuStreamGetCtx_v2(stream, &context, nullptr));
  CHECK(context == gpu.context);
  CU(cuStreamGetCtx_v2(stream, nullptr, &green));
  CHECK(green == nullptr);
  CU_IS(cuStreamGetCtx_v2(stream, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);

  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  add_one(gpu, data, stream);
  CU(cuStreamEndCapture(stream, &graph));
  CU(cuGraphInstantiate(&exec, graph, 0));
  CU(cuGraphExecUpdate(exec, graph, nullptr));
  CU(cuGraphLaunch(exec, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(data.read()[0] == 1);
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphDestroy(graph));
  CU(cuStreamDestroy(stream));
}
