// SPDX-License-Identifier: Apache-2.0
// What can be asked of the host without a session.
#pragma once

namespace kvgpu::guest {

// The CUDA release that this process is served: the host driver's, at most the one this library
// implements. Asked once, before there is a session, too: no cuInit, no worker. Where nobody
// answers it is this library's own, and cuInit will say what is wrong.
int served_cuda_version();

}  // namespace kvgpu::guest
