// SPDX-License-Identifier: Apache-2.0
// DEVICE_QUERY and DEVICE_REPORT, USAGE_QUERY and USAGE (PROTOCOL.md §4): what NVML shows of a
// device.
#pragma once

#include <cstdint>

namespace kvgpu::control {

struct DeviceQuery {
  uint32_t device;
  uint32_t reserved;
};
static_assert(sizeof(DeviceQuery) == 8);

// A device as the asker may see it. n_processes times DeviceProcess, then n_readings times
// DeviceReading follow. Text ends with its field or a NUL.
struct DeviceReport {
  uint16_t major, minor;
  uint32_t features;
  uint32_t device, n_devices;
  int32_t cuda_version;  // as cuDriverGetVersion says on the host; 0: not known
  uint32_t n_processes, n_readings;
  uint32_t reserved;
  uint64_t total_bytes, free_bytes;  // as cuDeviceTotalMem and cuMemGetInfo say in a session
  uint8_t uuid[16];
  char pci_bus_id[16];
  char name[96];
  char driver_release[32];  // such as 580.159.04; empty: not known
  int32_t compute_major, compute_minor;
};
static_assert(sizeof(DeviceReport) == 216);

inline constexpr uint16_t PERCENT_UNKNOWN = 0xffff;
inline constexpr uint64_t BYTES_UNKNOWN = ~uint64_t{0};

// A process of the same VM, or of the same `kvgpu run`.
struct DeviceProcess {
  uint32_t pid;  // in the guest
  uint16_t gpu_percent, memory_percent;
  uint64_t used_bytes;
};
static_assert(sizeof(DeviceProcess) == 16);

// Numbers of the physical device that say nothing of who uses it; what is not there is not known.
// Numbers are never given out again for anything else.
enum class Reading : uint32_t {
  GPU_PERCENT = 1,  // of the asker's own processes
  MEMORY_PERCENT = 2,
  TEMPERATURE_C = 3,
  MEMORY_TEMPERATURE_C = 4,
  POWER_MW = 5,
  POWER_LIMIT_MW = 6,
  DEFAULT_POWER_LIMIT_MW = 7,
  ENFORCED_POWER_LIMIT_MW = 8,
  MIN_POWER_LIMIT_MW = 9,
  MAX_POWER_LIMIT_MW = 10,
  PERFORMANCE_STATE = 11,
  CLOCK_REASONS = 12,
  SUPPORTED_CLOCK_REASONS = 13,
  FAN_PERCENT = 14,
  BRAND = 15,
  ARCHITECTURE = 16,
  PERSISTENCE_MODE = 17,
  ECC_MODE = 18,
  PENDING_ECC_MODE = 19,
  PCIE_GENERATION = 20,
  MAX_PCIE_GENERATION = 21,
  DEVICE_MAX_PCIE_GENERATION = 22,
  PCIE_WIDTH = 23,
  MAX_PCIE_WIDTH = 24,
  MEMORY_BUS_BITS = 25,
  N_CORES = 26,
  PCI_DEVICE_ID = 27,     // device in the upper half, vendor in the lower, as in PCI's registers
  PCI_SUBSYSTEM_ID = 28,  // likewise
  CLOCK_MHZ = 32,         // and the three behind it: one for each nvmlClockType_t
  MAX_CLOCK_MHZ = 36,     // likewise
  TEMPERATURE_THRESHOLD_C =
      40,          // and the seven behind it: one for each nvmlTemperatureThresholds_t
  LINK_MBPS = 48,  // of an active NVLink
  LINK = 64,       // and the MAX_LINKS - 1 behind it: a LinkFacts for each NVLink
  PEER = 96,       // and the MAX_PEERS - 1 behind it: a PeerFacts for each of the asker's devices
};
inline constexpr uint32_t MAX_LINKS = 18;  // NVML_NVLINK_MAX_LINKS
inline constexpr uint32_t MAX_PEERS = 16;

// The value of a reading LINK + n: NVLink n, unless it leads to a GPU that is none of the asker's.
// A device has none to show whose asker has no other.
struct LinkFacts {
  uint8_t capabilities;   // a bit for each nvmlNvLinkCapability_t
  uint8_t is_active;      // nvmlEnableState_t
  uint8_t version;        // as nvmlDeviceGetNvLinkVersion has it
  uint8_t remote_kind;    // nvmlIntNvLinkDeviceType_t
  uint8_t remote_device;  // its number + 1; 0: it is none of the asker's
  uint8_t state;          // as NVML_FI_DEV_NVLINK_GET_STATE has it
  uint8_t reserved[2];
};
static_assert(sizeof(LinkFacts) == sizeof(uint64_t));

// The value of a reading PEER + n: how the device and the asker's device n reach each other.
struct PeerFacts {
  uint8_t status[5];  // nvmlGpuP2PStatus_t, one for each nvmlGpuP2PCapsIndex_t
  uint8_t ancestor;   // nvmlGpuTopologyLevel_t
  uint8_t is_on_same_board;
  uint8_t reserved;
};
static_assert(sizeof(PeerFacts) == sizeof(uint64_t));

struct DeviceReading {
  uint32_t reading;
  uint32_t reserved;
  uint64_t value;
};
static_assert(sizeof(DeviceReading) == 16);

// What a session uses of a device; USAGE has one for each of its worker's.
struct DeviceUsage {
  uint64_t own_bytes;                // that the guest has allocated
  uint64_t free_bytes, total_bytes;  // as cuMemGetInfo says there; 0: no context there
};
static_assert(sizeof(DeviceUsage) == 24);

}  // namespace kvgpu::control
