// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>

#include "support.h"

TEST_CASE("initialisation: errors before cuInit, then it works") {
  int count = 0;
  CU_IS(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
  CUlogIterator here = 0;
  char text[16];
  CU(cuLogsCurrent(&here, 0));
  for (const size_t room : {sizeof text, size_t{0}}) {
    size_t n_bytes = room;
    CU(cuLogsDumpToMemory(&here, text, &n_bytes, 0));
    CHECK(n_bytes == 0);
  }
  const char* name = nullptr;
  CU(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &name));
  CHECK(std::string(name) == "CUDA_ERROR_OUT_OF_MEMORY");
  CU_IS(cuGetErrorName(static_cast<CUresult>(54321), &name), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuInit(1), CUDA_ERROR_INVALID_VALUE);
  CU(cuInit(0));
  CU(cuInit(0));
  CU(cuDeviceGetCount(&count));
  CHECK(count >= 1);
  int version = 0;
  CU(cuDriverGetVersion(&version));
  CHECK(version >= 12000);
}

TEST_CASE("device: name, memory, attributes, uuid, bus id") {
  CU(cuInit(0));
  CUdevice device;
  CU_IS(cuDeviceGet(&device, 1000), CUDA_ERROR_INVALID_DEVICE);
  CU(cuDeviceGet(&device, 0));
  char name[100];
  CU(cuDeviceGetName(name, sizeof name, device));
  CHECK(std::strlen(name) > 0);
  char few[4];
  CU(cuDeviceGetName(few, sizeof few, device));
  CHECK(std::strlen(few) == 3);
  size_t bytes = 0;
  CU(cuDeviceTotalMem(&bytes, device));
  CHECK(bytes > 0);
  int value = 0;
  CU(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, device));
  CHECK(value == 1);
  CU_IS(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(9999), device),
        CUDA_ERROR_INVALID_VALUE);
  CUuuid uuid;
  CU(cuDeviceGetUuid(&uuid, device));
  CHECK(std::any_of(std::begin(uuid.bytes), std::end(uuid.bytes), [](char c) { return c != 0; }));
  char bus[32];
  CU(cuDeviceGetPCIBusId(bus, sizeof bus, device));
  CUdevice again = -1;
  CU(cuDeviceGetByPCIBusId(&again, bus));
  CHECK(again == device);
}

TEST_CASE("context: state, current, stack, last release ends it") {
  CU(cuInit(0));
  CUdevice device;
  CU(cuDeviceGet(&device, 0));
  unsigned flags = 1;
  int active = 1;
  CU(cuDevicePrimaryCtxGetState(device, &flags, &active));
  CHECK(active == 0);
  CUcontext context = nullptr, current = nullptr;
  CUdevice current_device;
  CU_IS(cuCtxGetDevice(&current_device), CUDA_ERROR_INVALID_CONTEXT);
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxGetCurrent(&current));
  CHECK(current == nullptr);
  CU(cuCtxPushCurrent(context));
  CU(cuCtxGetCurrent(&current));
  CHECK(current == context);
  CU(cuCtxGetDevice(&current_device));
  CHECK(current_device == device);
  CU(cuCtxPopCurrent(&current));
  CHECK(current == context);
  CU_IS(cuCtxPopCurrent(&current), CUDA_ERROR_INVALID_CONTEXT);
  CU(cuCtxSetCurrent(context));
  CU(cuCtxSynchronize());
  CU(cuCtxSetCurrent(nullptr));
  CU(cuDevicePrimaryCtxRelease(device));
  CU(cuDevicePrimaryCtxGetState(device, &flags, &active));
  CHECK(active == 0);
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));
  CUdeviceptr dptr;
  CU(cuMemAlloc(&dptr, 16));
  CU(cuMemFree(dptr));
  CU(cuDevicePrimaryCtxRelease(device));
}

TEST_CASE("context: a reset takes along what was made in it, and a new start works") {
  const Gpu gpu;
  CUstream stream;
  CUevent event;
  CU(cuStreamCreate(&stream, 0));
  CU(cuEventCreate(&event, 0));
  CU(cuEventRecord(event, stream));
  CU(cuDevicePrimaryCtxReset(gpu.device));
  CUcontext context;
  CU(cuDevicePrimaryCtxRetain(&context, gpu.device));
  CU(cuCtxSetCurrent(context));
  CUmodule module;
  CUfunction function;
  CU(cuModuleLoadData(&module, kernels_ptx()));
  CU(cuModuleGetFunction(&function, module, "add_one"));
  const Ints data(1);
  CUdeviceptr dptr = data.dptr;
  int n = 1;
  launch(function, nullptr, {&dptr, &n});
  CHECK(data.read()[0] == 1);
  CU(cuModuleUnload(module));
}

TEST_CASE("memory: allocate, free, ranges, pointer attributes") {
  const Gpu gpu;
  CUdeviceptr dptr = 0;
  CU_IS(cuMemAlloc(&dptr, 0), CUDA_ERROR_INVALID_VALUE);
  CU(cuMemAlloc(&dptr, 1000));
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CU(cuMemGetAddressRange(&base, &bytes, dptr + 10));
  CHECK(base == dptr);
  CHECK(bytes == 1000);
  unsigned type = 0;
  CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, dptr + 999));
  CHECK(type == CU_MEMORYTYPE_DEVICE);
  int on_stack = 0;
  CU_IS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                              reinterpret_cast<CUdeviceptr>(&on_stack)),
        CUDA_ERROR_INVALID_VALUE);
  size_t free_bytes = 0, total_bytes = 0;
  CU(cuMemGetInfo(&free_bytes, &total_bytes));
  CHECK(free_bytes <= total_bytes);
  CU_IS(cuMemAlloc(&base, total_bytes + (1ull << 40)), CUDA_ERROR_OUT_OF_MEMORY);
  CU(cuMemFree(dptr));
  CU_IS(cuMemFree(dptr), CUDA_ERROR_INVALID_VALUE);
  size_t pitch = 0;
  CU(cuMemAllocPitch(&dptr, &pitch, 1001, 10, 4));
  CHECK(pitch >= 1001);
  CU(cuMemFree(dptr));
}

TEST_CASE("address window: no device address is mapped to anything in this process") {
  const Gpu gpu;
  std::vector<CUdeviceptr> pointers(64);
  for (CUdeviceptr& dptr : pointers) CU(cuMemAlloc(&dptr, 3 << 20));
  CHECK(std::set<CUdeviceptr>(pointers.begin(), pointers.end()).size() == pointers.size());
  FILE* maps = std::fopen("/proc/self/maps", "r");
  REQUIRE(maps != nullptr);
  char line[512];
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long begin, end;
    char rights[8];
    REQUIRE(std::sscanf(line, "%lx-%lx %7s", &begin, &end, rights) == 3);
    if (std::strncmp(rights, "---", 3) == 0) continue;  // reserved, holds nothing
    for (const CUdeviceptr dptr : pointers) {
      const bool apart = dptr + (3 << 20) <= begin || dptr >= end;
      CHECK_MESSAGE(apart, line);
    }
  }
  std::fclose(maps);
  for (const CUdeviceptr dptr : pointers) CU(cuMemFree(dptr));
}

TEST_CASE("pinned memory: one address, zero copy, flags") {
  const Gpu gpu;
  int* host = nullptr;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&host), 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  CUdeviceptr address = 0;
  CU(cuMemHostGetDevicePointer(&address, host, 0));
  CHECK(address == reinterpret_cast<CUdeviceptr>(host));
  unsigned type = 0;
  CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
  CHECK(type == CU_MEMORYTYPE_HOST);
  host[0] = 41;
  int n = 1;
  launch(gpu.function("add_one"), nullptr, {&address, &n});
  CU(cuCtxSynchronize());
  CHECK(*static_cast<volatile int*>(host) == 42);
  int ordinary = 0;
  CU_IS(cuMemHostGetDevicePointer(&address, &ordinary, 0), CUDA_ERROR_INVALID_VALUE);
  CU(cuMemFreeHost(host));
  // Many sizes, freed in another order: what is handed out never overlaps.
  std::vector<char*> blocks(100);
  for (size_t i = 0; i < blocks.size(); ++i) {
    CU(cuMemHostAlloc(reinterpret_cast<void**>(&blocks[i]), 1 + i * 977, 0));
    std::memset(blocks[i], static_cast<int>(i), 1 + i * 977);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto mine = [i](char c) { return c == static_cast<char>(i); };
    CHECK(std::all_of(blocks[i], blocks[i] + 1 + i * 977, mine));
  }
  for (size_t i = 0; i < blocks.size(); i += 2) CU(cuMemFreeHost(blocks[i]));
  for (size_t i = 1; i < blocks.size(); i += 2) CU(cuMemFreeHost(blocks[i]));
}

TEST_CASE(
    "memcpy and memset: pageable and pinned, odd sizes, several megabytes, inferred direction") {
  const Gpu gpu;
  for (const size_t bytes : {size_t{1}, size_t{4097}, size_t{(1 << 20) + 3}, size_t{40 << 20}}) {
    CAPTURE(bytes);
    std::vector<unsigned char> from(bytes), to(bytes);
    for (size_t i = 0; i < bytes; ++i) from[i] = static_cast<unsigned char>(i * 31 + i / 4096);
    CUdeviceptr a, b;
    CU(cuMemAlloc(&a, bytes));
    CU(cuMemAlloc(&b, bytes));
    CU(cuMemcpyHtoD(a, from.data(), bytes));
    CU(cuMemcpyDtoD(b, a, bytes));
    CU(cuMemcpyDtoH(to.data(), b, bytes));
    CHECK(from == to);
    CU(cuMemsetD8(b, 0, bytes));
    CU(cuMemcpy(b, reinterpret_cast<CUdeviceptr>(from.data()), bytes));
    std::fill(to.begin(), to.end(), 0);
    CU(cuMemcpy(reinterpret_cast<CUdeviceptr>(to.data()), b, bytes));
    CHECK(from == to);
    void* pinned = nullptr;
    CU(cuMemHostAlloc(&pinned, bytes, 0));
    CU(cuMemcpyDtoHAsync(pinned, a, bytes, nullptr));
    CU(cuStreamSynchronize(nullptr));
    CHECK(std::memcmp(pinned, from.data(), bytes) == 0);
    CU(cuMemsetD8(a, 7, bytes));
    CU(cuMemcpyHtoDAsync(a, pinned, bytes, nullptr));
    CU(cuMemcpyDtoH(to.data(), a, bytes));
    CHECK(from == to);
    CU(cuMemFreeHost(pinned));
    CU_IS(cuMemcpyHtoD(a, from.data(), bytes + (1 << 30)), CUDA_ERROR_INVALID_VALUE);
    CU(cuMemFree(a));
    CU(cuMemFree(b));
  }
  const Ints words(5);
  CU(cuMemsetD32(words.dptr, 0x01020304, 5));
  CU(cuMemsetD16(words.dptr + 4, 0x0a0b, 2));
  CU_IS(cuMemsetD32(words.dptr + 1, 0, 1), CUDA_ERROR_INVALID_VALUE);
  const std::vector<int> expected{0x01020304, 0x0a0b0a0b, 0x01020304, 0x01020304, 0x01020304};
  CHECK(words.read() == expected);
}
