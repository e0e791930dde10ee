// SPDX-License-Identifier: Apache-2.0
// The private table that nvidia-smi asks for: what it has no public function for, or does not use
// one for. Entries, and what they take, as seen in calls of nvidia-smi 580.159 on an H200.
#include <algorithm>
#include <array>
#include <cstdint>

#include "answers.h"

extern "C" __attribute__((visibility("default"))) nvmlReturn_t
nvmlInternalGetExportTable(const void** ppExportTable, const void* pExportTableId);

namespace kvgpu::nvml {

namespace {

constexpr uint8_t NVML_INTERNAL[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                       0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
constexpr size_t N_ENTRIES = 270;  // of 580

enum Entry : size_t {
  SIZE_BYTES = 0,  // of the table: nvidia-smi calls no entry beyond
  COMMON_ANCESTOR = 23,
  NOTE = 26,  // called around each answer, with texts; nothing depends on it
  BEFORE_MONITORS =
      72,  // of each device before dmon and pmon: 0 or an error means that it has neither
  HANDLE_BY_INDEX = 81,
  COMPUTE_PROCESSES = 213,
  GRAPHICS_PROCESSES = 214,
  MPS_PROCESSES = 215,
};

struct ProcessEntry {
  uint32_t pid;
  uint64_t used_bytes;
  uint32_t gpu_instance, compute_instance;
  uint64_t protected_bytes;
  char name[4096];
};
static_assert(sizeof(ProcessEntry) == 4128);

nvmlReturn_t not_supported() { return NVML_ERROR_NOT_SUPPORTED; }
nvmlReturn_t take_note() { return NVML_SUCCESS; }

// The way between two devices: PIX, PXB, PHB, NODE, SYS. As nvidia-smi 550 and 580 ask for it and
// number it.
nvmlReturn_t common_ancestor(const char* bus_id1, const char* bus_id2, unsigned* way) {
  nvmlDevice_t device1 = nullptr, device2 = nullptr;
  if (way == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (const nvmlReturn_t bad = nvmlDeviceGetHandleByPciBusId_v2(bus_id1, &device1)) return bad;
  if (const nvmlReturn_t bad = nvmlDeviceGetHandleByPciBusId_v2(bus_id2, &device2)) return bad;
  nvmlGpuTopologyLevel_t level = NVML_TOPOLOGY_INTERNAL;
  if (const nvmlReturn_t bad = nvmlDeviceGetTopologyCommonAncestor(device1, device2, &level)) {
    return bad;
  }
  constexpr nvmlGpuTopologyLevel_t WAYS[] = {NVML_TOPOLOGY_SINGLE, NVML_TOPOLOGY_MULTIPLE,
                                             NVML_TOPOLOGY_HOSTBRIDGE, NVML_TOPOLOGY_NODE};
  *way = static_cast<unsigned>(std::ranges::lower_bound(WAYS, level) - WAYS);
  return NVML_SUCCESS;
}

nvmlReturn_t before_monitors(nvmlDevice_t device, unsigned* out) { return answer(device, out, 1); }

nvmlReturn_t compute_processes(nvmlDevice_t device, unsigned* count, ProcessEntry* entries) {
  if (count == nullptr || entries == nullptr) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  std::shared_ptr<const Report> report;
  if (const nvmlReturn_t bad = Library::get().report(device, Freshness::NOW, &report)) return bad;
  const size_t n = std::min<size_t>(*count, report->processes.size());
  for (size_t i = 0; i < n; ++i) {
    const control::DeviceProcess& process = report->processes[i];
    ProcessEntry& entry = entries[i];
    entry = {process.pid, process.used_bytes, ~0u, ~0u, 0, {}};
    (void)nvmlSystemGetProcessName(process.pid, entry.name, sizeof entry.name);
  }
  *count = static_cast<unsigned>(n);
  return NVML_SUCCESS;
}

nvmlReturn_t no_processes(nvmlDevice_t device, unsigned* count) { return answer(device, count, 0); }

template <typename Function>
const void* address(Function* function) {
  return reinterpret_cast<const void*>(function);
}

std::array<const void*, N_ENTRIES> make_table() {
  std::array<const void*, N_ENTRIES> table;
  table.fill(address(&not_supported));
  table[SIZE_BYTES] = reinterpret_cast<const void*>(sizeof table);
  table[COMMON_ANCESTOR] = address(&common_ancestor);
  table[NOTE] = address(&take_note);
  table[BEFORE_MONITORS] = address(&before_monitors);
  table[HANDLE_BY_INDEX] = address(&nvmlDeviceGetHandleByIndex_v2);
  table[COMPUTE_PROCESSES] = address(&compute_processes);
  table[GRAPHICS_PROCESSES] = address(&no_processes);
  table[MPS_PROCESSES] = address(&no_processes);
  return table;
}

}  // namespace

}  // namespace kvgpu::nvml

nvmlReturn_t nvmlInternalGetExportTable(const void** ppExportTable, const void* pExportTableId) {
  using namespace kvgpu::nvml;
  if (ppExportTable == nullptr || pExportTableId == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *ppExportTable = nullptr;
  if (std::memcmp(pExportTableId, NVML_INTERNAL, sizeof NVML_INTERNAL) != 0) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  static const auto table = make_table();
  *ppExportTable = static_cast<const void*>(table.data());
  return NVML_SUCCESS;
}
