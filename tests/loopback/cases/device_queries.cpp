// SPDX-License-Identifier: Apache-2.0
// What is seldom asked of devices and drivers: old properties, atomics, the error log.
#include <cstring>

#include "support.h"

// What CUDA 13.0 calls deprecated is still called by programs.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

TEST_CASE("device: the old properties are the attributes") {
  const Gpu gpu;
  CUdevprop p{};
  CU(cuDeviceGetProperties(&p, gpu.device));
  const auto attribute = [&](CUdevice_attribute id) {
    int value = 0;
    CU(cuDeviceGetAttribute(&value, id, gpu.device));
    return value;
  };
  CHECK(p.maxThreadsPerBlock == attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
  CHECK(p.maxThreadsDim[2] == attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z));
  CHECK(p.maxGridSize[0] == attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X));
  CHECK(p.sharedMemPerBlock == attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK));
  CHECK(p.SIMDWidth == attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE));
  CHECK(p.regsPerBlock == attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK));
  CU_IS(cuDeviceGetProperties(&p, 999), CUDA_ERROR_INVALID_DEVICE);
}

TEST_CASE("device: atomic operations between device and host") {
  const Gpu gpu;
  const CUatomicOperation known[] = {CU_ATOMIC_OPERATION_INTEGER_ADD, CU_ATOMIC_OPERATION_CAS};
  const CUatomicOperation unknown = CU_ATOMIC_OPERATION_MAX;
  unsigned found[2] = {~0u, ~0u};
  CU(cuDeviceGetHostAtomicCapabilities(found, known, 2, gpu.device));
  CHECK(found[0] < CU_ATOMIC_CAPABILITY_VECTOR_32x4 * 2);
  CHECK(found[1] < CU_ATOMIC_CAPABILITY_VECTOR_32x4 * 2);
  CU_IS(cuDeviceGetHostAtomicCapabilities(found, known, 0, gpu.device), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuDeviceGetHostAtomicCapabilities(found, &unknown, 1, gpu.device),
        CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuDeviceGetHostAtomicCapabilities(found, known, 2, 999), CUDA_ERROR_INVALID_DEVICE);
}

TEST_CASE("library: no unified function of a name that there is not") {
  const Gpu gpu;
  CUlibrary library = nullptr;
  CU(cuLibraryLoadData(&library, kernels_ptx(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  void* function = nullptr;
  CHECK(cuLibraryGetUnifiedFunction(&function, library, "nowhere") != CUDA_SUCCESS);
  CU(cuLibraryUnload(library));
}

TEST_CASE("log: messages are read from where one stands") {
  const Gpu gpu;
  CUlogIterator here = 0;
  CU_IS(cuLogsCurrent(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  int n_messages = 0;
  CUlogsCallbackHandle callback = nullptr;
  CU(cuLogsRegisterCallback(
      [](void* data, CUlogLevel, char* message, size_t length) {
        CHECK(message != nullptr);
        CHECK(length > 0);
        ++*static_cast<int*>(data);
      },
      &n_messages, &callback));
  CU(cuLogsCurrent(&here, 0));
  std::vector<char> text(25600, 'x');
  size_t n_bytes = text.size();
  CU(cuLogsDumpToMemory(&here, text.data(), &n_bytes, 0));
  CHECK(n_bytes == 0);
  CUmodule module;
  CHECK(cuModuleLoadData(&module, ".version 7.0\n.target sm_80\nnonsense") != CUDA_SUCCESS);
  n_bytes = text.size();
  CU(cuLogsDumpToMemory(&here, text.data(), &n_bytes, 0));
  CHECK(n_bytes == std::strlen(text.data()));
  CHECK((n_bytes > 0) == (n_messages > 0));
  CU(cuLogsUnregisterCallback(callback));
}
