// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: reservations, physical memory, mappings and access.
#include "virtual_memory.h"

#include <sys/mman.h>

#include <atomic>
#include <numeric>
#include <thread>

namespace {

template <typename T>
T attribute(CUpointer_attribute which, CUdeviceptr pointer) {
  T value{};
  CU(cuPointerGetAttribute(&value, which, pointer));
  return value;
}

unsigned long long access_to(CUdeviceptr at, CUdevice device) {
  const CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  unsigned long long flags = 99;
  CU(cuMemGetAccess(&flags, &location, at));
  return flags;
}

size_t free_bytes() {
  size_t free = 0, total = 0;
  CU(cuMemGetInfo(&free, &total));
  return free;
}

void add_one_at(const Gpu& gpu, CUdeviceptr at, int n) {
  launch(gpu.function("add_one"), nullptr, {&at, &n}, static_cast<unsigned>(n));
}

}  // namespace

CUmemAllocationProp properties_of(CUdevice device, CUmemAllocationHandleType type) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = type;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return properties;
}

size_t granularity(CUdevice device) {
  const CUmemAllocationProp properties = properties_of(device);
  size_t bytes = 0;
  CU(cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  return bytes;
}

void set_access(CUdevice device, CUdeviceptr at, size_t bytes, CUmemAccess_flags flags) {
  const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
  CU(cuMemSetAccess(at, bytes, &access, 1));
}

Physical::Physical(CUdevice device, size_t bytes, CUmemAllocationHandleType type) {
  const CUmemAllocationProp properties = properties_of(device, type);
  CU(cuMemCreate(&handle, bytes, &properties, 0));
}

void Physical::release() {
  if (handle != 0) cuMemRelease(handle);
  handle = 0;
}

Addresses::Addresses(size_t bytes_, size_t alignment) : bytes(bytes_) {
  CU(cuMemAddressReserve(&base, bytes, alignment, 0, 0));
}

Mapped::Mapped(CUdeviceptr at_, size_t bytes_, const Physical& physical) : at(at_), bytes(bytes_) {
  CU(cuMemMap(at, bytes, 0, physical.handle, 0));
}

std::vector<int> read_ints(CUdeviceptr at, size_t n) {
  std::vector<int> values(n);
  CU(cuMemcpyDtoH(values.data(), at, n * sizeof(int)));
  return values;
}

TEST_CASE("virtual memory: one allocation at two addresses") {
  const Gpu gpu;
  const size_t bytes = granularity(gpu.device);
  CHECK(bytes % (64 << 10) == 0);
  Physical physical(gpu.device, bytes);
  const Addresses one(bytes), other(bytes, 4 * bytes);
  CHECK(other.base % (4 * bytes) == 0);
  const CUmemGenericAllocationHandle handle = physical.handle;
  const Mapped here(one.base, bytes, physical), there(other.base, bytes, physical);
  set_access(gpu.device, here.at, bytes);
  set_access(gpu.device, there.at, bytes);
  physical.release();  // what is mapped stays

  CU(cuMemsetD32(here.at, 41, 64));
  add_one_at(gpu, there.at, 64);
  CHECK(read_ints(here.at, 64) == std::vector<int>(64, 42));

  CUmemGenericAllocationHandle again = 0;
  CU(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(there.at + 4096)));
  CHECK(again == handle);
  CUmemAllocationProp properties{};
  CU(cuMemGetAllocationPropertiesFromHandle(&properties, again));
  CHECK(properties.type == CU_MEM_ALLOCATION_TYPE_PINNED);
  CHECK(properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE);
  CHECK(properties.location.id == gpu.device);
  CU(cuMemRelease(again));
}

TEST_CASE("virtual memory: what spans adjacent mappings") {
  const Gpu gpu;
  const size_t bytes = granularity(gpu.device);
  const Addresses addresses(4 * bytes);
  const Physical first(gpu.device, bytes), second(gpu.device, 2 * bytes);
  const Mapped low(addresses.base, bytes, first);
  set_access(gpu.device, addresses.base, bytes);
  CU(cuMemsetD32(addresses.base, 5, bytes / sizeof(int)));
  const Mapped high(addresses.base + bytes, 2 * bytes, second);  // as a segment that grows
  set_access(gpu.device, addresses.base, 3 * bytes);

  const CUdeviceptr seam = addresses.base + bytes - 32 * sizeof(int);
  CHECK(read_ints(seam, 32) == std::vector<int>(32, 5));
  std::vector<int> values(64);
  std::iota(values.begin(), values.end(), 100);
  CU(cuMemcpyHtoD(seam, values.data(), values.size() * sizeof(int)));
  add_one_at(gpu, seam, 64);
  std::iota(values.begin(), values.end(), 101);
  CHECK(read_ints(seam, 64) == values);
  CU(cuMemcpyDtoD(addresses.base + 2 * bytes, seam, values.size() * sizeof(int)));
  CHECK(read_ints(addresses.base + 2 * bytes, 64) == values);
  CU(cuMemsetD32(seam, 7, 64));
  CHECK(read_ints(seam, 64) == std::vector<int>(64, 7));
}

TEST_CASE("virtual memory: other memory at the same address") {
  const Gpu gpu;
  const size_t bytes = granularity(gpu.device);
  const Addresses addresses(bytes);
  const Physical one(gpu.device, bytes), other(gpu.device, bytes);
  for (const int value : {1, 2}) {
    const Mapped mapped(addresses.base, bytes, value == 1 ? one : other);
    set_access(gpu.device, addresses.base, bytes);
    CU(cuMemsetD32(addresses.base, static_cast<unsigned>(value), 16));
    CU(cuCtxSynchronize());
  }
  const Mapped mapped(addresses.base, bytes, one);
  CHECK(access_to(addresses.base, gpu.device) == CU_MEM_ACCESS_FLAGS_PROT_NONE);
  set_access(gpu.device, addresses.base, bytes);
  CHECK(access_to(addresses.base, gpu.device) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CHECK(read_ints(addresses.base, 16) == std::vector<int>(16, 1));
}

TEST_CASE("virtual memory: what is counted is physical") {
  const Gpu gpu;
  const size_t bytes = 32 * granularity(gpu.device);
  const Addresses addresses(16 * bytes);
  const auto is_counted = [&] {
    const size_t before = free_bytes();
    Physical physical(gpu.device, bytes);
    bool is_right = free_bytes() + bytes <= before;
    {
      const Mapped mapped(addresses.base, bytes, physical),
          twice(addresses.base + bytes, bytes, physical);
      const size_t mapped_free = free_bytes();
      is_right &= mapped_free + bytes <= before && mapped_free + 2 * bytes > before;
      physical.release();
      is_right &= free_bytes() + bytes <= before;
    }
    return is_right && free_bytes() + bytes > before;
  };
  int n_tries = 0;  // other processes may use the device, too
  while (n_tries < 10 && !is_counted()) ++n_tries;
  CHECK(n_tries < 10);
}

TEST_CASE("virtual memory: what is unmapped need not be mapped") {
  const Gpu gpu;
  const size_t bytes = granularity(gpu.device);
  const Addresses addresses(4 * bytes);
  const Physical physical(gpu.device, bytes);
  const CUdeviceptr at = addresses.base;
  CU(cuMemUnmap(at, bytes));
  CU(cuMemMap(at + bytes, bytes, 0, physical.handle, 0));
  CU(cuMemUnmap(at, bytes));
  CU_IS(cuMemUnmap(at + bytes, bytes / 2), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemUnmap(at, 0), CUDA_ERROR_INVALID_VALUE);
  CU(cuMemUnmap(at, 4 * bytes));
  unsigned type = 0;
  CU_IS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at + bytes),
        CUDA_ERROR_INVALID_VALUE);
  CU(cuMemMap(at + bytes, bytes, 0, physical.handle, 0));
  CU(cuMemUnmap(at + bytes, bytes));
}

TEST_CASE("virtual memory: what pointers are") {
  const Gpu gpu;
  const size_t bytes = granularity(gpu.device);
  const Addresses addresses(2 * bytes), elsewhere(bytes);
  const Physical physical(gpu.device, bytes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const Mapped mapped(addresses.base, bytes, physical), twice(elsewhere.base, bytes, physical);
  set_access(gpu.device, mapped.at, bytes);
  const CUdeviceptr at = mapped.at + 100;
  CHECK(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at) == mapped.at);
  CHECK(attribute<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, at) == 2 * bytes);  // all reserved
  size_t unmapped = 0;
  CU_IS(cuPointerGetAttribute(&unmapped, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at + bytes),
        CUDA_ERROR_INVALID_VALUE);
  // Among several it is answered.
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_MAPPED};
  unsigned is_mapped = 7;
  void* answers[] = {&unmapped, &is_mapped};
  CU(cuPointerGetAttributes(2, asked, answers, at + bytes));
  CHECK(unmapped == 2 * bytes);
  CHECK(is_mapped == 0);
  CUdeviceptr closed = 0;
  CU_IS(cuPointerGetAttribute(&closed, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, twice.at),
        CUDA_ERROR_INVALID_VALUE);
  CHECK(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at) == at);
  CHECK(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at) == mapped.at);
  CHECK(attribute<size_t>(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at) == bytes);
  CHECK(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) == CU_MEMORYTYPE_DEVICE);
  CHECK(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at) == gpu.device);
  CHECK(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MAPPED, at) == 1);
  CHECK(attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED, at) == 0);
  CHECK(attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at) ==
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CHECK(attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at) == 0);
  CHECK(attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, at) ==
        attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, twice.at));
  CUdeviceptr base = 0;
  size_t size = 0;
  CU(cuMemGetAddressRange(&base, &size, at));
  CHECK(base == mapped.at);
  CHECK(size == bytes);
}

TEST_CASE("virtual memory: what is refused") {
  const Gpu gpu;
  const size_t bytes = granularity(gpu.device);
  CUmemAllocationProp properties = properties_of(gpu.device);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = 0;
  CU_IS(cuMemCreate(&handle, bytes + 4096, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemCreate(&handle, bytes, &properties, 1), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemCreate(&handle, bytes * ((1ull << 46) / bytes), &properties, 0),
        CUDA_ERROR_OUT_OF_MEMORY);
  CU_IS(cuMemAddressReserve(&at, bytes, 3 * bytes, 0, 0), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemAddressReserve(&at, bytes, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
  properties.location.id = 1000;
  CU_FAILS(cuMemCreate(&handle, bytes, &properties, 0));

  const Addresses addresses(4 * bytes);
  const Physical physical(gpu.device, 2 * bytes);
  const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, gpu.device},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CU_FAILS(cuMemMap(addresses.base, bytes, bytes, physical.handle, 0));     // an offset
  CU_FAILS(cuMemMap(addresses.base + 4096, bytes, 0, physical.handle, 0));  // not granular
  CU_FAILS(cuMemMap(addresses.base, 4 * bytes, 0, physical.handle, 0));     // more than there is
  CU_FAILS(cuMemSetAccess(addresses.base, bytes, &access, 1));              // nothing is mapped
  const Mapped mapped(addresses.base, 2 * bytes, physical);
  CU_FAILS(cuMemMap(addresses.base + bytes, 2 * bytes, 0, physical.handle, 0));  // is mapped
  CU_FAILS(cuMemUnmap(addresses.base, bytes));                                   // a part
  CU_FAILS(cuMemSetAccess(addresses.base, 3 * bytes, &access, 1));               // has a gap
  CU_FAILS(cuMemAddressFree(addresses.base, bytes));                             // another size
  const Ints ordinary(16);
  CU_FAILS(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(ordinary.dptr)));
  int descriptor = -1;
  CU_FAILS(cuMemExportToShareableHandle(&descriptor, physical.handle,
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

TEST_CASE("virtual memory: a wish for addresses is granted where they are free") {
  const Gpu gpu;
  const size_t bytes = granularity(gpu.device);
  // Free in any process, and none of the addresses that the driver chooses.
  constexpr CUdeviceptr WISH = 0x0b0000000000;
  CUdeviceptr granted = 0, other = 0;
  CU(cuMemAddressReserve(&granted, bytes, 0, WISH, 0));
  if (granted != WISH) {
    MESSAGE("the driver grants no wishes");
    CU(cuMemAddressFree(granted, bytes));
    return;
  }
  // Nobody else gets them: neither the driver's other reservations nor the program itself.
  CHECK(mmap(reinterpret_cast<void*>(WISH), bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED);
  CU(cuMemAddressReserve(&other, bytes, 0, WISH, 0));
  CHECK(other != WISH);
  CU(cuMemAddressFree(other, bytes));
  const Physical physical(gpu.device, bytes);
  {
    const Mapped mapped(granted, bytes, physical);
    set_access(gpu.device, granted, bytes);
    CU(cuMemsetD32(granted, 6, 64));
    add_one_at(gpu, granted, 64);
    CHECK(read_ints(granted, 64) == std::vector<int>(64, 7));
    int beyond[2] = {};
    CU_IS(cuMemcpy(reinterpret_cast<CUdeviceptr>(beyond), granted + bytes - 4, 8),
          CUDA_ERROR_INVALID_VALUE);
  }
  CU(cuMemAddressFree(granted, bytes));

  void* const taken = mmap(reinterpret_cast<void*>(WISH), bytes, PROT_READ,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  REQUIRE(taken == reinterpret_cast<void*>(WISH));  // free again
  CU(cuMemAddressReserve(&other, bytes, 0, WISH, 0));
  CHECK(other != WISH);
  CU(cuMemAddressFree(other, bytes));
  munmap(taken, bytes);
}

TEST_CASE("virtual memory: threads that make, map and end their own") {
  const Gpu gpu;
  const size_t bytes = granularity(gpu.device);
  std::vector<std::thread> threads;
  std::atomic<int> n_right{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      CU(cuCtxSetCurrent(gpu.context));
      for (int round = 0; round < 8; ++round) {
        const Addresses addresses(2 * bytes);
        Physical physical(gpu.device, bytes);
        const Mapped low(addresses.base, bytes, physical),
            high(addresses.base + bytes, bytes, physical);
        set_access(gpu.device, addresses.base, 2 * bytes);
        physical.release();
        CU(cuMemsetD32(low.at, static_cast<unsigned>(100 * t + round), 16));
        n_right += read_ints(high.at, 16) == std::vector<int>(16, 100 * t + round);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(n_right == 32);
}

TEST_CASE("virtual memory: a captured copy to what was mapped") {
  const Gpu gpu;
  const size_t bytes = granularity(gpu.device);
  const Addresses addresses(2 * bytes);
  const Physical one(gpu.device, bytes), other(gpu.device, bytes);
  const Mapped low(addresses.base, bytes, one), high(addresses.base + bytes, bytes, other);
  set_access(gpu.device, addresses.base, 2 * bytes);
  const CUdeviceptr seam = high.at - 64;
  CU(cuMemsetD32(low.at, 4, 64));
  CUstream stream;
  CUgraph graph;
  CUgraphExec exec;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CU(cuMemcpyDtoDAsync(seam, low.at, 128, stream));
  CU(cuStreamEndCapture(stream, &graph));
  CU(cuGraphInstantiate(&exec, graph, 0));
  CU(cuCtxSynchronize());
  CU(cuGraphLaunch(exec, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(read_ints(seam, 32) == std::vector<int>(32, 4));
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphDestroy(graph));
  CU(cuStreamDestroy(stream));
}

TEST_CASE("error: virtual memory: a copy to what nobody has access to") {
  const Gpu gpu;
  const size_t bytes = granularity(gpu.device);
  const Addresses addresses(bytes);
  const Physical physical(gpu.device, bytes);
  const Mapped mapped(addresses.base, bytes, physical);
  int value = 1;
  CU_FAILS(cuMemcpyHtoD(mapped.at, &value, sizeof value));
}

TEST_CASE("error: virtual memory: a kernel without access") {
  const Gpu gpu;
  const size_t bytes = granularity(gpu.device);
  const Addresses addresses(bytes);
  const Physical physical(gpu.device, bytes);
  const Mapped mapped(addresses.base, bytes, physical);
  CUdeviceptr at = mapped.at;
  launch(gpu.function("write_to"), nullptr, {&at});
  CU_IS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("error: virtual memory: what may only be read is not written") {
  const Gpu gpu;
  const size_t bytes = granularity(gpu.device);
  const Addresses addresses(bytes);
  const Physical physical(gpu.device, bytes);
  const Mapped mapped(addresses.base, bytes, physical);
  set_access(gpu.device, mapped.at, bytes);
  CU(cuMemsetD32(mapped.at, 3, 16));
  CU(cuCtxSynchronize());
  set_access(gpu.device, mapped.at, bytes, CU_MEM_ACCESS_FLAGS_PROT_READ);
  CHECK(access_to(mapped.at, gpu.device) == CU_MEM_ACCESS_FLAGS_PROT_READ);
  const Ints out(1);
  CUdeviceptr from = mapped.at, to = out.dptr;
  launch(gpu.function("copy_int"), nullptr, {&from, &to});
  CHECK(out.read() == std::vector<int>{3});
  launch(gpu.function("copy_int"), nullptr, {&to, &from});
  CU_IS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}
