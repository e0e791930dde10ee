// SPDX-License-Identifier: Apache-2.0
// cuGetExportTable: of the private tables of NVIDIA's driver, those that kvgpu's worker asks the
// driver for or that libraries need beside the runtime. Slot 0 is a table's size in bytes.
#include <array>
#include <cstdlib>
#include <cstring>

#include "api.h"

namespace software_gpu {
namespace {

using Slot = void (*)();

CUresult unused() { return CUDA_ERROR_NOT_SUPPORTED; }

// A floor plan of one cluster: nobody runs machine code of a chip here.
CUresult floor_plan(uint8_t** cluster, uint8_t** index) {
  CUdevice device;
  RETURN_IF_FAILED(cuCtxGetDevice(&device));
  int n_multiprocessors = 0;
  RETURN_IF_FAILED(
      cuDeviceGetAttribute(&n_multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
  const size_t n = static_cast<size_t>(n_multiprocessors + 1) / 2;
  *cluster = static_cast<uint8_t*>(calloc(n, 1));
  *index = static_cast<uint8_t*>(calloc(n, 1));
  if (!*cluster || !*index) return CUDA_ERROR_OUT_OF_MEMORY;
  for (size_t i = 0; i < n; ++i) (*index)[i] = static_cast<uint8_t>(i + 1);
  return CUDA_SUCCESS;
}

CUresult free_floor_plan(uint8_t* cluster, uint8_t* index) {
  free(cluster);
  free(index);
  return CUDA_SUCCESS;
}

template <size_t N>
std::array<Slot, N> table_of(std::initializer_list<std::pair<size_t, Slot>> used) {
  std::array<Slot, N> table;
  table.fill(reinterpret_cast<Slot>(&unused));
  table[0] = reinterpret_cast<Slot>(N * sizeof(Slot));
  for (const auto& [index, function] : used) table[index] = function;
  return table;
}

struct Known {
  unsigned char uuid[16];
  const void* table;
};

}  // namespace

SOFTWARE_GPU_API cuGetExportTable(const void** table, const CUuuid* uuid) {
  static const auto plan = table_of<17>(
      {{4, reinterpret_cast<Slot>(&floor_plan)}, {13, reinterpret_cast<Slot>(&free_floor_plan)}});
  static const Known known[] = {
      {{0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b,
        0xca},
       plan.data()},
  };
  if (!table || !uuid) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  for (const Known& each : known)
    if (!memcmp(each.uuid, uuid->bytes, sizeof each.uuid)) *table = each.table;
  return *table ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace software_gpu
