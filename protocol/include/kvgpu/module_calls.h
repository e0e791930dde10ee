// SPDX-License-Identifier: Apache-2.0
// Bodies of the records that load images and link them, as calls.h has the others'. Append-only
// within a major version.
#pragma once

#include "kvgpu/records.h"

namespace kvgpu::wire {

// ---- images
inline constexpr uint64_t MAX_IMAGE_BYTES = 1 << 30;  // of those a worker holds, all together, too
struct LoadImage {
  Handle context;
  Handle blob;
  Handle module;
};
struct LoadedImage {
  uint32_t prints;  // 1: a kernel of it may use printf
  uint32_t reserved;
};
// JIT options. May follow LoadImage, ends LinkCreate and LinkAdd; n_options x JitOption come after
// it. The logs are written into the slab; a size of 0: not wanted.
struct JitRequest {
  uint64_t info_off;
  uint64_t info_bytes;
  uint64_t error_off;
  uint64_t error_bytes;
  uint32_t n_options;
  uint32_t reserved;
};
struct JitOption {  // CUDA 13.0 cuda.h: CUjit_option, and its value as the caller's 8 bytes
  uint32_t id;
  uint32_t reserved;
  uint64_t value;
};
// Ends the reply to each of them, with n_options x u64: the values after the call.
struct JitReply {
  uint64_t info_bytes;  // written, without the final zero
  uint64_t error_bytes;
};
inline constexpr uint32_t MAX_JIT_OPTIONS = 32;
inline constexpr uint64_t MAX_JIT_LOG_BYTES = 256 * 1024;
// Options whose value is a number. The others hold buffers or arrays of names of the process.
constexpr bool jit_option_is_plain(uint32_t id) {
  const bool log = id >= 3 && id <= 6, names = id >= 17 && id <= 19,
             references = id >= 25 && id <= 28;
  return id <= 33 && !log && !names && !references;
}
struct ListFunctions {  // of cuModuleEnumerateFunctions and cuLibraryEnumerateKernels
  Handle context;
  Handle module;
  uint64_t first;  // index
};
struct FunctionNames {  // the names follow, each with its final zero
  uint32_t n_all;
  uint32_t n;
};
struct FunctionRef {
  Handle context;
  Handle function;
};
struct FunctionConfig {
  Handle context;
  Handle function;
  uint32_t config;
  int32_t device;
};
struct FunctionState {
  uint32_t state;
  uint32_t reserved;
};

// ---- the JIT linker
struct LinkCreate {
  Handle context;
  Handle link;
  JitRequest jit;
};
struct LinkAdd {  // the name follows the options
  Handle context;
  Handle link;
  Handle blob;
  uint32_t type;
  uint32_t name_bytes;
  JitRequest jit;
};
struct LinkComplete {
  Handle context;
  Handle link;
  JitRequest jit;  // where the logs go; no options
};
struct LinkCompleted {
  uint64_t bytes;
};
struct LinkRead {
  Handle link;
  uint64_t offset;
  uint64_t slab_off;
  uint64_t len_bytes;
};
struct LinkRef {
  Handle context;
  Handle link;
};
struct GetFunction {  // followed by the name
  Handle context;
  Handle module;
  Handle function;
  uint32_t name_bytes;
  uint32_t reserved;
};
inline constexpr uint32_t N_FUNCTION_ATTRIBUTES = 16;
enum class Printing : uint32_t { NOT_SAID, MAY, CANNOT };  // not said: it may if its image may
struct FunctionInfo {  // followed by n_params x ParamInfo; absent where no context was given
  int32_t attributes[N_FUNCTION_ATTRIBUTES];
  uint32_t n_params;
  Printing printing;
};
struct KernelInfo {
  Handle context;
  Handle kernel;
};
struct AskFloorPlan {  // context 0: only whether the driver has such a table
  Handle context;
};
constexpr uint32_t MAX_FLOOR_PLAN_BYTES = 2048;
struct FloorPlan {   // the reply
  uint32_t n_bytes;  // of each of the two
  uint32_t reserved;
  uint8_t first[MAX_FLOOR_PLAN_BYTES];
  uint8_t second[MAX_FLOOR_PLAN_BYTES];
};
struct ParamInfo {
  uint32_t offset;
  uint32_t bytes;
};
struct GetGlobal {  // followed by the name
  Handle context;
  Handle module;
  uint32_t name_bytes;
  uint32_t reserved;
};
struct Global {
  uint64_t dptr;
  uint64_t bytes;
  uint64_t is_managed;
};
struct LibraryModule {
  Handle context;
  Handle library;
  Handle module;
};
struct SetAttribute {
  Handle context;
  Handle function;
  int32_t attribute;
  int32_t value;
  int32_t device;
  uint32_t of_kernel;  // ATTRIBUTE_AGAIN: 1 for cuKernelSetAttribute
};

}  // namespace kvgpu::wire
