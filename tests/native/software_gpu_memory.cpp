// SPDX-License-Identifier: Apache-2.0
// The memory of the software GPU where no real driver can be compared with: mappings that change
// beneath running kernels, and a process that may not make files.
#include <sys/resource.h>

#include <atomic>

#include "software_gpu_test.h"

using namespace software_gpu_test;

namespace {

constexpr size_t GRANULE_BYTES = 2 << 20;

// Reads from `at` until the gate opens.
const std::string READ_ON = R"(
.visible .entry k(.param .u64 at, .param .u64 gate) {
  .reg .b64 %rd<3>; .reg .b32 %r<3>; .reg .pred %p;
  ld.param.u64 %rd1, [at]; ld.param.u64 %rd2, [gate];
again:
  ld.volatile.global.u32 %r1, [%rd1];
  st.volatile.global.u32 [%rd2+4], %r1;
  ld.volatile.global.u32 %r2, [%rd2];
  setp.eq.u32 %p, %r2, 0;
  @%p bra again;
  ret;
})";

CUmemGenericAllocationHandle create(size_t n_bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle = 0;
  CU(cuMemCreate(&handle, n_bytes, &properties, 0));
  return handle;
}

CUdeviceptr reserve(size_t n_bytes) {
  CUdeviceptr base = 0;
  CU(cuMemAddressReserve(&base, n_bytes, 0, 0, 0));
  return base;
}

/// Maps new memory that begins with `value`.
void map(CUdeviceptr at, uint32_t value) {
  const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const CUmemGenericAllocationHandle handle = create(GRANULE_BYTES);
  CU(cuMemMap(at, GRANULE_BYTES, 0, handle, 0));
  CU(cuMemRelease(handle));
  CU(cuMemSetAccess(at, GRANULE_BYTES, &access, 1));
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamWriteValue32(stream, at, value, 0));  // as atomic as the kernel's loads
  CU(cuStreamSynchronize(stream));
  CU(cuStreamDestroy(stream));
}

}  // namespace

// The first case, as files that are there stay in use.
TEST_CASE("memory without files is not shared, and otherwise the same") {
  Gpu gpu;
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit little = {1 << 20, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &little) == 0);
  const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const size_t n_bytes = 2 * GRANULE_BYTES;
  const CUmemGenericAllocationHandle handle = create(n_bytes);
  const CUdeviceptr base = reserve(2 * n_bytes);
  CU(cuMemMap(base, n_bytes, 0, handle, 0));
  CU(cuMemMap(base + n_bytes, n_bytes, 0, handle, 0));
  CU(cuMemRelease(handle));
  CU(cuMemSetAccess(base, 2 * n_bytes, &access, 1));
  CUdeviceptr large = 0, small = 0;
  CU(cuMemAlloc(&large, n_bytes));
  CU(cuMemAlloc(&small, 4096));
  CUipcMemHandle shared{};
  CHECK_EQ(cuIpcGetMemHandle(&shared, large), CUDA_ERROR_NOT_SUPPORTED);
  CHECK_EQ(cuIpcGetMemHandle(&shared, small), CUDA_SUCCESS);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);

  uint32_t value = 0;
  CU(cuMemsetD32(base + n_bytes - 8, 6, 2));  // the last of the first mapping
  CU(cuMemcpyDtoH(&value, base + 2 * n_bytes - 4, 4));
  CHECK_EQ(value, 6);
  CU(cuMemUnmap(base, 2 * n_bytes));
  CU(cuMemAddressFree(base, 2 * n_bytes));
  CU(cuMemFree(large));
  CU(cuMemFree(small));
}

TEST_CASE("what is unmapped and mapped anew beneath a running kernel hurts nobody") {
  Gpu gpu;
  const CUdeviceptr at = reserve(GRANULE_BYTES);
  std::atomic<uint32_t>* words;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&words), 8, 0));
  words[0] = words[1] = 0;
  const CUfunction function = gpu.kernel(READ_ON);
  map(at, 1);
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(gpu.launch(function, 1, 1, stream, at, reinterpret_cast<CUdeviceptr>(words)));
  while (words[1] != 1) continue;
  CU(cuMemUnmap(at, GRANULE_BYTES));
  map(at, 2);
  while (words[1] != 2) continue;
  CU(cuMemUnmap(at, GRANULE_BYTES));
  while (words[1] != 1) continue;  // stale bytes, but bytes
  CU(cuMemAddressFree(at, GRANULE_BYTES));
  words[0] = 1;
  CU(cuStreamSynchronize(stream));
  CU(cuStreamDestroy(stream));
  CU(cuMemFreeHost(words));
}
