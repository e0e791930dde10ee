// SPDX-License-Identifier: Apache-2.0
// Record header, handles, and the bodies that belong to no CUDA entry point. Normative text:
// PROTOCOL.md §3.
#pragma once

#include <chrono>
#include <cstdint>

namespace kvgpu::wire {

inline constexpr uint32_t RECORD_ALIGN_BYTES = 64;
inline constexpr uint32_t MAX_RECORD_BYTES = 16 * 1024;

enum Flags : uint16_t {
  NOREPLY = 1,  // fire and forget
  PAD = 2,      // nothing but the end of the ring
  TIMED = 4,    // the reply says how long the host took
};

struct Header {
  uint64_t commit;     // absolute position + 1, written last
  uint32_t len_bytes;  // with header, before padding
  uint16_t opcode;
  uint16_t flags;
  uint64_t call_id;
  uint32_t target;  // endpoint (bits 0-3), device ordinal (bits 8-15), guest thread (bits 16-31)
  uint32_t reserved;
};
static_assert(sizeof(Header) == 32);

constexpr uint32_t make_target(uint32_t endpoint, uint32_t device, uint32_t thread = 0) {
  return endpoint | device << 8 | thread << 16;
}
constexpr uint32_t target_endpoint(uint32_t target) { return target & 0xf; }
constexpr uint32_t target_device(uint32_t target) { return target >> 8 & 0xff; }
constexpr uint32_t target_thread(uint32_t target) { return target >> 16; }

constexpr uint32_t padded(uint32_t len_bytes) {
  return (len_bytes + RECORD_ALIGN_BYTES - 1) & ~(RECORD_ALIGN_BYTES - 1);
}

// ---- handles: tag(8) | generation(20) | kind(4) | endpoint(4) | index(28)
enum class Kind : uint8_t {
  CONTEXT = 1,
  STREAM,
  EVENT,
  MODULE,    // CUmodule and CUlibrary
  FUNCTION,  // CUfunction and CUkernel
  GRAPH,
  GRAPH_EXEC,
  BLOB,       // an image on its way
  ARRAY,      // CUarray and CUmipmappedArray
  REFERENCE,  // CUtexref and CUsurfref
  LINK,       // CUlinkState
  MEM_POOL,
  GRAPH_NODE,  // chosen by the worker
  USER_OBJECT,
};

using Handle = uint64_t;
inline constexpr uint64_t HANDLE_TAG =
    0x6b;  // makes a non-canonical address: a program that follows one stops at once
inline constexpr uint32_t MAX_HANDLE_INDEX = 1u << 20;

constexpr Handle make_handle(Kind kind, uint32_t endpoint, uint32_t index, uint32_t generation) {
  return HANDLE_TAG << 56 | uint64_t{generation & 0xfffff} << 36 | uint64_t(kind) << 32 |
         uint64_t{endpoint & 0xf} << 28 | (index & 0xfffffff);
}
constexpr uint32_t handle_index(Handle h) { return h & 0xfffffff; }
constexpr uint32_t handle_endpoint(Handle h) { return h >> 28 & 0xf; }
constexpr Kind handle_kind(Handle h) { return static_cast<Kind>(h >> 32 & 0xf); }
constexpr bool handle_tagged(Handle h) { return h >> 56 == HANDLE_TAG; }

// ---- event ring
inline constexpr uint32_t REPLY_DEFERRED = 1;  // skipped: the result is the deferred error
// From this bit on: what the host took for a TIMED record, in microseconds, and one more; 0: not
// said.
inline constexpr uint32_t REPLY_TIME_SHIFT = 8;
inline constexpr uint32_t MAX_REPLY_TIME_US = (1u << 24) - 2;
inline uint32_t reply_time(std::chrono::nanoseconds took) {
  const auto us = static_cast<uint64_t>(took.count()) / 1000;
  return (static_cast<uint32_t>(us < MAX_REPLY_TIME_US ? us : MAX_REPLY_TIME_US) + 1)
         << REPLY_TIME_SHIFT;
}
struct Reply {
  int32_t result;  // CUresult
  uint32_t flags;
  // out values follow
};

struct Callback {  // run host function `function`, then put the token into GuestPage::callback_done
  uint64_t token;  // counts up in ring order
  uint64_t function;  // the guest's own id
  int32_t status;     // for stream callbacks
  uint32_t reserved;
};

struct Progress {
  uint64_t word;  // index
  uint64_t number;
};

struct Output {  // of the device's printf, or which assertions have failed; the bytes follow
  uint32_t len_bytes;
  uint32_t is_error;  // 1: for standard error
};

// ---- command ring
struct Hello {
  uint32_t version;
  uint32_t features;
};

// An entry point that the program called and that is not served; NUL-terminated.
struct RefusedCall {
  char name[64];
};

struct AckError {
  uint64_t epoch;
};

// Write `number` to progress word `word` after all earlier work of the stream.
struct Mark {
  Handle stream;
  uint64_t number;
};

struct Upload {  // chunk of an image: slab bytes to blob[offset..]; the first chunk creates the
                 // blob
  Handle blob;
  uint64_t total_bytes;
  uint64_t offset;
  uint64_t slab_off;
  uint64_t len_bytes;
};

// Byte-stream form only, never seen by a worker: from here on (on = 1) both sides use these bytes
// of the region, or (on = 0) no longer do.
struct Share {
  uint64_t region_off;
  uint64_t bytes;
  uint64_t on;
};

struct HeapGrow {
  uint64_t bytes;
};
struct HeapGrown {
  uint64_t region_off;
  uint64_t bytes;
};

}  // namespace kvgpu::wire
