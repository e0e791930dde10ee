// SPDX-License-Identifier: Apache-2.0
// Bodies of records whose two ends are written by hand. Append-only within a major version; every
// struct is free of padding.
#pragma once

#include <cstdint>

#include "kvgpu/records.h"

namespace kvgpu::wire {

// ---- devices: the reply to HELLO is HelloReply and one DeviceInfo each
inline constexpr int32_t N_DEVICE_ATTRIBUTES = 160;  // ids 0..159; CUDA 13.0 ends before that
inline constexpr int32_t ATTRIBUTE_UNKNOWN = INT32_MIN;

struct HelloReply {
  uint32_t version;  // of the protocol, major << 16 | minor
  uint32_t features;
  int32_t driver_version;  // of the host, as cuDriverGetVersion reports it
  uint32_t n_devices;
};

struct DeviceInfo {
  char name[256];
  char pci_bus_id[16];
  uint8_t uuid[16];
  uint64_t total_bytes;
  int32_t attributes[N_DEVICE_ATTRIBUTES];
};
static_assert(sizeof(DeviceInfo) == 936);

// ---- contexts
struct ContextRetain {  // of cuCtxCreate_v2, n_affinity x ExecAffinity follow
  Handle context;
  Handle legacy_stream;
  uint32_t legacy_word;
  uint32_t device;
  uint32_t flags;
  uint32_t n_affinity;
};
struct ContextRetained {
  int32_t least_priority;
  int32_t greatest_priority;
  uint32_t api_version;
  uint32_t reserved;
};
struct ContextReset {  // and cuCtxDestroy_v2
  Handle context;
};
struct ContextFlags {
  Handle context;
  uint32_t flags;
  uint32_t reserved;
};

// ---- memory
struct MemAlloc {
  Handle context;
  uint64_t bytes;
};
struct MemAllocated {
  uint64_t dptr;
};
struct MemAllocPitch {
  Handle context;
  uint64_t width_bytes;
  uint64_t height;
  uint32_t element_bytes;
  uint32_t reserved;
};
struct MemAllocatedPitch {
  uint64_t dptr;
  uint64_t pitch_bytes;
};
struct MemFree {
  Handle context;
  uint64_t dptr;
};

// ---- stream-ordered allocation
struct MemAllocAsync {
  Handle context;
  Handle stream;
  Handle pool;  // 0: the current one of the device
  uint64_t bytes;
};
struct PoolCreate {
  Handle pool;
  uint64_t max_bytes;
  uint32_t device;
  uint16_t usage;
  uint16_t handle_types;
};
struct PoolAttribute {  // the reply to a get: Value64
  Handle pool;
  uint64_t value;
  uint32_t attribute;
  uint32_t reserved;
};
struct Value64 {
  uint64_t value;
};
struct PoolAccess {  // the reply to a get: Value64
  Handle pool;
  uint32_t device;
  uint32_t flags;
};
struct DevicePool {  // cuDeviceGetDefaultMemPool, cuDeviceSetMemPool
  Handle pool;
  uint32_t device;
  uint32_t reserved;
};
struct PointerInfo {  // the reply: Value64
  Handle context;
  uint64_t address;
  uint32_t attribute;
  uint32_t reserved;
};

// ---- every record that gives work to a stream begins with these two; mark 0: none wanted
struct Enqueue {
  Handle stream;
  uint64_t mark;
};
struct Copy {
  Handle stream;
  uint64_t mark;
  uint64_t dst;  // device address, or an address in session memory
  uint64_t src;
  uint64_t bytes;
};
struct FreeAsync {
  Handle stream;
  uint64_t mark;
  uint64_t dptr;
};
struct Memset {
  Handle stream;
  uint64_t mark;
  uint64_t dst;
  uint64_t n;  // elements
  uint32_t value;
  uint32_t reserved;
};
struct Copy2D {
  Handle stream;
  uint64_t mark;
  uint64_t dst;  // of the first byte; device address, or an address in session memory
  uint64_t dst_pitch_bytes;
  uint64_t src;
  uint64_t src_pitch_bytes;
  uint64_t width_bytes;
  uint64_t height;
};
struct Memset2D {
  Handle stream;
  uint64_t mark;
  uint64_t dst;
  uint64_t pitch_bytes;
  uint64_t width;  // elements
  uint64_t height;
  uint32_t value;
  uint32_t reserved;
};
// Followed by n_attributes x LaunchAttribute, then the parameter bytes.
struct Launch {
  Handle stream;
  uint64_t mark;
  Handle function;
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  uint32_t param_bytes;
  uint32_t n_attributes;
  uint32_t params_in;
};
static_assert(sizeof(Launch) == 64);
struct LaunchAttribute {  // CUDA 13.0 cuda.h: CUlaunchAttribute
  uint32_t id;
  uint32_t reserved;
  uint8_t value[64];
};
static_assert(sizeof(LaunchAttribute) == 72);
// CUDA 13.0 cuda.h, CUlaunchAttributeID: those whose value is plain data. Others hold events, nodes
// or pointers of the process, which must not reach the driver.
constexpr bool launch_attribute_is_plain(uint32_t id) {
  constexpr uint32_t PLAIN[] = {
      0,   // IGNORE
      2,   // COOPERATIVE
      3,   // SYNCHRONIZATION_POLICY
      4,   // CLUSTER_DIMENSION
      5,   // CLUSTER_SCHEDULING_POLICY_PREFERENCE
      6,   // PROGRAMMATIC_STREAM_SERIALIZATION
      8,   // PRIORITY
      9,   // MEM_SYNC_DOMAIN_MAP
      10,  // MEM_SYNC_DOMAIN
      11,  // PREFERRED_CLUSTER_DIMENSION
      14,  // PREFERRED_SHARED_MEMORY_CARVEOUT
  };
  for (const uint32_t plain : PLAIN) {
    if (id == plain) return true;
  }
  return false;
}
// Launch::params_in: where the parameter bytes are.
inline constexpr uint32_t PARAMS_IN_RECORD = 0;
inline constexpr uint32_t PARAMS_IN_SLAB = 1;  // a u64 with their offset in the slab stands there
inline constexpr uint32_t MAX_PARAM_BYTES = 32764;  // CUDA 13.0, compute capability 7.0 and up

// ---- occupancy
struct PotentialBlockSize {
  Handle context;
  Handle function;
  uint64_t dynamic_bytes;
  int32_t limit;
  uint32_t flags;
};
struct PotentialBlockSizeFound {
  int32_t min_grid;
  int32_t block;
};
struct ClusterQuery {  // followed by n_attributes x LaunchAttribute
  Handle context;
  Handle function;
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  uint32_t n_attributes;
};
struct ClusterAnswer {
  int32_t n;
  uint32_t reserved;
};

struct HostFunction {
  Handle stream;
  uint64_t mark;
  uint64_t function;  // the guest's id
  uint64_t once;      // 0: captured, a graph may run it again
};
struct WaitEvent {
  Handle stream;
  uint64_t mark;
  Handle event;
  uint32_t flags;
  uint32_t reserved;
};
struct RecordEvent {
  Handle stream;
  uint64_t mark;
  Handle event;
  uint32_t flags;
  uint32_t reserved;
};
struct LaunchGraph {
  Handle stream;
  uint64_t mark;
  Handle exec;
  // follow: the handles of events, and the ids of host functions, which bear no tag
};
inline constexpr size_t MAX_LAUNCH_NAMES =
    (MAX_RECORD_BYTES - sizeof(Header) - sizeof(LaunchGraph)) / sizeof(uint64_t);

// ---- streams, events, graphs
struct StreamCreate {
  Handle context;
  Handle stream;
  uint32_t word;
  uint32_t flags;
  int32_t priority;
  uint32_t reserved;
};
struct StreamRef {  // cuStreamDestroy_v2, STREAM_SYNC
  Handle stream;
};
struct StreamValue {
  Handle stream;
  uint64_t mark;
  uint64_t address;
  uint64_t value;
  uint32_t flags;
  uint32_t reserved;
};
struct StreamOperations {  // followed by n x StreamOperation
  Handle stream;
  uint64_t mark;
  uint32_t n;
  uint32_t flags;
};
struct StreamOperation {  // CUDA 13.0 cuda.h: CUstreamBatchMemOpParams
  uint64_t words[6];
};
inline constexpr uint32_t MAX_STREAM_OPERATIONS = 256;
struct StreamAttribute {
  Handle stream;
  uint32_t id;
  uint32_t reserved;
  uint8_t value[64];
};
struct StreamAttributeValue {
  uint8_t value[64];
};
struct StreamPair {
  Handle to;
  Handle from;
};
// CUDA 13.0 cuda.h, CUstreamAttrID: those whose value is plain data.
constexpr bool stream_attribute_is_plain(uint32_t id) {
  return id == 3 || id == 8 || id == 9 || id == 10;
}
struct EventCreate {
  Handle context;
  Handle event;
  uint32_t flags;
  uint32_t reserved;
};
struct EventRef {  // cuEventDestroy_v2, EVENT_SYNC
  Handle context;
  Handle event;
};
struct EventElapsed {
  Handle context;
  Handle start;
  Handle end;
};
struct Elapsed {
  float ms;
  uint32_t reserved;
};
struct EndCapture {
  Handle stream;
  Handle graph;
};
struct GraphInstantiate {
  Handle context;
  Handle graph;
  Handle exec;
  uint64_t flags;
};
struct GraphRef {
  Handle context;
  Handle graph;
};
struct NodeCount {
  uint64_t n;
};
struct HostSync {  // HOST_SYNC, WAITED
  Handle context;
};

}  // namespace kvgpu::wire
