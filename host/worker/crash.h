// SPDX-License-Identifier: Apache-2.0
// A crash of the driver or of ours takes the session along: the log then says where it was.
#pragma once

namespace kvgpu::worker {

// Before the jail: it loads what unwinds the stack.
void log_crashes();

}  // namespace kvgpu::worker
