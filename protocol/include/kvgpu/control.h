// SPDX-License-Identifier: Apache-2.0
// Control frames: what clients, agent, kvgpud and workers say outside the rings. Normative text:
// PROTOCOL.md §4.
#pragma once

#include <cstdint>

namespace kvgpu::control {

inline constexpr uint16_t PROTOCOL_MAJOR = 0;
// In the host page only: progress comes as PROGRESS records, not as words written by the GPU.
inline constexpr uint32_t FEATURE_PROGRESS_RECORDS = 1;
// The host takes REFUSED_CALL records.
inline constexpr uint32_t FEATURE_REFUSED_CALLS = 2;
// The client wakes its worker itself: by the ivshmem device's doorbell, or by an eventfd.
inline constexpr uint32_t FEATURE_DOORBELL = 4;
// DEVICE_QUERY is answered: what NVML shows of a device, without a session.
inline constexpr uint32_t FEATURE_DEVICE_QUERIES = 8;
#ifdef KVGPU_PROTOCOL_OLDER  // what the version before this one had
inline constexpr uint16_t PROTOCOL_MINOR = 3;
#else
inline constexpr uint16_t PROTOCOL_MINOR = 4;
#endif
inline constexpr uint32_t FEATURES =
    FEATURE_REFUSED_CALLS | FEATURE_DOORBELL | FEATURE_DEVICE_QUERIES;
// In OPEN, OPENED and the host page: guest and host share no memory (PROTOCOL.md §7).
inline constexpr uint32_t FEATURE_BYTE_STREAM = 1u << 8;

inline constexpr uint32_t FRAME_MAGIC = 0x4347564b;  // "KVGC"
inline constexpr uint32_t MAX_PAYLOAD_BYTES = 4096;
inline constexpr uint32_t MAX_STREAM_PAYLOAD_BYTES = 64 * 1024;
inline constexpr char GUEST_SOCKET[] = "/run/kvgpu/guest.sock";
inline constexpr char SOCKET_ENV[] = "KVGPU_SOCKET";
inline constexpr char VIRTIO_PORT[] = "org.kvgpu.0";

enum class Type : uint16_t {
  HELLO = 1,
  WELCOME = 2,
  REFUSED = 3,
  OPEN = 4,
  OPENED = 5,
  CLOSE = 6,
  CLOSED = 7,
  KICK = 8,
  PING = 9,
  PONG = 10,
  QUERY = 11,
  FACTS = 12,
  DEVICE_QUERY = 13,
  DEVICE_REPORT = 14,
  READY = 16,
  EXTENT_ALLOC = 17,
  EXTENT = 18,
  EXTENT_FREE = 19,
  FAILED = 20,
  END = 21,
  RESUMED = 22,
  SESSIONS = 23,
  PRESTARTED = 24,
  ASSIGN = 25,
  USAGE_QUERY = 26,
  USAGE = 27,
  RESOLVE = 28,
  RESOLVED = 29,
  ACTIVITY_QUERY = 30,
  ACTIVITY = 31,
  SHARE = 32,  // from here to 47: a session of the byte-stream form (stream_form.h)
  DATA = 33,
  RECORDS = 34,
  EVENTS = 35,
  CREDIT = 36,
  STATUS = 37,
  CALLBACK_DONE = 38,
};

constexpr bool is_stream_form(Type type) {
  return static_cast<uint16_t>(type) >= 32 && static_cast<uint16_t>(type) <= 47;
}
constexpr uint32_t max_payload_bytes(Type type) {
  return is_stream_form(type) ? MAX_STREAM_PAYLOAD_BYTES : MAX_PAYLOAD_BYTES;
}

struct FrameHeader {
  uint32_t magic;
  uint16_t type;
  uint16_t flags;
  uint32_t len_bytes;  // of the payload
  uint32_t id;         // session or request number, see the table in PROTOCOL.md §4
};
static_assert(sizeof(FrameHeader) == 16);

struct Hello {
  uint16_t major, minor;
  uint32_t features;
  uint8_t boot_id[16];
};
static_assert(sizeof(Hello) == 24);

struct Welcome {
  uint16_t major, minor;
  uint32_t features;
  uint64_t region_bytes;
  uint8_t vm_uuid[16];
};
static_assert(sizeof(Welcome) == 32);

// REFUSED, CLOSED, FAILED; a UTF-8 message without NUL follows up to the end of the payload.
struct Failure {
  int32_t cuda_error;
};

// The program's CUDA_VISIBLE_DEVICES and a NUL follow if it is set.
struct Open {
  uint16_t major, minor;
  uint32_t features;
  uint64_t window;
  uint32_t pid;
  uint32_t uid;
  char comm[16];
};
static_assert(sizeof(Open) == 40);
inline constexpr uint32_t MAX_VISIBLE_BYTES = 1024;  // more than UUIDs of all devices have

struct Opened {
  uint16_t major, minor;
  uint32_t features;
  uint32_t session;
  uint32_t doorbell;  // what to write to the doorbell register; 0: there is none
  uint64_t block_offset;
  uint64_t block_bytes;
  uint64_t region_bytes;
};
static_assert(sizeof(Opened) == 40);

// What a client may know of the host without a session.
struct Facts {
  uint16_t major, minor;
  uint32_t features;
  int32_t driver_version;  // as cuDriverGetVersion reports it there; 0: not known
  uint32_t reserved;
};
static_assert(sizeof(Facts) == 16);

struct Ready {
  uint32_t n_devices;
};

struct ExtentAlloc {
  uint64_t bytes;
};

struct Extent {
  uint64_t offset;
  uint64_t bytes;
};
static_assert(sizeof(Extent) == 16);

struct ExtentFree {
  uint64_t offset;
};

struct Resumed {
  uint16_t major, minor;
  uint32_t reserved;
};
static_assert(sizeof(Resumed) == 8);

// A worker that was started before there was a session for it waits for one.
struct Prestarted {
  uint16_t major, minor;
  uint32_t n_devices;
};
static_assert(sizeof(Prestarted) == 8);

struct Assign {
  uint16_t major, minor;
  uint32_t away_s;
  uint64_t region_bytes;
  uint64_t block_offset;
};
static_assert(sizeof(Assign) == 24);

// What has a session shared by this token? Of a worker to kvgpud, and of kvgpud to the worker that
// has made the token.
struct Resolve {
  uint8_t token[16];
};
static_assert(sizeof(Resolve) == 16);

struct Resolved {  // with a descriptor where one belongs to it
  uint32_t kind;   // the workers'; 0: there is no such thing
  uint32_t reserved;
  uint8_t content[64];
};
static_assert(sizeof(Resolved) == 72);

// What a session has done, by its worker's word; n_counts times CallCount follow, the most frequent
// first, as many as the payload has room for. Text ends with its field or a NUL.
struct Activity {
  uint64_t n_calls;  // records of the guest
  uint64_t n_failed;
  uint64_t memory_bytes, peak_memory_bytes;  // of the devices, that the guest has
  uint64_t failed_at_s;                      // Unix time of the last failure; 0: there was none
  int32_t cuda_error;                        // what that one answered
  uint32_t n_counts;
  char failed_call[56];
  char error_name[56];
};
static_assert(sizeof(Activity) == 160);

struct CallCount {
  char call[56];
  uint64_t n_calls;
};
static_assert(sizeof(CallCount) == 64);

// SESSIONS: u32 session numbers up to the end of the payload.
inline constexpr uint32_t MAX_NAMED_SESSIONS = MAX_PAYLOAD_BYTES / sizeof(uint32_t);

}  // namespace kvgpu::control
