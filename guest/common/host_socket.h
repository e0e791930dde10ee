// SPDX-License-Identifier: Apache-2.0
// The socket of the agent, or of kvgpud under `kvgpu run`.
#pragma once

namespace kvgpu::guest {

const char* host_socket_path();

// Connects; returns the descriptor, or -1 with errno.
int connect_to_host();

// What to do where connect_to_host() fails with this errno, in words for the program's user.
const char* host_socket_hint(int error);

}  // namespace kvgpu::guest
