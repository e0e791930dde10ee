// SPDX-License-Identifier: Apache-2.0
// What the program gets in the place of the driver's descriptors and handles: tokens, which its
// other processes give to the host (PROTOCOL.md §4.1).
#pragma once

#include <cstdint>
#include <optional>

#include "cuda_api.h"
#include "kvgpu/memory_calls.h"

namespace kvgpu::guest {

// A descriptor to be passed on as any other one. When its last copy, in whatever process, is closed
// the token is revoked at one of this process's next calls about memory.
CUresult make_descriptor(const wire::Token& token, int* fd);
// None: the descriptor is of something else.
std::optional<wire::Token> token_in(int fd);
void revoke_closed();

// The 64 opaque bytes of CUipcMemHandle, CUipcEventHandle and CUmemPoolPtrExportData.
void put_token(char* bytes, const wire::Token& token);
std::optional<wire::Token> token_in(const char* bytes);

}  // namespace kvgpu::guest
