// SPDX-License-Identifier: Apache-2.0
// A crash of the driver or of ours takes the session along: the log then says where it was.
#pragma once

namespace kvgpu::worker {

// Before the jail: it loads what unwinds the stack.
void log_crashes();

// Each thread that calls the driver: a crash also says where it was meanwhile.
void log_crashes_of_thread();

}  // namespace kvgpu::worker
