// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "support.h"

TEST_CASE("module and library: functions, globals, bad images") {
  const Gpu gpu;
  CUfunction missing;
  CU_IS(cuModuleGetFunction(&missing, gpu.module, "nothing"), CUDA_ERROR_NOT_FOUND);
  CUdeviceptr counter = 0;
  size_t bytes = 0;
  CU(cuModuleGetGlobal(&counter, &bytes, gpu.module, "counter"));
  CHECK(bytes == sizeof(int));
  const int value = 11;
  CU(cuMemcpyHtoD(counter, &value, sizeof value));
  const Ints out(1);
  CUdeviceptr dptr = out.dptr;
  launch(gpu.function("read_counter"), nullptr, {&dptr});
  CHECK(out.read()[0] == 11);

  CUlibrary library;
  CU(cuLibraryLoadData(&library, kernels_ptx(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel;
  CU(cuLibraryGetKernel(&kernel, library, "read_counter"));
  launch(reinterpret_cast<CUfunction>(kernel), nullptr, {&dptr});
  CHECK(out.read()[0] == 7);
  CUfunction function;
  CU(cuKernelGetFunction(&function, kernel));
  launch(function, nullptr, {&dptr});
  CU(cuLibraryUnload(library));

  CUmodule module;
  const unsigned char garbage[64] = {0xff, 1, 2};
  CU_IS(cuModuleLoadData(&module, garbage), CUDA_ERROR_INVALID_IMAGE);
  CU_IS(cuModuleLoadData(&module, ".version 8.0\n.target sm_80\n.address_size 64\nnonsense\n"),
        CUDA_ERROR_INVALID_PTX);
}

TEST_CASE("kernel parameter layout and attributes") {
  const Gpu gpu;
  const CUfunction function = gpu.function("mixed_params");
  const size_t offsets[] = {0, 8, 16, 40}, sizes[] = {1, 8, 24, 8};
  for (size_t i = 0; i < 4; ++i) {
    size_t offset, bytes;
    CU(cuFuncGetParamInfo(function, i, &offset, &bytes));
    CHECK(offset == offsets[i]);
    CHECK(bytes == sizes[i]);
  }
  size_t offset, bytes;
  CU_IS(cuFuncGetParamInfo(function, 4, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
  int threads = 0;
  CU(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
  CHECK(threads > 0);
  int blocks = 0;
  CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 32, 0));
  CHECK(blocks > 0);
}

TEST_CASE("launch: kernelParams, extra, cuLaunchKernelEx, limits") {
  const Gpu gpu;
  const CUfunction function = gpu.function("mixed_params");
  const Ints out(5);
  struct Mixed {
    char a;
    double b;
    short c;
  } third{3, 4.5, 5};
  char first = 1;
  double second = 2.5;
  CUdeviceptr dptr = out.dptr;
  const std::vector<int> expected{1, 2, 3, 4, 5};
  void* params[] = {&first, &second, &third, &dptr};
  CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  CHECK(out.read() == expected);

  CU(cuMemsetD32(dptr, 0, 5));
  struct {
    char first;
    double second;
    Mixed third;
    CUdeviceptr out;
  } buffer{1, 2.5, {3, 4.5, 5}, dptr};
  size_t bytes = sizeof buffer;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  CHECK(out.read() == expected);

  bytes = sizeof buffer + 1;
  CU_IS(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra),
        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  // NCCL gives less than its kernels take: the rest, here n, is zero.
  bytes = sizeof dptr;
  extra[1] = &dptr;
  CU(cuLaunchKernel(gpu.function("add_one"), 1, 1, 1, 5, 1, 1, 0, nullptr, nullptr, extra));
  CHECK(out.read() == expected);

  CU(cuMemsetD32(dptr, 0, 5));
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  CU(cuLaunchKernelEx(&config, function, params, nullptr));
  CHECK(out.read() == expected);

  CU_IS(cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr),
        CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuLaunchKernel(function, 1, 1, 1, 2048, 1, 1, 0, nullptr, params, nullptr),
        CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 1 << 30, nullptr, params, nullptr),
        CUDA_ERROR_INVALID_VALUE);
  CHECK(out.read() == expected);
}

TEST_CASE("stream: query, priority, destroyed with work in flight, unknown handle") {
  const Gpu gpu;
  const Ints data(4);
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  unsigned flags;
  CU(cuStreamGetFlags(stream, &flags));
  CHECK(flags == CU_STREAM_NON_BLOCKING);
  CU(cuStreamQuery(stream));
  {
    Gate gate(gpu, stream);
    add_one(gpu, data, stream);
    CU_IS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    CU(cuStreamDestroy(stream));
    gate.open();
    CU(cuCtxSynchronize());
  }
  CHECK(data.read() == std::vector<int>(4, 1));
  int least, greatest;
  CU(cuCtxGetStreamPriorityRange(&least, &greatest));
  CU(cuStreamCreateWithPriority(&stream, 0, greatest));
  int priority;
  CU(cuStreamGetPriority(stream, &priority));
  CHECK(priority == greatest);
  CU(cuStreamDestroy(stream));
}

TEST_CASE("stream: work of a destroyed stream is waited for by its context") {
  const Gpu gpu;
  const Ints data(4);
  for (const unsigned flags : {CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING}) {
    CUstream stream;
    CU(cuStreamCreate(&stream, flags));
    std::atomic<bool> opened{false};
    Gate gate(gpu, stream);
    add_one(gpu, data, stream);
    CU(cuStreamDestroy(stream));
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      opened = true;
      gate.open();
    });
    CU(cuCtxSynchronize());
    CHECK(opened);
    opener.join();
  }
  CHECK(data.read() == std::vector<int>(4, 2));
}

TEST_CASE("stream: polling the legacy stream and waiting for it come to an end") {
  const Gpu gpu;
  CUstream blocking;
  CU(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  const Ints data(1);
  {
    Gate gate(gpu, blocking);
    add_one(gpu, data, nullptr);  // behind the blocking stream
    CU_IS(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
    gate.open();
    CUresult result;
    while ((result = cuStreamQuery(nullptr)) == CUDA_ERROR_NOT_READY) {
    }
    CU(result);
  }
  CU(cuStreamSynchronize(nullptr));
  CHECK(data.read()[0] == 1);
}

TEST_CASE("progress: numbers of streams that come and go are never mistaken for one another") {
  const Gpu gpu;
  const Ints data(1);
  for (int i = 1; i <= 300; ++i) {
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    add_one(gpu, data, stream);
    CU(cuStreamSynchronize(stream));
    CUstream reader;
    CU(cuStreamCreate(&reader, CU_STREAM_NON_BLOCKING));
    int value = 0;
    CU(cuMemcpyDtoHAsync(&value, data.dptr, sizeof value, reader));
    CU(cuStreamSynchronize(reader));
    REQUIRE(value == i);
    CU(cuStreamDestroy(stream));
    CU(cuStreamDestroy(reader));
  }
}

TEST_CASE("event: order across streams, query, elapsed time") {
  const Gpu gpu;
  const Ints data(1), copy(1);
  CUstream a, b;
  CU(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
  CUevent start, end;
  CU(cuEventCreate(&start, 0));
  CU(cuEventCreate(&end, 0));
  CU(cuEventQuery(start));  // never recorded: complete
  float ms = -1;
  CU_IS(cuEventElapsedTime(&ms, start, end), CUDA_ERROR_INVALID_HANDLE);
  {
    Gate gate(gpu, a);
    CU(cuEventRecord(start, a));
    add_one(gpu, data, a);
    CU(cuEventRecord(end, a));
    CU(cuStreamWaitEvent(b, end, 0));
    CUdeviceptr from = data.dptr, to = copy.dptr;
    launch(gpu.function("copy_int"), b, {&from, &to});
    CU_IS(cuEventQuery(end), CUDA_ERROR_NOT_READY);
    CU_IS(cuEventElapsedTime(&ms, start, end), CUDA_ERROR_NOT_READY);
    CU_IS(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
    gate.open();
    CU(cuStreamSynchronize(b));
    CHECK(copy.read()[0] == 1);
  }
  CU(cuEventSynchronize(end));
  CU(cuEventQuery(end));
  CU(cuEventElapsedTime(&ms, start, end));
  CHECK(ms >= 0);
  CU(cuEventDestroy(start));
  CU(cuEventDestroy(end));
  CU(cuStreamDestroy(a));
  CU(cuStreamDestroy(b));
}

TEST_CASE("event: of a stream at rest it is over at once, unless other streams come first") {
  const Gpu gpu;
  CUstream blocking, other;
  CU(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CUevent start, end;
  for (CUevent* event : {&start, &end}) CU(cuEventCreate(event, CU_EVENT_DEFAULT));
  for (CUstream stream : {CU_STREAM_LEGACY, blocking, other}) {
    CU(cuCtxSynchronize());
    CU(cuEventRecord(start, stream));
    CU(cuEventSynchronize(start));
    CU(cuStreamQuery(stream));
    CU(cuEventRecord(end, stream));
    CU(cuEventSynchronize(end));
    float ms = -1;
    CU(cuEventElapsedTime(&ms, start, end));
    CHECK(ms >= 0);
  }
  const std::pair<CUstream, CUstream> pairs[] = {{CU_STREAM_LEGACY, blocking},
                                                 {blocking, CU_STREAM_LEGACY}};
  for (const auto& [gated, behind] : pairs) {
    Gate gate(gpu, gated);
    CU(cuEventRecord(end, behind));
    CU_IS(cuEventQuery(end), CUDA_ERROR_NOT_READY);
    CU(cuEventRecord(end, other));
    CU(cuEventSynchronize(end));
    gate.open();
    CU(cuCtxSynchronize());
  }
  {
    Gate gate(gpu, blocking);
    CU(cuStreamDestroy(blocking));
    CU(cuEventRecord(end, CU_STREAM_LEGACY));
    CU_IS(cuEventQuery(end), CUDA_ERROR_NOT_READY);
    gate.open();
  }
  CU(cuEventSynchronize(end));
  for (CUevent event : {start, end}) CU(cuEventDestroy(event));
  CU(cuStreamDestroy(other));
}

// Nothing else waits for `first`: that its event is over is known from the second stream only.
TEST_CASE("event: one that another stream has waited for is over when that stream is") {
  Gpu gpu;
  CUstream first, second;
  CU(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  CUevent start, waited_for, end;
  for (CUevent* event : {&start, &waited_for, &end}) CU(cuEventCreate(event, CU_EVENT_DEFAULT));
  for (int i = 0; i < 2000; ++i) {
    CU(cuEventRecord(start, first));
    CU(cuEventRecord(waited_for, first));
    CU(cuStreamWaitEvent(second, waited_for, 0));
    CU(cuEventRecord(end, second));
    CU(cuEventSynchronize(end));
    CU(cuEventQuery(waited_for));
    CU(cuStreamQuery(first));
    float part_ms = -1, whole_ms = -1;
    CU(cuEventElapsedTime(&part_ms, start, waited_for));
    CU(cuEventElapsedTime(&whole_ms, start, end));
    REQUIRE(part_ms >= 0);
    REQUIRE(whole_ms >= part_ms);
  }
  for (CUevent event : {start, waited_for, end}) CU(cuEventDestroy(event));
  CU(cuStreamDestroy(first));
  CU(cuStreamDestroy(second));
}

TEST_CASE("asynchronous calls return while their stream is blocked") {
  const Gpu gpu;
  const Ints data(256);
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  int* pinned = nullptr;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 1024, 0));
  CUevent event;
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  {
    Gate gate(gpu, stream);
    const double took_s = seconds([&] {
      for (int i = 0; i < 100; ++i) add_one(gpu, data, stream);
      CU(cuMemcpyDtoHAsync(pinned, data.dptr, 1024, stream));
      CU(cuMemsetD32Async(data.dptr, 0, 256, stream));
      CU(cuEventRecord(event, stream));
    });
    CHECK(took_s < 5);
    CU_IS(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    gate.open();
    CU(cuEventSynchronize(event));
  }
  CHECK(pinned[255] == 100);
  CHECK(data.read()[0] == 0);
  CU(cuMemFreeHost(pinned));
  CU(cuStreamDestroy(stream));
}

TEST_CASE("executor: a thread that waits stops no other") {
  const Gpu gpu;
  const Ints data(1), other(1);
  CUstream stuck, free_stream;
  CU(cuStreamCreate(&stuck, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING));
  Gate gate(gpu, stuck);
  std::atomic<bool> waited{false};
  std::thread blocked([&] {
    cuCtxSetCurrent(gpu.context);
    cuCtxSynchronize();
    waited = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (int i = 1; i <= 20; ++i) {
    add_one(gpu, other, free_stream);
    CU(cuStreamSynchronize(free_stream));
  }
  CHECK_FALSE(waited);
  gate.open();
  blocked.join();
  CHECK(waited);
  CHECK(other.read()[0] == 20);
}

TEST_CASE("threads: 16 threads launch, copy and wait together") {
  const Gpu gpu;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&] {
      cuCtxSetCurrent(gpu.context);
      CUstream stream = nullptr;
      CUdeviceptr dptr = 0;
      CUfunction function = nullptr;
      int n = 64;
      bool ok = cuModuleGetFunction(&function, gpu.module, "add_one") == CUDA_SUCCESS &&
                cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
                cuMemAlloc(&dptr, 256) == CUDA_SUCCESS &&
                cuMemsetD32Async(dptr, 0, 64, stream) == CUDA_SUCCESS;
      for (int i = 1; ok && i <= 50; ++i) {
        void* params[] = {&dptr, &n};
        int values[64];
        ok = cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, stream, params, nullptr) ==
                 CUDA_SUCCESS &&
             cuMemcpyDtoHAsync(values, dptr, 256, stream) == CUDA_SUCCESS &&
             cuStreamSynchronize(stream) == CUDA_SUCCESS && values[0] == i && values[63] == i;
      }
      ok = ok && cuMemFree(dptr) == CUDA_SUCCESS && cuStreamDestroy(stream) == CUDA_SUCCESS;
      if (!ok) ++wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("per_thread stream: one per thread, not held up by another thread's") {
  const Gpu gpu;
  const Ints mine(1), theirs(1);
  Gate gate(gpu, CU_STREAM_PER_THREAD);
  add_one(gpu, mine, CU_STREAM_PER_THREAD);
  std::thread([&] {
    cuCtxSetCurrent(gpu.context);
    add_one(gpu, theirs, CU_STREAM_PER_THREAD);
    CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    CU(cuStreamQuery(CU_STREAM_PER_THREAD));
  }).join();
  CU_IS(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
  gate.open();
  CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  CHECK(mine.read()[0] == 1);
  CHECK(theirs.read()[0] == 1);
}
