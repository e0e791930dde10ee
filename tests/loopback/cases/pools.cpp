// SPDX-License-Identifier: Apache-2.0
// Stream-ordered allocation, and what pointers are.
#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "support.h"

namespace {

CUmemoryPool make_pool(CUdevice device) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  CUmemoryPool pool = nullptr;
  CU(cuMemPoolCreate(&pool, &properties));
  return pool;
}

cuuint64_t number(CUmemoryPool pool, CUmemPool_attribute attribute) {
  cuuint64_t value = 0;
  CU(cuMemPoolGetAttribute(pool, attribute, &value));
  return value;
}

template <typename T>
T attribute(CUpointer_attribute which, CUdeviceptr pointer) {
  T value{};
  CU(cuPointerGetAttribute(&value, which, pointer));
  return value;
}

}  // namespace

TEST_CASE("pool: allocated, used and freed in the order of the stream") {
  const Gpu gpu;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const CUfunction function = gpu.function("add_one");
  for (int round = 0; round < 100; ++round) {
    CUdeviceptr data = 0;
    int n = 64;
    std::vector<int> host(64);
    CU(cuMemAllocAsync(&data, host.size() * sizeof(int), stream));
    CU(cuMemsetD32Async(data, static_cast<unsigned>(round), host.size(), stream));
    launch(function, stream, {&data, &n}, 64);
    CU(cuMemcpyDtoHAsync(host.data(), data, host.size() * sizeof(int), stream));
    CU(cuMemFreeAsync(data, stream));
    CU(cuStreamSynchronize(stream));
    CHECK(host == std::vector<int>(64, round + 1));
  }
  CUdeviceptr data = 0;
  CU_IS(cuMemAllocAsync(nullptr, 16, stream), CUDA_ERROR_INVALID_VALUE);
  CU(cuMemAllocAsync(&data, 1 << 20, stream));
  CU(cuStreamSynchronize(stream));
  CU(cuMemFree(data));  // the synchronous form may free it, too
  size_t free_bytes = 0, total_bytes = 0;
  CU(cuMemGetInfo(&free_bytes, &total_bytes));
  CU_IS(cuMemAllocAsync(&data, total_bytes + (1ull << 40), stream), CUDA_ERROR_OUT_OF_MEMORY);
  CU(cuStreamDestroy(stream));
}

// test_trace.py knows which of these allocations ask the worker.
TEST_CASE("pool: allocated again just after it was freed") {
  const Gpu gpu;
  constexpr size_t BYTES = 1 << 16;
  const CUmemoryPool pool = make_pool(gpu.device);
  CUstream stream, other;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  const auto allocate = [&](CUstream in, size_t bytes = 1 << 16) {
    CUdeviceptr made = 0;
    CU(cuMemAllocFromPoolAsync(&made, bytes, pool, in));
    return made;
  };
  const auto first_byte = [](CUdeviceptr at) {
    unsigned char value = 0;
    CU(cuMemcpyDtoH(&value, at, 1));
    return int{value};
  };
  CUdeviceptr one = allocate(stream), two = allocate(stream);
  CU(cuMemFreeAsync(one, stream));
  CU(cuMemFreeAsync(two, stream));
  one = allocate(stream);  // at once
  two = allocate(stream);  // at once
  CHECK(one != two);
  CU(cuMemsetD8Async(one, 1, BYTES, stream));
  CU(cuMemsetD8Async(two, 2, BYTES, stream));
  CU(cuMemFreeAsync(one, stream));
  CU(cuMemsetD8Async(two, 2, BYTES, stream));
  one = allocate(stream);  // at once: only a fill has come between
  CU(cuMemFreeAsync(one, stream));
  CU(cuMemsetD8Async(two, 2, BYTES, stream));
  const CUdeviceptr of_other = allocate(other);
  CHECK(of_other != two);
  CU(cuMemsetD8Async(of_other, 3, BYTES, other));
  one = allocate(stream);  // the driver knows that it is free, and another stream may have it
  CU(cuMemsetD8Async(one, 4, BYTES, stream));
  CU(cuCtxSynchronize());
  CHECK(first_byte(one) == 4);
  CHECK(first_byte(two) == 2);
  CHECK(first_byte(of_other) == 3);
  CU(cuMemFreeAsync(one, stream));
  CU(cuMemsetD8Async(two, 5, BYTES, stream));
  one = allocate(stream);  // at once
  CU(cuMemFreeAsync(one, stream));
  one = allocate(stream, 2 * BYTES);
  CU(cuMemFreeAsync(one, stream));
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  one = allocate(stream, 2 * BYTES);  // of the graph
  CU(cuMemFreeAsync(one, stream));
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(stream, &graph));
  CU(cuGraphDestroy(graph));
  CU(cuMemFreeAsync(of_other, other));
  CU(cuStreamSynchronize(stream));
  CU(cuStreamSynchronize(other));
  CHECK(number(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == BYTES);
  CU(cuMemFreeAsync(two, stream));
  CU(cuMemFreeAsync(allocate(stream), stream));  // at once
  CU(cuStreamDestroy(stream));
  CU(cuCtxSynchronize());
  CHECK(number(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
  CU(cuStreamDestroy(other));
  CU(cuMemPoolDestroy(pool));
}

// test_trace.py knows which of these launches comes with a record more.
TEST_CASE("pool: a kernel that may begin early, in memory that was allocated again") {
  const Gpu gpu;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUlaunchAttribute early{};
  early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  early.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{1, 1, 1, 32, 1, 1, 0, stream, &early, 1};
  int n = 32;
  CUdeviceptr data = 0;
  CU(cuMemAllocAsync(&data, 4096, stream));
  void* params[] = {&data, &n};
  const CUfunction add_one = gpu.function("add_one");
  const auto launch = [&] { CU(cuLaunchKernelEx(&config, add_one, params, nullptr)); };
  const auto allocate_again = [&] {
    CU(cuMemFreeAsync(data, stream));
    CU(cuMemAllocAsync(&data, 4096, stream));
  };
  const auto fill = [&] { CU(cuMemsetD32Async(data, 5, 32, stream)); };
  fill();
  launch();
  fill();
  launch();
  allocate_again();
  launch();
  fill();
  launch();
  std::vector<int> read(32);
  CU(cuMemcpyDtoHAsync(read.data(), data, 128, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(read == std::vector<int>(32, 6));
  CU(cuMemFreeAsync(data, stream));
  CU(cuStreamDestroy(stream));
}

TEST_CASE("pool: threads that allocate and free, in streams of their own and in one") {
  const Gpu gpu;
  constexpr int THREADS = 4, ROUNDS = 150;
  std::vector<CUstream> streams(THREADS);
  for (CUstream& stream : streams) CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  std::vector<int> n_wrong(THREADS, -1);
  const auto work = [&](int thread) {
    if (cuCtxSetCurrent(gpu.context) != CUDA_SUCCESS) return -1;
    int n = 0;
    for (int round = 0; round < ROUNDS; ++round) {
      const CUstream stream = streams[static_cast<size_t>(round % 3 == 0 ? 0 : thread)];
      const size_t bytes = 4096u << (round % 2);
      const auto value = static_cast<unsigned char>(thread * ROUNDS + round);
      CUdeviceptr data = 0, more = 0;
      unsigned char got = 0;
      if (cuMemAllocAsync(&data, bytes, stream) != CUDA_SUCCESS ||
          cuMemsetD8Async(data, value, bytes, stream) != CUDA_SUCCESS ||
          cuMemAllocAsync(&more, bytes, stream) != CUDA_SUCCESS || more == data ||
          cuMemcpyDtoHAsync(&got, data + bytes - 1, 1, stream) != CUDA_SUCCESS ||
          cuStreamSynchronize(stream) != CUDA_SUCCESS ||
          cuMemFreeAsync(data, stream) != CUDA_SUCCESS ||
          cuMemFreeAsync(more, stream) != CUDA_SUCCESS) {
        return -1;
      }
      n += got != value;
    }
    return n;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < THREADS; ++i) {
    threads.emplace_back([&, i] { n_wrong[static_cast<size_t>(i)] = work(i); });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(n_wrong == std::vector(THREADS, 0));
  for (const CUstream stream : streams) CU(cuStreamDestroy(stream));
}

// A GPU's pool takes twice its memory's size of addresses: these leave the low ranges (layout.h).
TEST_CASE("pool: many that are in use at once") {
  const Gpu gpu;
  std::vector<CUmemoryPool> pools;
  std::vector<CUdeviceptr> all;
  for (unsigned i = 0; i < 8; ++i) {
    pools.push_back(make_pool(gpu.device));
    CU(cuMemAllocFromPoolAsync(&all.emplace_back(), 64, pools.back(), nullptr));
    CU(cuMemsetD32Async(all.back(), i, 16, nullptr));
  }
  for (unsigned i = 0; i < pools.size(); ++i) {
    std::vector<unsigned> host(16);
    CU(cuMemcpyDtoH(host.data(), all[i], 64));
    CHECK(host == std::vector<unsigned>(16, i));
    CU(cuMemFreeAsync(all[i], nullptr));
    CU(cuMemPoolDestroy(pools[i]));
  }
}

TEST_CASE("pool: default and current pool of a device") {
  const Gpu gpu;
  CUmemoryPool by_default = nullptr, current = nullptr, again = nullptr;
  CU(cuDeviceGetDefaultMemPool(&by_default, gpu.device));
  CU(cuDeviceGetMemPool(&current, gpu.device));
  CHECK(current == by_default);
  const CUmemoryPool mine = make_pool(gpu.device);
  CHECK(mine != by_default);
  CU_IS(cuDeviceSetMemPool(1000, mine), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuDeviceGetMemPool(&current, 1000), CUDA_ERROR_INVALID_VALUE);
  CU(cuDeviceSetMemPool(gpu.device, mine));
  CU(cuDeviceGetMemPool(&current, gpu.device));
  CHECK(current == mine);
  CUdeviceptr data = 0;
  CU(cuMemAllocAsync(&data, 1 << 16, nullptr));
  CHECK(number(mine, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= 1 << 16);
  CHECK(attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, data) == mine);
  CU(cuMemFreeAsync(data, nullptr));
  CU(cuStreamSynchronize(nullptr));
  CU(cuMemPoolDestroy(mine));
  CU(cuDeviceGetMemPool(&current, gpu.device));
  CHECK(current == by_default);
  CU(cuDeviceGetDefaultMemPool(&again, gpu.device));
  CHECK(again == by_default);
  CHECK(cuDeviceGetDefaultMemPool(&again, 1000) != CUDA_SUCCESS);
  CU(cuMemAllocAsync(&data, 1 << 16, nullptr));
  CHECK(attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, data) == by_default);
  CU(cuMemFreeAsync(data, nullptr));
  CU(cuStreamSynchronize(nullptr));
}

TEST_CASE("pool: attributes, trim, access") {
  const Gpu gpu;
  const CUmemoryPool pool = make_pool(gpu.device);
  for (const CUmemPool_attribute flag :
       {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES}) {
    for (int value : {0, 1}) {
      CU(cuMemPoolSetAttribute(pool, flag, &value));
      int got = -1;
      CU(cuMemPoolGetAttribute(pool, flag, &got));
      CHECK(got == value);
    }
  }
  cuuint64_t threshold = 64 << 20;
  CU(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CHECK(number(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == threshold);
  CUdeviceptr data = 0;
  CU(cuMemAllocFromPoolAsync(&data, 3 << 20, pool, nullptr));
  CHECK(number(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= 3 << 20);
  CU(cuMemFreeAsync(data, nullptr));
  CU(cuStreamSynchronize(nullptr));
  CHECK(number(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
  CHECK(number(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) >= 3 << 20);
  CU(cuMemPoolTrimTo(pool, 0));
  cuuint64_t zero = 0;
  CU(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
  CHECK(number(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 0);
  CU_IS(cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(99), &zero),
        CUDA_ERROR_INVALID_VALUE);
  CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, gpu.device};
  CUmemAccess_flags access{};
  CU(cuMemPoolGetAccess(&access, pool, &here));
  CHECK(access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  const CUmemAccessDesc wanted{here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CU(cuMemPoolSetAccess(pool, &wanted, 1));
  CU(cuMemPoolDestroy(pool));
}

TEST_CASE("pool: what it keeps when the program has waited") {
  const Gpu gpu;
  constexpr size_t BYTES = 64 << 20;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device};
  CUmemoryPool pool, common;
  CU(cuMemPoolCreate(&pool, &properties));
  CU(cuDeviceGetDefaultMemPool(&common, gpu.device));
  CUstream stream;
  CUevent event;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  const std::function<void()> waits[] = {[&] { CU(cuStreamSynchronize(stream)); },
                                         [&] {
                                           CU(cuEventRecord(event, stream));
                                           CU(cuEventSynchronize(event));
                                         },
                                         [&] { CU(cuCtxSynchronize()); }};
  for (const cuuint64_t threshold : {cuuint64_t{0}, cuuint64_t{BYTES}, ~cuuint64_t{0}}) {
    for (CUmemoryPool each : {pool, common}) {
      cuuint64_t before = threshold;
      CU(cuMemPoolSetAttribute(each, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &before));
      for (const auto& wait : waits) {
        CU(cuMemPoolTrimTo(each, 0));
        CUdeviceptr data[2];
        for (CUdeviceptr& one : data) CU(cuMemAllocFromPoolAsync(&one, BYTES, each, stream));
        for (CUdeviceptr one : data) CU(cuMemFreeAsync(one, stream));
        CHECK(number(each, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 2 * BYTES);
        wait();
        CHECK(number(each, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) ==
              std::min<cuuint64_t>(threshold, 2 * BYTES));
      }
      CU(cuMemPoolTrimTo(each, 0));
    }
  }
  cuuint64_t none = 0;
  CU(cuMemPoolSetAttribute(common, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none));
  CU(cuEventDestroy(event));
  CU(cuStreamDestroy(stream));
  CU(cuMemPoolDestroy(pool));
}

TEST_CASE("pointer: attributes of memory of every kind") {
  const Gpu gpu;
  CUdeviceptr device = 0, pooled = 0;
  void *pinned = nullptr, *registered = nullptr;
  constexpr size_t BYTES = 1 << 20;
  CU(cuMemAlloc(&device, BYTES));
  CU(cuMemAllocAsync(&pooled, BYTES, nullptr));
  CU(cuMemHostAlloc(&pinned, BYTES, 0));
  registered = mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(registered != MAP_FAILED);
  CU(cuMemHostRegister(registered, BYTES, 0));
  std::vector<cuuint64_t> ids;
  const auto as_device = [](void* p) { return reinterpret_cast<CUdeviceptr>(p); };
  for (const CUdeviceptr begin : {device, pooled, as_device(pinned), as_device(registered)}) {
    const bool host = begin != device && begin != pooled;
    CAPTURE(host);
    const CUdeviceptr p = begin + 5000;
    CHECK(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, p) ==
          (begin == pooled ? nullptr : gpu.context));
    CHECK(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p) ==
          static_cast<unsigned>(host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    CHECK(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p) == gpu.device);
    CHECK(attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED, p) == 0);
    CHECK(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p) == begin);
    CHECK(attribute<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, p) == BYTES);
    ids.push_back(attribute<cuuint64_t>(CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
    if (host) {
      CUdeviceptr on_gpu = 0;
      CU(cuMemHostGetDevicePointer(&on_gpu, reinterpret_cast<void*>(p), 0));
      CHECK(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, p) == on_gpu);
      CHECK(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_HOST_POINTER, p) == p);
      CHECK(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_HOST_POINTER, on_gpu) == p);
      CHECK(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, on_gpu) == CU_MEMORYTYPE_HOST);
    } else {
      CHECK(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, p) == p);
      void* none = nullptr;
      CU_IS(cuPointerGetAttribute(&none, CU_POINTER_ATTRIBUTE_HOST_POINTER, p),
            CUDA_ERROR_INVALID_VALUE);
      CHECK(attribute<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, p) ==
            CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
      CHECK(attribute<size_t>(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, p) >= BYTES);
      CHECK(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, p) <= begin);
    }
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    for (size_t j = 0; j < i; ++j) CHECK(ids[i] != ids[j]);
  }
  CU(cuMemHostUnregister(registered));
  REQUIRE(munmap(registered, BYTES) == 0);
  CU(cuMemFreeHost(pinned));
  CU(cuMemFreeAsync(pooled, nullptr));
  CU(cuMemFree(device));
}

TEST_CASE("pointer: several at once, unknown pointers, synchronous operations") {
  const Gpu gpu;
  CUdeviceptr device = 0;
  CU(cuMemAlloc(&device, 4096));
  unsigned on = 1, got = 7, type = 7;
  int ordinal = 7;
  CUdeviceptr base = 7;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_RANGE_START_ADDR};
  void* values[] = {&type, &ordinal, &base};
  CU(cuPointerGetAttributes(3, which, values, device + 4095));
  CHECK(type == CU_MEMORYTYPE_DEVICE);
  CHECK(ordinal == gpu.device);
  CHECK(base == device);
  CU(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device));
  CU(cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device));
  CHECK(got == 1);
  CU(cuMemsetD8(device, 1, 4096));
  CU_IS(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device),
        CUDA_ERROR_INVALID_VALUE);
  CU(cuMemFree(device));
  CU_IS(cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device),
        CUDA_ERROR_INVALID_VALUE);
  int on_stack = 0;
  CU_IS(cuPointerGetAttribute(&got, static_cast<CUpointer_attribute>(99),
                              reinterpret_cast<CUdeviceptr>(&on_stack)),
        CUDA_ERROR_INVALID_VALUE);
  CU(cuPointerGetAttributes(3, which, values, reinterpret_cast<CUdeviceptr>(&on_stack)));
  CHECK(type == 0);
  CHECK(ordinal == -2);
  CHECK(base == device);  // left as it was
  CUpointer_attribute host_pointer = CU_POINTER_ATTRIBUTE_HOST_POINTER;
  void* itself = nullptr;
  void* into[] = {&itself};
  CU(cuPointerGetAttributes(1, &host_pointer, into, reinterpret_cast<CUdeviceptr>(&on_stack)));
  CHECK(itself == &on_stack);
}
