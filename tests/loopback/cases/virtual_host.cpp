// SPDX-License-Identifier: Apache-2.0
// Virtual memory management of host memory, which the program and kernels see at one address.
#include <unistd.h>

#include <numeric>

#include "other_process.h"
#include "virtual_memory.h"

namespace {

constexpr int N = 256;
constexpr CUmemLocation NODE = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};

CUmemAllocationProp host_properties(int type = CU_MEM_HANDLE_TYPE_NONE) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(type);
  properties.location = NODE;
  return properties;
}

// Not where guest and host share no memory; the attribute says so.
bool is_served(const Gpu& gpu) {
  int served = 0;
  CU(cuDeviceGetAttribute(
      &served, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, gpu.device));
  const CUmemAllocationProp properties = host_properties();
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = cuMemCreate(&handle, granularity(gpu.device), &properties, 0);
  CHECK(result == (served == 1 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED));
  if (result == CUDA_SUCCESS) CU(cuMemRelease(handle));
  return result == CUDA_SUCCESS;
}

CUmemGenericAllocationHandle make_host_memory(size_t bytes, int type = CU_MEM_HANDLE_TYPE_NONE) {
  const CUmemAllocationProp properties = host_properties(type);
  CUmemGenericAllocationHandle handle = 0;
  CU(cuMemCreate(&handle, bytes, &properties, 0));
  return handle;
}

CUresult let_host(CUdeviceptr at, size_t bytes) {
  const CUmemAccessDesc access = {NODE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return cuMemSetAccess(at, bytes, &access, 1);
}

// Mapped whole, for the device and the host.
struct Shared {
  Shared(const Gpu& gpu, CUdeviceptr at_, size_t bytes_, CUmemGenericAllocationHandle handle)
      : at(at_), bytes(bytes_), ints(reinterpret_cast<int*>(at_)) {
    CU(cuMemMap(at, bytes, 0, handle, 0));
    set_access(gpu.device, at, bytes);
    CU(let_host(at, bytes));
  }
  ~Shared() { cuMemUnmap(at, bytes); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  const CUdeviceptr at;
  const size_t bytes;
  int* const ints;
};

void add_one(const Gpu& gpu, CUdeviceptr at) {
  int n = N;
  launch(gpu.function("add_one"), nullptr, {&at, &n}, static_cast<unsigned>(n));
  CU(cuCtxSynchronize());
}

}  // namespace

TEST_CASE("virtual memory: the host's, for program and kernels") {
  const Gpu gpu;
  if (!is_served(gpu)) return;
  const size_t bytes = granularity(gpu.device);
  const CUmemGenericAllocationHandle handle = make_host_memory(bytes);
  const Addresses one(bytes), other(bytes);
  const Shared here(gpu, one.base, bytes, handle);
  std::iota(here.ints, here.ints + N, 0);
  add_one(gpu, here.at);
  CHECK(here.ints[N - 1] == N);
  {
    const Shared there(gpu, other.base, bytes, handle);
    CHECK(there.ints[1] == 2);
    add_one(gpu, there.at);
  }
  CHECK(here.ints[1] == 3);

  CUmemAllocationProp properties{};
  CU(cuMemGetAllocationPropertiesFromHandle(&properties, handle));
  CHECK(properties.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA);
  CHECK(properties.location.id == 0);
  CUmemGenericAllocationHandle again = 0;
  CU(cuMemRetainAllocationHandle(&again, here.ints));
  CHECK(again == handle);
  CU(cuMemRelease(again));
  CU(cuMemRelease(handle));  // what is mapped stays
  CHECK(read_ints(here.at, 2) == std::vector<int>{2, 3});
  unsigned long long flags = 0;
  CU(cuMemGetAccess(&flags, &NODE, here.at));
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

TEST_CASE("virtual memory: copies of the host's") {
  const Gpu gpu;
  if (!is_served(gpu)) return;
  const size_t bytes = granularity(gpu.device);
  const CUmemGenericAllocationHandle handle = make_host_memory(bytes);
  const Addresses addresses(bytes);
  const Shared shared(gpu, addresses.base, bytes, handle);
  CU(cuMemRelease(handle));
  CUdeviceptr device = 0;
  CU(cuMemAlloc(&device, bytes));
  shared.ints[0] = 11;
  CU(cuMemcpyHtoD(device, shared.ints, bytes));
  CU(cuMemsetD32(shared.at, 12, bytes / sizeof(int)));
  CU(cuCtxSynchronize());
  CHECK(shared.ints[bytes / sizeof(int) - 1] == 12);
  CU(cuMemcpyDtoH(shared.ints, device, bytes));
  CHECK(shared.ints[0] == 11);
  CU(cuMemcpyDtoD(shared.at + 64, device, 4));
  CU(cuMemcpy(shared.at + 128, device, 4));
  CU(cuCtxSynchronize());
  CHECK(shared.ints[16] == 11);
  CHECK(shared.ints[32] == 11);
  CU(cuMemFree(device));
}

TEST_CASE("virtual memory: the host's beside a device's") {
  const Gpu gpu;
  if (!is_served(gpu)) return;
  const size_t bytes = granularity(gpu.device);
  const Addresses addresses(3 * bytes);
  const Physical physical(gpu.device, bytes);
  const CUmemGenericAllocationHandle handle = make_host_memory(bytes);
  const CUdeviceptr middle = addresses.base + bytes;
  {
    const Mapped before(addresses.base, bytes, physical);
    const Shared shared(gpu, middle, bytes, handle);
    CU_FAILS(cuMemMap(middle, bytes, 0, physical.handle, 0));
    CU_FAILS(cuMemAddressFree(addresses.base, addresses.bytes));
    CU_FAILS(let_host(addresses.base, bytes));
    set_access(gpu.device, addresses.base, 2 * bytes);
    CU(cuMemsetD32(addresses.base, 5, N));
    CU(cuMemcpyDtoD(middle, addresses.base, N * sizeof(int)));
    add_one(gpu, middle);
    CHECK(shared.ints[N - 1] == 6);
  }
  CU(cuMemRelease(handle));
  const Mapped mapped(middle, bytes, physical);  // as if nothing else had ever been there
  set_access(gpu.device, middle, bytes);
  add_one(gpu, middle);
  CHECK(read_ints(middle, N) == std::vector<int>(N, 6));
}

TEST_CASE("virtual memory: what the host does not give") {
  const Gpu gpu;
  if (!is_served(gpu)) return;
  const size_t bytes = granularity(gpu.device);
  CUmemGenericAllocationHandle handle = 0;
  const auto create = [&](CUmemAllocationProp properties, size_t n) {
    return cuMemCreate(&handle, n, &properties, 0);
  };
  CUmemAllocationProp properties = host_properties();
  CHECK(create(properties, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(properties, 4096) == CUDA_ERROR_INVALID_VALUE);
  properties.location.id = 77;
  CHECK(create(properties, bytes) == CUDA_ERROR_INVALID_VALUE);
  properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0};
  CHECK(create(properties, bytes) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(host_properties(CU_MEM_HANDLE_TYPE_WIN32), bytes) == CUDA_ERROR_INVALID_VALUE);
  CHECK(create(host_properties(CU_MEM_HANDLE_TYPE_FABRIC), bytes) == CUDA_ERROR_NOT_PERMITTED);
  properties = host_properties(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST;
  CHECK(create(properties, bytes) == CUDA_ERROR_INVALID_VALUE);
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  CU(create(properties, bytes));
  int descriptor = -1;
  CHECK(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                     0) == CUDA_ERROR_INVALID_VALUE);
  CU(cuMemRelease(handle));
}

TEST_CASE("sharing: the host's memory between processes") {
  const Gpu gpu;
  if (!is_served(gpu)) return;
  const size_t bytes = granularity(gpu.device);
  OtherProcess other("other process: the host's memory");
  const CUmemGenericAllocationHandle handle =
      make_host_memory(bytes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  int descriptor = -1;
  CU(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                  0));
  const Addresses addresses(bytes);
  {
    const Shared shared(gpu, addresses.base, bytes, handle);
    CU(cuMemRelease(handle));
    shared.ints[0] = 20;
    send_descriptor(other.socket(), descriptor);
    close(descriptor);
    REQUIRE(receive<int>(other.socket()) == 1);
    CHECK(shared.ints[0] == 21);
    add_one(gpu, shared.at);
  }
  // This process has none of it any more: what is made now is made of other memory.
  const CUmemGenericAllocationHandle fresh = make_host_memory(bytes);
  const Shared shared(gpu, addresses.base, bytes, fresh);
  CU(cuMemRelease(fresh));
  CHECK(shared.ints[0] == 0);
  send(other.socket(), 2);
  other.finish();
  CHECK(shared.ints[0] == 0);
}

TEST_CASE("other process: the host's memory" * doctest::skip()) {
  const Gpu gpu;
  const size_t bytes = granularity(gpu.device);
  const int socket = socket_to_first_process();
  const int descriptor = receive_descriptor(socket);
  CUmemGenericAllocationHandle handles[2] = {};
  for (CUmemGenericAllocationHandle& handle : handles) {
    auto* const shareable = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
    CU(cuMemImportFromShareableHandle(&handle, shareable,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  }
  close(descriptor);
  CU(cuMemRelease(handles[0]));
  const Addresses addresses(bytes);
  const Shared shared(gpu, addresses.base, bytes, handles[1]);
  CU(cuMemRelease(handles[1]));
  CHECK(shared.ints[0] == 20);
  add_one(gpu, shared.at);
  send(socket, 1);
  REQUIRE(receive<int>(socket) == 2);
  CHECK(shared.ints[0] == 22);
  shared.ints[0] = 99;
}
