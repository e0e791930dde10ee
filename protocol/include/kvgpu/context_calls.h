// SPDX-License-Identifier: Apache-2.0
// Bodies of records about device resources, green contexts and whole contexts. Append-only within a
// major version; every struct is free of padding.
#pragma once

#include <cstdint>

#include "kvgpu/records.h"

namespace kvgpu::wire {

// CUDA 13.0 cuda.h: CUdevResource. Only one that the worker has given out is taken back.
struct DevResource {
  uint8_t bytes[144];
};
inline constexpr uint32_t MAX_DEV_RESOURCES = 100;  // of one record

struct GetDevResource {  // the reply: DevResource
  Handle context;        // 0: of the device
  uint32_t device;
  uint32_t type;
};
struct SplitDevResource {
  DevResource input;
  uint32_t n_groups;
  uint32_t flags;
  uint32_t min_count;
  uint32_t wants_groups;  // 0: asked for their number only
};
struct DevResourceSplit {  // n_given x DevResource follow
  DevResource remaining;
  uint32_t n_groups;
  uint32_t n_given;
};
struct DescribeDevResources {  // cuDevResourceGenerateDesc: may it be done? n x DevResource follow
  uint32_t n;
  uint32_t reserved;
};
struct GreenCreate {  // n x DevResource follow
  Handle primary;
  Handle green;  // a context's
  Handle legacy_stream;
  uint32_t legacy_word;
  uint32_t device;
  uint32_t flags;
  uint32_t n;
};
struct GreenRef {
  Handle green;
};
struct ContextEvent {  // cuCtxRecordEvent, cuCtxWaitEvent; of green contexts, too
  Handle context;
  Handle event;
};

struct ExecAffinity {  // CUDA 13.0 cuda.h: CUexecAffinityParam
  uint32_t type;
  uint32_t value;
};
inline constexpr uint32_t MAX_EXEC_AFFINITY = 16;
struct GetExecAffinity {  // the reply: ExecAffinity
  Handle context;
  uint32_t type;
  uint32_t reserved;
};

// cuDeviceGetHostAtomicCapabilities: n x u32 follow, CUatomicOperation; as many are the reply.
struct AtomicCapabilities {
  uint32_t device;
  uint32_t n;
};
inline constexpr uint32_t MAX_ATOMIC_OPERATIONS = 256;

}  // namespace kvgpu::wire
