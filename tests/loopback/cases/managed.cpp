// SPDX-License-Identifier: Apache-2.0
// Managed memory: one pointer for the host and all devices, and advice about it.
#include "managed.h"

#include <cstring>
#include <thread>

namespace {

constexpr size_t BYTES = 1 << 20;

constexpr char MANAGED_VARIABLE[] = R"(
.version 7.0
.target sm_80
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 total = 40;
.visible .global .attribute(.managed) .align 4 .u32 beside = 7;
.visible .global .align 4 .u32 ordinary = 1;
.visible .entry add_ordinary()
{
  .reg .u32 %r<4>;
  ld.global.u32 %r1, [total];
  ld.global.u32 %r2, [ordinary];
  add.u32 %r3, %r1, %r2;
  st.global.u32 [total], %r3;
  ret;
}
)";

template <class T>
T range_attribute(CUmem_range_attribute which, CUdeviceptr at, size_t bytes) {
  T value{};
  CU(cuMemRangeGetAttribute(&value, sizeof value, which, at, bytes));
  return value;
}

}  // namespace

TEST_CASE("managed memory: the host and kernels use one pointer") {
  const Gpu gpu;
  int has_managed_memory = 0;
  CU(cuDeviceGetAttribute(&has_managed_memory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, gpu.device));
  CHECK(has_managed_memory == 1);
  const Managed managed(BYTES);
  memset(managed.ints(), 0, BYTES);
  managed.ints()[3] = 5;
  CUdeviceptr at = managed.at;
  int n = 16;
  launch(gpu.function("add_one"), nullptr, {&at, &n}, 16);
  CU(cuCtxSynchronize());
  CHECK(managed.ints()[3] == 6);
  CHECK(managed.ints()[15] == 1);
  CHECK(managed.ints()[16] == 0);
  CU(cuMemsetD32(at, 9, 4));
  CU(cuCtxSynchronize());
  CHECK(managed.ints()[3] == 9);
  unsigned is_managed = 0, type = 0;
  CUdeviceptr of_device = 0;
  CU(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at));
  CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
  CU(cuPointerGetAttribute(&of_device, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at));
  unsigned waits = 0;
  CU(cuPointerGetAttribute(&waits, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at));
  CHECK(waits == 1);
  CHECK(is_managed == 1);
  CHECK(type == CU_MEMORYTYPE_DEVICE);
  CHECK(of_device == at);
  CU_IS(cuMemAllocManaged(&at, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemAllocManaged(&at, 64, CU_MEM_ATTACH_SINGLE), CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("managed memory: managed variables") {
  const Gpu gpu;
  CUlibrary library = nullptr;
  CU(cuLibraryLoadData(&library, MANAGED_VARIABLE, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUdeviceptr total = 0, ordinary = 0;
  size_t bytes = 0;
  CU(cuLibraryGetManaged(&total, &bytes, library, "total"));
  CHECK(bytes == 4);
  CU_IS(cuLibraryGetManaged(&ordinary, &bytes, library, "absent"), CUDA_ERROR_NOT_FOUND);
  std::thread([&] {  // which has no context
    CU_IS(cuLibraryGetManaged(&ordinary, &bytes, library, "total"), CUDA_SUCCESS);
    CHECK(ordinary == total);
  })
      .join();
  CUkernel kernel = nullptr;
  CU(cuLibraryGetKernel(&kernel, library, "add_ordinary"));
  CUcontext context = gpu.context;
  CU(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, total));
  CHECK(context == nullptr);
  CU_IS(cuMemFree(total), CUDA_ERROR_INVALID_VALUE);
  CHECK(*reinterpret_cast<int*>(total) == 40);
  CU(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr,
                    nullptr));
  CU(cuCtxSynchronize());
  CHECK(*reinterpret_cast<int*>(total) == 41);
  // On the same page, and looked up when the program has written there.
  *reinterpret_cast<int*>(total) = 50;
  CU(cuLibraryGetManaged(&ordinary, &bytes, library, "beside"));
  CHECK(*reinterpret_cast<int*>(ordinary) == 7);
  CHECK(*reinterpret_cast<int*>(total) == 50);
  CU(cuLibraryUnload(library));
}

TEST_CASE("managed memory: managed variables before there is a context") {
  CU(cuInit(0));
  CUlibrary library = nullptr;
  CUdeviceptr total = 0;
  std::thread([&] {  // the cases before this one have left a context to the main one
    size_t bytes = 0;
    CU(cuLibraryLoadData(&library, MANAGED_VARIABLE, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CU(cuLibraryGetManaged(&total, &bytes, library, "total"));
    CHECK(bytes == 4);
  })
      .join();
  const Gpu gpu;
  CHECK(*reinterpret_cast<int*>(total) == 40);
  CU(cuLibraryUnload(library));
}

TEST_CASE("managed memory: advice is kept, for whole ranges") {
  const Gpu gpu;
  const Managed managed(BYTES);
  const CUdeviceptr at = managed.at, half = at + BYTES / 2;
  const CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device},
                      host = {CU_MEM_LOCATION_TYPE_HOST, 0};
  const auto preferred = [&](CUdeviceptr from, size_t bytes) {
    return range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, from, bytes);
  };
  CHECK(preferred(at, BYTES) == CU_DEVICE_INVALID);
  CU(cuMemAdvise(at, BYTES, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device));
  CHECK(preferred(at, BYTES) == gpu.device);
  CU(cuMemAdvise(half, BYTES / 2, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
  CHECK(preferred(at, BYTES) == CU_DEVICE_INVALID);
  CHECK(preferred(at, BYTES / 2) == gpu.device);
  CHECK(preferred(half, BYTES / 2) == CU_DEVICE_CPU);
  CHECK(range_attribute<CUmemLocationType>(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, half,
                                           BYTES / 2) == CU_MEM_LOCATION_TYPE_HOST);
  CU(cuMemAdvise(at, BYTES, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, device));
  CHECK(preferred(half, BYTES / 2) == CU_DEVICE_INVALID);

  const auto read_mostly = [&](size_t bytes) {
    return range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at, bytes);
  };
  CU(cuMemAdvise(at, BYTES / 2, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
  CHECK(read_mostly(BYTES / 2) == 1);
  CHECK(read_mostly(BYTES) == 0);

  int devices[3] = {7, 7, 7};
  CU(cuMemAdvise(at, BYTES, CU_MEM_ADVISE_SET_ACCESSED_BY, device));
  CU(cuMemRangeGetAttribute(devices, sizeof devices, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, at,
                            BYTES));
  CHECK(devices[0] == gpu.device);
  CHECK(devices[1] == CU_DEVICE_INVALID);
  CU(cuMemAdvise(at, BYTES, CU_MEM_ADVISE_SET_ACCESSED_BY, host));
  CU(cuMemAdvise(at, BYTES, CU_MEM_ADVISE_UNSET_ACCESSED_BY, device));
  CHECK(range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, at, BYTES) == CU_DEVICE_CPU);

  const auto preferred_id = [&] {
    return range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID, at, BYTES);
  };
  const CUmemLocation node = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}, none = {},
                      absent = {CU_MEM_LOCATION_TYPE_DEVICE, 99};
  CHECK(preferred_id() == CU_DEVICE_INVALID);
  CU(cuMemAdvise(at, BYTES, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, node));
  CHECK(preferred(at, BYTES) == CU_DEVICE_INVALID);  // of a node nothing is kept
  CU(cuMemAdvise(at, BYTES, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
  CU(cuMemAdvise(at, BYTES, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, node));
  CHECK(preferred(at, BYTES) == CU_DEVICE_CPU);
  CHECK(preferred_id() == CU_DEVICE_CPU);
  CU_IS(cuMemAdvise(at, BYTES, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, absent),
        CUDA_ERROR_INVALID_VALUE);
  CU(cuMemAdvise(at, BYTES, CU_MEM_ADVISE_SET_READ_MOSTLY, absent));  // not looked at
  CU_IS(cuMemAdvise(at, BYTES, CU_MEM_ADVISE_SET_READ_MOSTLY, none), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemAdvise(at, BYTES, CU_MEM_ADVISE_SET_ACCESSED_BY, node), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemAdvise(at, BYTES + 1, CU_MEM_ADVISE_SET_READ_MOSTLY, device),
        CUDA_ERROR_INVALID_VALUE);
  const Ints ordinary(16);
  CU_IS(cuMemAdvise(ordinary.dptr, 64, CU_MEM_ADVISE_SET_READ_MOSTLY, device),
        CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("managed memory: prefetches and discards, alone and in batches") {
  const Gpu gpu;
  const Managed one(BYTES), other(BYTES);
  const CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device},
                      host = {CU_MEM_LOCATION_TYPE_HOST, 0};
  const auto prefetched_to = [&](const Managed& managed) {
    return range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, managed.at, BYTES);
  };
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  memset(one.ints(), 1, BYTES);
  CHECK(prefetched_to(one) == CU_DEVICE_INVALID);
  CU(cuMemPrefetchAsync(one.at, BYTES, device, 0, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(prefetched_to(one) == gpu.device);
  CHECK(one.ints()[BYTES / 8] == 0x01010101);

  CUdeviceptr pointers[] = {one.at, other.at};
  size_t sizes[] = {BYTES, BYTES}, first[] = {0, 1}, wrong[] = {1, 2};
  CUmemLocation to[] = {host, device};
  CU(cuMemPrefetchBatchAsync(pointers, sizes, 2, to, first, 2, 0, stream));
  CHECK(prefetched_to(one) == CU_DEVICE_CPU);
  CHECK(prefetched_to(other) == gpu.device);
  CU_FAILS(cuMemPrefetchBatchAsync(pointers, sizes, 2, to, wrong, 2, 0, stream));
  CU_FAILS(cuMemPrefetchBatchAsync(pointers, sizes, 2, to, first, 2, 0, nullptr));

  CU(cuMemDiscardBatchAsync(pointers, sizes, 1, 0, stream));
  CU(cuMemsetD32Async(one.at, 3, BYTES / 4, stream));  // written anew, it is there again
  CU(cuMemDiscardAndPrefetchBatchAsync(pointers + 1, sizes, 1, to, first, 1, 0, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(one.ints()[BYTES / 8] == 3);
  CHECK(prefetched_to(other) == CU_DEVICE_CPU);
  CU(cuStreamAttachMemAsync(stream, one.at, 0, CU_MEM_ATTACH_GLOBAL));
  CU_FAILS(cuStreamAttachMemAsync(nullptr, one.at, 0, CU_MEM_ATTACH_SINGLE));
  CU(cuStreamSynchronize(stream));
  CU(cuStreamDestroy(stream));
}

TEST_CASE("managed memory: what is freed is gone") {
  const Gpu gpu;
  const CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device};
  CUdeviceptr at = 0;
  CU(cuMemAllocManaged(&at, BYTES, CU_MEM_ATTACH_GLOBAL));
  CU_IS(cuMemFree(at + 4096), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemFreeAsync(at, nullptr), CUDA_ERROR_NOT_SUPPORTED);
  CU(cuMemFree(at));
  CU_IS(cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemsetD32(at, 1, 4), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemAdvise(at, BYTES, CU_MEM_ADVISE_SET_READ_MOSTLY, device), CUDA_ERROR_INVALID_VALUE);
  unsigned is_managed = 0;
  CU_IS(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at),
        CUDA_ERROR_INVALID_VALUE);
}
