// SPDX-License-Identifier: Apache-2.0
#include "refuse.h"

#include <mutex>
#include <set>
#include <string>

#include "cuda_api.h"
#include "log.h"

namespace kvgpu::guest {

int refuse(int index) {
  if (refused_calls[index].fetch_add(1, std::memory_order_relaxed) == 0) {
    log(Level::WARNING, "%s is refused (CUDA_ERROR_NOT_SUPPORTED): %s", REFUSED_NAMES[index].name,
        REFUSED_NAMES[index].why);
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

int refuse_part(const char* what) {
  static auto& mutex = *new std::mutex;
  static auto& seen = *new std::set<std::string>;
  const std::lock_guard lock(mutex);
  if (seen.insert(what).second) {
    log(Level::WARNING, "%s is not supported yet (CUDA_ERROR_NOT_SUPPORTED)", what);
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace kvgpu::guest
