// SPDX-License-Identifier: Apache-2.0
// The byte-stream form: each side has a region of its own, and frames carry what changes from one
// to the other. Normative text: PROTOCOL.md §7.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvgpu/control.h"

namespace kvgpu::stream_form {

inline constexpr uint64_t LINE_BYTES = 64;

// Bytes of RECORDS (or EVENTS) on their way or waiting for room in the ring, per session and
// direction.
inline constexpr uint64_t WINDOW_BYTES = 256 * 1024;

// A peer that shares every other line must not cost the other side a table without end.
inline constexpr size_t MAX_RANGES = 65'536;

struct Share {  // SHARE
  uint64_t region_off;
  uint64_t bytes;
  uint64_t on;
};

struct Line {           // DATA is some of these
  uint64_t region_off;  // a multiple of LINE_BYTES
  uint64_t mask;        // bit i: byte i has changed
  uint64_t words[LINE_BYTES / 8];
};
static_assert(sizeof(Line) == 80);
inline constexpr uint32_t MAX_LINES = control::MAX_STREAM_PAYLOAD_BYTES / sizeof(Line);

struct Credit {  // CREDIT: bytes of RECORDS (EVENTS) put into the ring since the session began
  uint64_t taken_bytes;
};

struct Status {  // STATUS: words of the host page
  uint64_t error_word;
  uint64_t error_position;
  uint64_t error_opcode;
};

struct CallbackDone {  // CALLBACK_DONE: a word of the guest page
  uint64_t token;
};

}  // namespace kvgpu::stream_form
