// SPDX-License-Identifier: Apache-2.0
// What of the jail could not be made.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

namespace kvgpu::worker {

// `error` says which step failed, and errno why. Always false.
inline bool fail(std::string* error, const std::string& step) {
  *error = "jail: " + step + ": " + strerror(errno);
  return false;
}

}  // namespace kvgpu::worker
