// SPDX-License-Identifier: Apache-2.0
// The driver API of the software GPU: faults, order of work, events, capture, graphs.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>

#include "software_gpu_test.h"

using namespace software_gpu_test;

namespace {

const std::string STORE = R"(
.visible .entry k(.param .u64 to, .param .u32 value) {
  .reg .b64 %rd<3>; .reg .b32 %r<3>;
  ld.param.u64 %rd1, [to]; ld.param.u32 %r1, [value];
  st.global.u32 [%rd1], %r1;
  ret;
})";

const std::string ADD = R"(
.visible .entry k(.param .u64 to, .param .u32 value) {
  .reg .b64 %rd<3>; .reg .b32 %r<5>;
  ld.param.u64 %rd1, [to]; ld.param.u32 %r1, [value];
  atom.global.add.u32 %r2, [%rd1], %r1;
  ret;
})";

CUstream new_stream(unsigned flags) {
  CUstream stream;
  CU(cuStreamCreate(&stream, flags));
  return stream;
}

struct Gate {
  std::atomic<bool> open{false};
  static void wait(void* gate) {
    while (!static_cast<Gate*>(gate)->open) std::this_thread::yield();
  }
};

}  // namespace

TEST_CASE("a fault sticks, hurts nobody, and a new context is clean") {
  for (const uint64_t offset : {uint64_t{1} << 40, uint64_t{4096}, uint64_t{2}}) {
    CAPTURE(offset);
    Gpu gpu;
    Buffer<uint32_t> buffer(std::vector<uint32_t>(1024));
    const CUfunction function = gpu.kernel(STORE);
    CU(gpu.launch(function, 1, 1, nullptr, buffer.pointer + offset, 1u));
    const CUresult wanted =
        offset == 2 ? CUDA_ERROR_MISALIGNED_ADDRESS : CUDA_ERROR_ILLEGAL_ADDRESS;
    CHECK_EQ(cuCtxSynchronize(), wanted);
    CUdeviceptr more;
    CHECK_EQ(cuMemAlloc(&more, 16), wanted);
    CHECK_EQ(gpu.launch(function, 1, 1, nullptr, buffer.pointer, 1u), wanted);
  }
  Gpu gpu;
  Buffer<uint32_t> buffer({0});
  CU(gpu.launch(gpu.kernel(STORE), 1, 1, nullptr, buffer.pointer, 7u));
  CHECK_EQ(buffer.read()[0], 7);
}

TEST_CASE("freed memory is an illegal address") {
  Gpu gpu;
  CUdeviceptr pointer;
  CU(cuMemAlloc(&pointer, 4096));
  CU(cuMemFree(pointer));
  CHECK_EQ(cuMemFree(pointer), CUDA_ERROR_INVALID_VALUE);
  CU(gpu.launch(gpu.kernel(STORE), 1, 1, nullptr, pointer, 1u));
  CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("trap, assert and a barrier that cannot end are faults") {
  for (const char* code : {"trap;",
                           "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @%p1 bra A; bar.sync 0; "
                           "A: bar.sync 1, 64;"}) {
    CAPTURE(code);
    Gpu gpu;
    const CUfunction function =
        gpu.kernel(".visible .entry k() { .reg .b32 %r<2>; .reg .pred %p<2>; " + std::string(code) +
                   " ret; }");
    CU(gpu.launch(function, 1, 64, nullptr));
    CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
  }
}

TEST_CASE("launches are checked") {
  Gpu gpu;
  Buffer<uint32_t> buffer({0});
  const CUfunction function = gpu.kernel(STORE);
  uint32_t value = 5;
  void* arguments[] = {&buffer.pointer, &value};
  const auto launch = [&](unsigned grid, unsigned block, unsigned shared) {
    return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, nullptr, arguments, nullptr);
  };
  CHECK_EQ(launch(0, 1, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(launch(1, 1025, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(launch(1, 1, 64 << 10), CUDA_ERROR_INVALID_VALUE);
  CU(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 << 10));
  CHECK_EQ(launch(1, 1, 64 << 10), CUDA_SUCCESS);
  CHECK_EQ(cuLaunchKernel(reinterpret_cast<CUfunction>(&value), 1, 1, 1, 1, 1, 1, 0, nullptr,
                          arguments, nullptr),
           CUDA_ERROR_INVALID_HANDLE);
  struct {
    CUdeviceptr to;
    uint32_t value;
  } packed{buffer.pointer, 77};
  size_t n_bytes = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &n_bytes,
                   CU_LAUNCH_PARAM_END};
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY =
      config.blockDimZ = 1;
  CU(cuLaunchKernelEx(&config, function, nullptr, extra));
  CHECK_EQ(buffer.read()[0], 77);
}

TEST_CASE("the legacy stream and blocking streams wait for each other, non-blocking ones do not") {
  Gpu gpu;
  const CUstream blocking = new_stream(CU_STREAM_DEFAULT),
                 free_stream = new_stream(CU_STREAM_NON_BLOCKING);
  Buffer<uint32_t> words({0, 0});
  const CUfunction function = gpu.kernel(STORE);
  Gate gate;
  CU(cuLaunchHostFunc(blocking, Gate::wait, &gate));
  CU(gpu.launch(function, 1, 1, nullptr, words.pointer, 1u));          // waits for the gate
  CU(gpu.launch(function, 1, 1, free_stream, words.pointer + 4, 2u));  // does not
  CU(cuStreamSynchronize(free_stream));
  CHECK_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  CHECK_EQ(cuStreamQuery(blocking), CUDA_ERROR_NOT_READY);
  const CUstream late = new_stream(CU_STREAM_DEFAULT);
  CU(cuLaunchHostFunc(late, [](void*) {}, nullptr));  // behind the legacy stream's kernel
  CHECK_EQ(cuStreamQuery(late), CUDA_ERROR_NOT_READY);
  gate.open = true;
  CU(cuStreamSynchronize(late));
  CHECK_EQ(words.read(), std::vector<uint32_t>{1, 2});
  for (const CUstream stream : {blocking, free_stream, late}) CU(cuStreamDestroy(stream));
  CHECK_EQ(cuStreamQuery(blocking), CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("per-thread streams are one per thread") {
  Gpu gpu;
  Gate gate;
  CUcontext context;
  CU(cuCtxGetCurrent(&context));
  CU(cuLaunchHostFunc(CU_STREAM_PER_THREAD, Gate::wait, &gate));
  CUresult other = CUDA_ERROR_UNKNOWN;
  std::thread([&] {
    cuCtxSetCurrent(context);
    other = cuStreamSynchronize(CU_STREAM_PER_THREAD);
  }).join();
  CHECK_EQ(other, CUDA_SUCCESS);
  CHECK_EQ(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
  gate.open = true;
  CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
}

TEST_CASE("events: state, time and order between streams") {
  Gpu gpu;
  const CUstream first = new_stream(CU_STREAM_NON_BLOCKING),
                 second = new_stream(CU_STREAM_NON_BLOCKING);
  CUevent start, middle, untimed;
  CU(cuEventCreate(&start, CU_EVENT_DEFAULT));
  CU(cuEventCreate(&middle, CU_EVENT_DEFAULT));
  CU(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
  CHECK_EQ(cuEventQuery(start), CUDA_SUCCESS);  // never recorded
  float ms;
  CHECK_EQ(cuEventElapsedTime(&ms, start, middle), CUDA_ERROR_INVALID_HANDLE);
  Gate gate;
  CU(cuEventRecord(start, first));
  CU(cuLaunchHostFunc(first, Gate::wait, &gate));
  CU(cuEventRecord(middle, first));
  CU(cuStreamWaitEvent(second, middle, 0));
  CHECK_EQ(cuEventQuery(middle), CUDA_ERROR_NOT_READY);
  CHECK_EQ(cuEventElapsedTime(&ms, start, middle), CUDA_ERROR_NOT_READY);
  CHECK_EQ(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
  CU(cuEventSynchronize(start));
  usleep(2000);
  gate.open = true;
  CU(cuStreamSynchronize(second));
  CU(cuEventSynchronize(middle));
  CU(cuEventElapsedTime(&ms, start, middle));
  CHECK_GE(ms, 2.0f);
  CHECK_EQ(cuEventElapsedTime(&ms, start, untimed), CUDA_ERROR_INVALID_HANDLE);
  for (const CUevent event : {start, middle, untimed}) CU(cuEventDestroy(event));
  CHECK_EQ(cuEventDestroy(start), CUDA_ERROR_CONTEXT_IS_DESTROYED);  // as an H200 says
}

TEST_CASE("values in registered memory: written and waited for by streams") {
  Gpu gpu;
  void* shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE_NE(shared, MAP_FAILED);
  CU(cuMemHostRegister(shared, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
  CHECK_EQ(cuMemHostRegister(shared, 16, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CUdeviceptr device;
  CU(cuMemHostGetDevicePointer(&device, shared, 0));
  CHECK_EQ(device, reinterpret_cast<CUdeviceptr>(shared));
  const CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  std::atomic_ref<uint64_t> progress(static_cast<uint64_t*>(shared)[0]),
      go(static_cast<uint64_t*>(shared)[1]);
  Buffer<uint32_t> words({0});
  CU(cuStreamWaitValue64(stream, device + 8, 5, CU_STREAM_WAIT_VALUE_GEQ));
  CU(gpu.launch(gpu.kernel(STORE), 1, 1, stream, words.pointer, 9u));
  CU(cuStreamWriteValue64(stream, device, 42, 0));
  usleep(2000);
  CHECK_EQ(progress.load(), 0);
  go.store(6);
  while (progress.load(std::memory_order_acquire) != 42) std::this_thread::yield();
  CHECK_EQ(words.read()[0], 9);
  CHECK_EQ(cuStreamWriteValue64(stream, device + 4, 1, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cuStreamWriteValue64(stream, device + 4096, 1, 0), CUDA_ERROR_INVALID_VALUE);
  CU(cuMemHostUnregister(shared));
  CHECK_EQ(cuMemHostUnregister(shared), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  munmap(shared, 4096);
}

TEST_CASE("a captured graph runs as often as it is launched") {
  Gpu gpu;
  const CUstream origin = new_stream(CU_STREAM_NON_BLOCKING),
                 branch = new_stream(CU_STREAM_NON_BLOCKING);
  Buffer<uint32_t> sum({0});
  const CUfunction function = gpu.kernel(ADD);
  CUevent event;
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CU(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
  CU(cuMemsetD32Async(sum.pointer, 100, 1, origin));
  CU(cuEventRecord(event, origin));
  CU(cuStreamWaitEvent(branch, event, 0));
  CU(gpu.launch(function, 1, 32, branch, sum.pointer, 1u));
  CU(gpu.launch(function, 1, 32, origin, sum.pointer, 10u));
  CUgraph graph;
  SUBCASE("joined") {
    CU(cuEventRecord(event, branch));
    CU(cuStreamWaitEvent(origin, event, 0));
    CU(cuStreamEndCapture(origin, &graph));
    size_t n_nodes = 0;
    CU(cuGraphGetNodes(graph, nullptr, &n_nodes));
    CHECK_EQ(n_nodes, 3);
    CUgraphExec exec;
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphDestroy(graph));
    CHECK_EQ(sum.read()[0], 0);
    for (int i = 0; i < 5; ++i) CU(cuGraphLaunch(exec, origin));
    CU(cuStreamSynchronize(origin));
    CHECK_EQ(sum.read()[0], 100 + 32 * 11);
    CU(cuGraphExecDestroy(exec));
  }
  SUBCASE("not joined") {
    CHECK_EQ(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    CUstreamCaptureStatus status;
    CU(cuStreamIsCapturing(branch, &status));
    CHECK_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  }
  SUBCASE("ended in the wrong stream, then invalid") {
    CHECK_EQ(cuStreamEndCapture(branch, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    CHECK_EQ(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
}

TEST_CASE("host functions may not call CUDA") {
  Gpu gpu;
  CUresult inside = CUDA_SUCCESS;
  CU(cuLaunchHostFunc(
      nullptr,
      [](void* result) {
        int n;
        *static_cast<CUresult*>(result) = cuDeviceGetCount(&n);
      },
      &inside));
  CU(cuCtxSynchronize());
  CHECK_EQ(inside, CUDA_ERROR_NOT_PERMITTED);
}

TEST_CASE("printf reaches standard output when the program synchronises") {
  Gpu gpu;
  const CUfunction function = gpu.kernel(R"(
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.global .align 1 .b8 text[14] = {37, 100, 124, 37, 46, 50, 102, 124, 37, 108, 108, 120, 10, 0};
.visible .entry k() {
  .local .align 8 .b8 args[24];
  .reg .b64 %rd<5>; .reg .b32 %r<3>;
  mov.u64 %rd1, args; cvta.local.u64 %rd2, %rd1;
  mov.u32 %r1, %tid.x; st.local.u32 [%rd1], %r1;
  st.local.u64 [%rd1+8], 0x3ff8000000000000; st.local.u64 [%rd1+16], 0xabcdef0123;
  mov.u64 %rd3, text; cvta.global.u64 %rd4, %rd3;
  { .param .b64 p; .param .b64 q; .param .b32 r; st.param.b64 [p], %rd4; st.param.b64 [q], %rd2;
    call.uni (r), vprintf, (p, q); }
  ret;
})");
  int ends[2];
  REQUIRE_EQ(pipe(ends), 0);
  const int before = dup(STDOUT_FILENO);
  REQUIRE_GE(before, 0);
  fflush(stdout);
  dup2(ends[1], STDOUT_FILENO);
  const CUresult launched = gpu.launch(function, 1, 2, nullptr);
  const CUresult synchronised = cuCtxSynchronize();
  dup2(before, STDOUT_FILENO);
  close(before);
  close(ends[1]);
  char text[256] = {};
  REQUIRE_GE(read(ends[0], text, sizeof text - 1), 0);
  close(ends[0]);
  CU(launched);
  CU(synchronised);
  CHECK_EQ(std::string(text), "0|1.50|abcdef0123\n1|1.50|abcdef0123\n");
}

TEST_CASE("memory: limits, ranges and attributes") {
  Gpu gpu;
  size_t free_bytes = 0, total_bytes = 0, after_bytes = 0;
  CU(cuMemGetInfo(&free_bytes, &total_bytes));
  CUdeviceptr pointer;
  CHECK_EQ(cuMemAlloc(&pointer, total_bytes + 1), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQ(cuMemAlloc(&pointer, 0), CUDA_ERROR_INVALID_VALUE);
  CU(cuMemAlloc(&pointer, 1 << 20));
  CU(cuMemGetInfo(&after_bytes, &total_bytes));
  CHECK_EQ(free_bytes - after_bytes, 1 << 20);
  CUdeviceptr base;
  size_t n_bytes;
  CU(cuMemGetAddressRange(&base, &n_bytes, pointer + 1000));
  CHECK_EQ(base, pointer);
  CHECK_EQ(n_bytes, 1 << 20);
  unsigned kind = 0;
  CU(cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer + 5));
  CHECK_EQ(kind, CU_MEMORYTYPE_DEVICE);
  char host[16] = {};
  CHECK_EQ(cuMemcpyHtoD(pointer + (1 << 20) - 8, host, 16), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cuMemsetD32(pointer + 2, 0, 1), CUDA_ERROR_INVALID_VALUE);
  CU(cuMemFree(pointer));
  const CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CU(cuMemAllocAsync(&pointer, 4096, stream));
  CU(cuMemsetD8Async(pointer, 3, 4096, stream));
  CU(cuMemcpyDtoHAsync(host, pointer, sizeof host, stream));
  CU(cuMemFreeAsync(pointer, stream));
  CU(cuStreamSynchronize(stream));
  CHECK_EQ(host[15], 3);
  CHECK_EQ(cuMemFree(pointer), CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("every device attribute has an answer") {
  Gpu gpu;
  int value = -1;
  for (int id = 1; id < CU_DEVICE_ATTRIBUTE_MAX; ++id)
    CHECK_EQ(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(id), 0), CUDA_SUCCESS);
  CHECK_EQ(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX, 0), CUDA_ERROR_INVALID_VALUE);
  CU(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  CHECK_EQ(value, 8);
}

TEST_CASE("cuGetProcAddress gives the entry point of the version asked for") {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status;
  CU(cuGetProcAddress("cuMemAlloc", &function, 13000, 0, &status));
  CHECK_EQ(function, reinterpret_cast<void*>(&cuMemAlloc_v2));
  CU(cuGetProcAddress("cuInit", &function, 2000, 0, &status));
  CHECK_EQ(function, reinterpret_cast<void*>(&cuInit));
  CU(cuGetProcAddress("cuMemAlloc_v2", &function, 13000, 0, &status));
  CHECK_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  CU(cuGetProcAddress("cuStreamGetCaptureInfo", &function, 11000, 0, &status));
  CHECK_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  CHECK_EQ(cuGetProcAddress("cuInit", &function, 13010, 0, &status), CUDA_ERROR_INVALID_VALUE);
}
