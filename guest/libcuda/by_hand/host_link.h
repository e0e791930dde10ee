// SPDX-License-Identifier: Apache-2.0
// The agent's (or kvgpud's) socket, and what can be asked there without a session.
#pragma once

namespace kvgpu::guest {

const char* host_socket_path();

// Connects; returns the descriptor, or -1 with errno.
int connect_to_host();

// The CUDA release that this process is served: the host driver's, at most the one this library
// implements. Asked once, before there is a session, too: no cuInit, no worker. Where nobody
// answers it is this library's own, and cuInit will say what is wrong.
int served_cuda_version();

}  // namespace kvgpu::guest
