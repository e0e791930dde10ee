// SPDX-License-Identifier: Apache-2.0
// What the worker knows about an opcode. The table is generated from protocol/api.toml.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "driver.h"
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
  // What it may answer late, beside sticky errors: `deferred` of protocol/api.toml.
  std::span<const CUresult> deferred;

  // INVALID_HANDLE: of a stream or event whose own creation has failed late.
  bool may_answer_late(CUresult error) const {
    return error == CUDA_ERROR_INVALID_HANDLE || is_sticky(error) ||
           std::find(deferred.begin(), deferred.end(), error) != deferred.end();
  }
};

const OpInfo* find_op(uint16_t opcode);  // null: unknown

// The same name in static memory; null if the driver API has no such entry point.
const char* find_entry_point(std::string_view name);

}  // namespace kvgpu::worker
