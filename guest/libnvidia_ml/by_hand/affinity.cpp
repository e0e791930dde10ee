// SPDX-License-Identifier: Apache-2.0
// Which processors and memory of the VM are near a device: all of them, since each call goes
// through memory that the host has placed.
#include <sched.h>

#include <algorithm>
#include <climits>
#include <fstream>
#include <limits>
#include <string>

#include "answers.h"

using namespace kvgpu::nvml;

namespace {

constexpr unsigned WORD_BITS = sizeof(unsigned long) * CHAR_BIT;

// The numbers of a list like "0-3,8" that the kernel writes. Bits behind `n_words` are left out, as
// NVML says.
nvmlReturn_t set_bits(nvmlDevice_t device, const char* list, unsigned n_words,
                      unsigned long* words) {
  if (const nvmlReturn_t bad = refuse(device, NVML_SUCCESS)) return bad;
  if (n_words == 0 || words == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  std::ifstream file(list);
  std::fill_n(words, n_words, 0ul);
  unsigned first = 0;
  while (file >> first) {
    unsigned last = first;
    if (file.peek() == '-') file.ignore() >> last;
    for (unsigned bit = first; bit <= last && bit / WORD_BITS < n_words; ++bit) {
      words[bit / WORD_BITS] |= 1ul << bit % WORD_BITS;
    }
    file.ignore(std::numeric_limits<std::streamsize>::max(), ',');
  }
  return NVML_SUCCESS;
}

bool is_scope(nvmlAffinityScope_t scope) {
  return scope == NVML_AFFINITY_SCOPE_NODE || scope == NVML_AFFINITY_SCOPE_SOCKET;
}

nvmlReturn_t run_anywhere(nvmlDevice_t device) {
  cpu_set_t all;
  const nvmlReturn_t bad =
      set_bits(device, "/sys/devices/system/cpu/online", CPU_SETSIZE / WORD_BITS, all.__bits);
  if (bad != NVML_SUCCESS) return bad;
  return sched_setaffinity(0, sizeof all, &all) == 0 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

}  // namespace

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int cpuSetSize,
                                      unsigned long* cpuSet) {
  return set_bits(device, "/sys/devices/system/cpu/online", cpuSetSize, cpuSet);
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int cpuSetSize,
                                                 unsigned long* cpuSet, nvmlAffinityScope_t scope) {
  if (!is_scope(scope)) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  return nvmlDeviceGetCpuAffinity(device, cpuSetSize, cpuSet);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int nodeSetSize,
                                         unsigned long* nodeSet, nvmlAffinityScope_t scope) {
  if (!is_scope(scope)) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  return set_bits(device, "/sys/devices/system/node/has_memory", nodeSetSize, nodeSet);
}

nvmlReturn_t nvmlDeviceSetCpuAffinity(nvmlDevice_t device) { return run_anywhere(device); }
nvmlReturn_t nvmlDeviceClearCpuAffinity(nvmlDevice_t device) { return run_anywhere(device); }
