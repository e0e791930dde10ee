// SPDX-License-Identifier: Apache-2.0
// The private table that nvidia-smi asks for. Its first entry is its size in bytes: of a table that
// is too short for an entry nvidia-smi calls the public function instead.
#include <cstdint>

#include "answers.h"

extern "C" __attribute__((visibility("default"))) nvmlReturn_t nvmlInternalGetExportTable(
    const void** ppExportTable, const void* pExportTableId);

nvmlReturn_t nvmlInternalGetExportTable(const void** ppExportTable, const void* pExportTableId) {
  // Seen in calls of nvidia-smi of driver 580.
  static constexpr uint8_t NVML_INTERNAL[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                                0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
  static const void* const empty[512] = {};
  if (ppExportTable == nullptr || pExportTableId == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *ppExportTable = nullptr;
  if (std::memcmp(pExportTableId, NVML_INTERNAL, sizeof NVML_INTERNAL) != 0) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *ppExportTable = static_cast<const void*>(empty);
  return NVML_SUCCESS;
}
