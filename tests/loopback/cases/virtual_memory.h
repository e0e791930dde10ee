// SPDX-License-Identifier: Apache-2.0
// Physical memory, addresses and mappings that go with their scope.
#pragma once

#include "support.h"

// Refused, by whatever code.
#define CU_FAILS(call) CHECK_MESSAGE((call) != CUDA_SUCCESS, #call)

CUmemAllocationProp properties_of(CUdevice device,
                                  CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_NONE);
size_t granularity(CUdevice device);
void set_access(CUdevice device, CUdeviceptr at, size_t bytes,
                CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

struct Physical {
  Physical(CUdevice device, size_t bytes, CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_NONE);
  ~Physical() { release(); }
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;
  void release();
  CUmemGenericAllocationHandle handle = 0;
};

struct Addresses {
  explicit Addresses(size_t bytes, size_t alignment = 0);
  ~Addresses() { cuMemAddressFree(base, bytes); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  CUdeviceptr base = 0;
  const size_t bytes;
};

struct Mapped {
  Mapped(CUdeviceptr at, size_t bytes, const Physical& physical);
  ~Mapped() { cuMemUnmap(at, bytes); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  const CUdeviceptr at;
  const size_t bytes;
};

std::vector<int> read_ints(CUdeviceptr at, size_t n);
