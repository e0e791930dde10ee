// SPDX-License-Identifier: Apache-2.0
// pinned_copy: what KVGPU_PINNED=copy changes. region_full: needs a region that 4 GiB do not fit
// in.
#include <sys/mman.h>

#include <cstdio>
#include <cstring>

#include "../cases/support.h"

namespace {

constexpr size_t BYTES = 3 << 20;

// The rights and the file of the mapping that holds the address, as /proc/self/maps says.
std::string mapping_of(const void* address) {
  FILE* const maps = std::fopen("/proc/self/maps", "r");
  REQUIRE(maps != nullptr);
  char line[512];
  std::string found;
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long begin, end;
    REQUIRE(std::sscanf(line, "%lx-%lx", &begin, &end) == 2);
    const auto wanted = reinterpret_cast<unsigned long>(address);
    if (wanted >= begin && wanted < end) found = line;
  }
  std::fclose(maps);
  return found;
}

void round_trip(unsigned char* host, size_t bytes) {
  CUstream stream;
  CUdeviceptr device;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuMemAlloc(&device, bytes));
  std::memset(host, 7, bytes);
  CU(cuMemcpyHtoDAsync(device, host, bytes, stream));
  CU(cuMemsetD8Async(device, 8, 1, stream));
  CU(cuMemcpyDtoHAsync(host, device, bytes, stream));
  // The later copy of the same buffer finds what the earlier one brought.
  CU(cuMemcpyHtoDAsync(device, host, bytes, stream));
  CU(cuStreamSynchronize(stream));  // pinned memory is read in place
  std::memset(host, 0, bytes);
  CU(cuMemcpyDtoHAsync(host, device, bytes, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(host[0] == 8);
  CHECK(host[bytes - 1] == 7);
  CU(cuMemFree(device));
  CU(cuStreamDestroy(stream));
}

}  // namespace

// Run on fault_driver with KVGPU_FAULT=cuStreamCreate:1:2, which is the worker's own stream.
TEST_CASE("unprepared: session memory is there after a first context that failed half-way") {
  CU(cuInit(0));
  CUcontext context;
  CU_IS(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY);
  const Gpu gpu;
  unsigned char* host = nullptr;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&host), BYTES, CU_MEMHOSTALLOC_PORTABLE));
  round_trip(host, BYTES);
  CU(cuMemFreeHost(host));
  std::vector<unsigned char> pageable(BYTES);
  round_trip(pageable.data(), BYTES);
}

TEST_CASE("pinned_copy: ordinary pages, right copies, no mapped access") {
  const Gpu gpu;
  unsigned char* host = nullptr;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&host), BYTES, CU_MEMHOSTALLOC_PORTABLE));
  CHECK(mapping_of(host).find("rw-p 00000000 00:00 0") != std::string::npos);
  round_trip(host, BYTES);
  unsigned type = 0;
  CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                           reinterpret_cast<CUdeviceptr>(host)));
  CHECK(type == CU_MEMORYTYPE_HOST);
  CUdeviceptr device = 0;
  CU_IS(cuMemHostGetDevicePointer(&device, host, 0), CUDA_ERROR_NOT_SUPPORTED);
  CU(cuMemFreeHost(host));
  CHECK(mapping_of(host).find("rw-p") == std::string::npos);
  void* mapped = nullptr;
  CU_IS(cuMemHostAlloc(&mapped, BYTES, CU_MEMHOSTALLOC_DEVICEMAP), CUDA_ERROR_NOT_SUPPORTED);
  std::vector<unsigned char> own(BYTES);
  CU_IS(cuMemHostRegister(own.data(), BYTES, CU_MEMHOSTREGISTER_DEVICEMAP),
        CUDA_ERROR_NOT_SUPPORTED);
  CU(cuMemHostRegister(own.data(), BYTES, 0));
  CHECK(mapping_of(own.data() + BYTES / 2).find("rw-p 00000000 00:00 0") != std::string::npos);
  round_trip(own.data(), BYTES);
  CU(cuMemHostUnregister(own.data()));
}

TEST_CASE("region_full: out of memory, and room again after freeing") {
  const Gpu gpu;
  constexpr size_t PIECE = 32 << 20;
  for (int round = 0; round < 2; ++round) {
    std::vector<void*> pieces;
    CUresult result = CUDA_SUCCESS;
    while (result == CUDA_SUCCESS && pieces.size() < 128) {
      void* piece = nullptr;
      result = cuMemHostAlloc(&piece, PIECE, 0);
      if (result == CUDA_SUCCESS) pieces.push_back(piece);
    }
    CU_IS(result, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(pieces.size() >= 4);
    void* const own = mmap(nullptr, PIECE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(own != MAP_FAILED);
    CU_IS(cuMemHostRegister(own, PIECE, 0), CUDA_ERROR_OUT_OF_MEMORY);
    // Copies do not need the heap.
    round_trip(static_cast<unsigned char*>(own), PIECE);
    for (void* piece : pieces) CU(cuMemFreeHost(piece));
    CU(cuMemHostRegister(own, PIECE, 0));
    round_trip(static_cast<unsigned char*>(own), PIECE);
    CU(cuMemHostUnregister(own));
    REQUIRE(munmap(own, PIECE) == 0);
  }
}
