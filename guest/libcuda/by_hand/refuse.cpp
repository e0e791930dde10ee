// SPDX-License-Identifier: Apache-2.0
#include "refuse.h"

#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cuda_api.h"
#include "error_log.h"
#include "log.h"
#include "session.h"
#include "trace.h"

namespace kvgpu::guest {

namespace {

// At the program's end: what it missed, and how often.
__attribute__((destructor)) void log_counts() {
  std::string counts;
  for (int i = 0; i < N_REFUSED_NAMES; ++i) {
    const uint64_t n = refused_calls[i].load(std::memory_order_relaxed);
    if (n != 0) counts += " " + std::string(REFUSED_NAMES[i].name) + "=" + std::to_string(n);
  }
  if (!counts.empty()) log(Level::DEBUG, "refused calls:%s", counts.c_str());
}

TracedEntry& traced_entry(int index) {
  static auto& entries = *new std::vector<TracedEntry>([] {
    std::vector<TracedEntry> all;
    for (int i = 0; i < N_REFUSED_NAMES; ++i) {
      all.push_back({REFUSED_NAMES[i].name, "refused", ""});
    }
    return all;
  }());
  return entries[static_cast<size_t>(index)];
}

CUresult count_and_tell(int index) {
  if (refused_calls[index].fetch_add(1, std::memory_order_relaxed) == 0) {
    Session::get().report_refused(REFUSED_NAMES[index].name);
    log(Level::WARNING, "%s is refused (CUDA_ERROR_NOT_SUPPORTED): %s", REFUSED_NAMES[index].name,
        REFUSED_NAMES[index].why);
  }
  return answered(REFUSED_NAMES[index].name, CUDA_ERROR_NOT_SUPPORTED);
}

}  // namespace

int refuse(int index) {
  return traced(traced_entry(index), [&] { return count_and_tell(index); });
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
