// SPDX-License-Identifier: Apache-2.0
// The error log: the last lines of the driver, for programs that ask.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>

#include "api.h"
#include "log.h"

struct CUlogsCallbackEntry_st {
  CUlogsCallback function;
  void* data;
};

namespace software_gpu {
namespace {

constexpr size_t MAX_BYTES = 25600;  // CUDA 13.0, cuLogsDumpToMemory
constexpr char TRUNCATED[] = "kvgpu software GPU: older messages are left out\n";

struct Log {
  static Log& instance() {
    static Log* log = new Log;
    return *log;
  }
  /// The lines from `*from` on; `*from` is their end then. Were there others?
  std::deque<std::string> since(CUlogIterator* from, bool* has_lost) {
    std::lock_guard lock(mutex);
    const CUlogIterator end = n_dropped + static_cast<CUlogIterator>(lines.size());
    const CUlogIterator begin = std::min(from ? *from : 0u, end);
    *has_lost = begin < n_dropped;
    if (from) *from = end;
    return {lines.begin() + (begin < n_dropped ? 0 : begin - n_dropped), lines.end()};
  }
  std::mutex mutex;
  std::deque<std::string> lines;  // each with its end
  size_t n_bytes = 0;
  CUlogIterator n_dropped = 0;
  std::vector<std::unique_ptr<CUlogsCallbackEntry_st>> callbacks;
};

}  // namespace

void report(CUlogLevel level, const std::string& line) {
  fprintf(stderr, "%s\n", line.c_str());
  Log& log = Log::instance();
  std::vector<CUlogsCallbackEntry_st> callbacks;
  {
    std::lock_guard lock(log.mutex);
    log.lines.push_back(line.substr(0, MAX_BYTES / 2) + "\n");
    log.n_bytes += log.lines.back().size();
    for (; log.n_bytes > MAX_BYTES; ++log.n_dropped) {
      log.n_bytes -= log.lines.front().size();
      log.lines.pop_front();
    }
    for (const auto& callback : log.callbacks) callbacks.push_back(*callback);
  }
  std::string message = line;
  for (const auto& callback : callbacks)
    callback.function(callback.data, level, message.data(), message.size());
}

}  // namespace software_gpu

using namespace software_gpu;

SOFTWARE_GPU_API cuLogsRegisterCallback(CUlogsCallback function, void* data,
                                        CUlogsCallbackHandle* handle) {
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  Log& log = Log::instance();
  std::lock_guard lock(log.mutex);
  log.callbacks.push_back(std::make_unique<CUlogsCallbackEntry_st>());
  *log.callbacks.back() = {function, data};
  if (handle) *handle = log.callbacks.back().get();
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
  Log& log = Log::instance();
  std::lock_guard lock(log.mutex);
  const auto is_it = [handle](const auto& callback) { return callback.get() == handle; };
  return std::erase_if(log.callbacks, is_it) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Driver 580 does not look at these flags.
SOFTWARE_GPU_API cuLogsCurrent(CUlogIterator* iterator, unsigned) {
  if (!iterator) return CUDA_ERROR_INVALID_VALUE;
  Log& log = Log::instance();
  std::lock_guard lock(log.mutex);
  *iterator = log.n_dropped + static_cast<CUlogIterator>(log.lines.size());
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuLogsDumpToFile(CUlogIterator* iterator, const char* path, unsigned flags) {
  if (!path || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::FILE* const file = std::fopen(path, "w");
  if (!file) return CUDA_ERROR_INVALID_VALUE;
  bool has_lost;
  const auto lines = Log::instance().since(iterator, &has_lost);
  if (has_lost) std::fputs(TRUNCATED, file);
  for (const std::string& line : lines) std::fputs(line.c_str(), file);
  return std::fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

SOFTWARE_GPU_API cuLogsDumpToMemory(CUlogIterator* iterator, char* buffer, size_t* size,
                                    unsigned flags) {
  if (!buffer || !size || *size == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  bool has_lost;
  auto lines = Log::instance().since(iterator, &has_lost);
  const size_t room = *size - 1;
  const auto n_bytes = [&] {
    size_t sum = has_lost ? strlen(TRUNCATED) : 0;
    for (const std::string& line : lines) sum += line.size();
    return sum;
  };
  while (!lines.empty() && n_bytes() > room) {
    lines.pop_front();
    has_lost = true;
  }
  *size = 0;
  buffer[0] = 0;
  if (lines.empty()) return has_lost ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  std::string text = has_lost ? TRUNCATED : "";
  for (const std::string& line : lines) text += line;
  memcpy(buffer, text.c_str(), text.size() + 1);
  *size = text.size();
  return CUDA_SUCCESS;
}
