// SPDX-License-Identifier: Apache-2.0
// What random programs of calls (tests/differential) have found: answers of driver 580.
#include "support.h"
#include "virtual_memory.h"

namespace {

// A stream that captures.
class Capturing {
 public:
  Capturing() {
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  }
  ~Capturing() {
    CUgraph graph = nullptr;
    cuStreamEndCapture(stream, &graph);
    if (graph != nullptr) cuGraphDestroy(graph);
    cuStreamDestroy(stream);
  }
  Capturing(const Capturing&) = delete;
  Capturing& operator=(const Capturing&) = delete;
  void check_broken() const {
    CUgraph graph = nullptr;
    CU_IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  CUstream stream = nullptr;
};

}  // namespace

TEST_CASE("found: a stream whose capture is broken answers no questions") {
  const Gpu gpu;
  const Capturing broken;
  unsigned flags = 0;
  int priority = 0;
  CUcontext context = nullptr;
  CU(cuStreamGetPriority(broken.stream, &priority));
  CU_IS(cuStreamGetFlags(broken.stream, &flags), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CU_IS(cuStreamGetPriority(broken.stream, &priority), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CU_IS(cuStreamGetCtx(broken.stream, &context), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CU_IS(cuStreamCopyAttributes(broken.stream, CU_STREAM_PER_THREAD),
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CU_IS(cuStreamCopyAttributes(CU_STREAM_PER_THREAD, broken.stream),
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  const auto callback = [](CUstream, CUresult, void*) {};
  CU_IS(cuStreamAddCallback(broken.stream, callback, nullptr, 0),
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST_CASE("found: a blocking stream that has joined a capture is in the legacy stream's way") {
  const Gpu gpu;
  const Ints data(1);
  const Capturing capturing;
  CUstream joined = nullptr;
  CUevent event = nullptr;
  CU(cuStreamCreate(&joined, CU_STREAM_DEFAULT));
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CU(cuMemsetD8(data.dptr, 1, 1));
  CU(cuEventRecord(event, capturing.stream));
  CU(cuStreamWaitEvent(joined, event, 0));
  CU_IS(cuMemsetD2D8(data.dptr, 0, 1, 4, 1), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  capturing.check_broken();
  CU(cuEventDestroy(event));
  CU(cuStreamDestroy(joined));
}

TEST_CASE("found: a launch that is refused ends its stream's capture") {
  const Gpu gpu;
  const Ints data(1);
  const Capturing capturing;
  int n = 1;
  CUdeviceptr at = data.dptr;
  void* params[] = {&at, &n};
  const CUfunction function = gpu.function("add_one");
  CU_IS(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 1 << 20, capturing.stream, params, nullptr),
        CUDA_ERROR_INVALID_VALUE);
  capturing.check_broken();
}

TEST_CASE("found: no capture takes a copy between contexts, not even of one device") {
  const Gpu gpu;
  const Ints a(1), b(1);
  const Capturing capturing;
  CU_IS(cuMemcpyPeerAsync(a.dptr, gpu.context, b.dptr, gpu.context, 4, capturing.stream),
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST_CASE("found: access to peers may be asked for while a stream captures") {
  const Gpu gpu;
  const Capturing capturing;
  CU_IS(cuCtxEnablePeerAccess(gpu.context, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  CU_IS(cuCtxEnablePeerAccess(gpu.context, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("found: a wait with flags that there are none of") {
  const Gpu gpu;
  CUevent event;
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CU(cuEventRecord(event, CU_STREAM_PER_THREAD));
  CU_IS(cuStreamWaitEvent(CU_STREAM_PER_THREAD, event, 7), CUDA_ERROR_INVALID_VALUE);
  CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  CU(cuEventDestroy(event));
}

TEST_CASE("found: streams write and wait for no values in memory of a pool") {
  const Gpu gpu;
  const CUstream stream = CU_STREAM_PER_THREAD;
  CUdeviceptr data = 0;
  CU(cuMemAllocAsync(&data, 4096, stream));
  CU_IS(cuStreamWriteValue32(stream, data, 1, 0), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuStreamWriteValue64(stream, data, 1, 0), CUDA_ERROR_INVALID_VALUE);
  CUstreamBatchMemOpParams write{};
  write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  write.writeValue.address = data;
  CU_IS(cuStreamBatchMemOp(stream, 1, &write, 0), CUDA_ERROR_INVALID_VALUE);
  CU(cuMemFreeAsync(data, stream));
  CU(cuStreamSynchronize(stream));
}

TEST_CASE("found: pools of no type, at no place, of no device") {
  const Gpu gpu;
  CUmemoryPool pool = nullptr;
  CUmemPoolProps properties{};
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device};
  CU_IS(cuMemPoolCreate(&pool, &properties), CUDA_ERROR_INVALID_VALUE);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = static_cast<CUmemLocationType>(99);
  CU_IS(cuMemPoolCreate(&pool, &properties), CUDA_ERROR_INVALID_VALUE);
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CU(cuMemPoolCreate(&pool, &properties));
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 17}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemAccess_flags flags;
  CU_IS(cuMemPoolSetAccess(pool, &access, 1), CUDA_ERROR_INVALID_DEVICE);
  CU_IS(cuMemPoolGetAccess(&flags, pool, &access.location), CUDA_ERROR_INVALID_VALUE);
  CU(cuMemPoolDestroy(pool));
}

TEST_CASE("found: host memory says what it was asked for, and that it is mapped") {
  const Gpu gpu;
  for (unsigned asked = 0; asked < 8; ++asked) {
    CAPTURE(asked);
    void* host = nullptr;
    unsigned flags = 0;
    CU(cuMemHostAlloc(&host, 8 << 20, asked));  // a block of its own
    CU(cuMemHostGetFlags(&flags, host));
    CHECK(flags == (asked | CU_MEMHOSTALLOC_DEVICEMAP));
    CU(cuMemFreeHost(host));
  }
}

TEST_CASE("found: addresses where nothing is mapped, a part of a granule, access of no device") {
  const Gpu gpu;
  const size_t bytes = granularity(gpu.device);
  const Addresses addresses(bytes);
  const Physical physical(gpu.device, bytes);
  CU(cuMemUnmap(addresses.base, bytes));
  CU_IS(cuMemMap(addresses.base, 4096, 0, physical.handle, 0), CUDA_ERROR_NOT_SUPPORTED);
  const Mapped mapped(addresses.base, bytes, physical);
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 17},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CU_IS(cuMemSetAccess(addresses.base, bytes, &access, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("found: whether an empty node is enabled, and an update by no graph") {
  const Gpu gpu;
  CUgraph graph;
  CUgraphNode node;
  CUgraphExec exec;
  CU(cuGraphCreate(&graph, 0));
  CU(cuGraphAddEmptyNode(&node, graph, nullptr, 0));
  CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
  unsigned enabled = 0;
  CU_IS(cuGraphNodeGetEnabled(exec, node, &enabled), CUDA_ERROR_INVALID_VALUE);
  CUgraphExecUpdateResultInfo info{};
  CU_IS(cuGraphExecUpdate(exec, nullptr, &info), CUDA_ERROR_INVALID_VALUE);
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);  // as it was
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphDestroy(graph));
}
