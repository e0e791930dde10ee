// SPDX-License-Identifier: Apache-2.0
// What the worker knows about an opcode. The table is generated from protocol/api.toml.
#pragma once

#include <array>
#include <cstdint>

#include "kvgpu/opcodes.gen.h"
#include "session.h"

namespace kvgpu::worker {

enum class Route : uint8_t {
  ENQUEUE,  // gives work to a stream; the device's executor, in ring order
  EXECUTE,  // quick driver call; the device's executor, in ring order
  BLOCK,   // may block in the driver: started in ring order, finished by the pool. Its caller waits
           // for the reply
  DIRECT,  // the reader itself
};

using Handler = CUresult (*)(Session&, const Task&, ReplyWriter&);

struct OpInfo {
  const char* name;
  Route route;
  bool runs_poisoned;  // frees and destroys run whatever has failed before
  Handler handler;
};

inline constexpr uint16_t MAX_OPCODE = 1023;

const OpInfo* find_op(uint16_t opcode);  // null: unknown

}  // namespace kvgpu::worker
