// SPDX-License-Identifier: Apache-2.0
// What the driver has to say about a program's errors.
#pragma once

#include <cuda.h>

#include <string>

namespace software_gpu {

/// One line, without its end: to standard error, and to the program by cuLogs*.
void report(CUlogLevel level, const std::string& line);

}  // namespace software_gpu
