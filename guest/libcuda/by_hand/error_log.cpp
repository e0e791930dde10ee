// SPDX-License-Identifier: Apache-2.0
#include "error_log.h"

#include <pthread.h>
#include <sys/time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "generated/api.gen.h"
#include "session.h"

struct CUlogsCallbackEntry_st {
  CUlogsCallback function;
  void* data;
};

namespace kvgpu::guest {

namespace {

constexpr size_t MAX_LINES = 100;  // as driver 580
constexpr char TRUNCATED[] = "older messages are left out\n";

std::mutex mutex;
auto& lines = *new std::deque<std::string>;  // each with its end
CUlogIterator n_dropped = 0;                 // lines that are gone
auto& callbacks = *new std::vector<CUlogsCallbackHandle>;

// As driver 580 writes them.
std::string line_of(const std::string& message) {
  timeval now{};
  gettimeofday(&now, nullptr);
  tm local{};
  localtime_r(&now.tv_sec, &local);
  char head[96];
  std::snprintf(head, sizeof head, "[%02d:%02d:%02d.%03d][%llu][CUDA][E] ", local.tm_hour,
                local.tm_min, local.tm_sec, static_cast<int>(now.tv_usec / 1000),
                static_cast<unsigned long long>(pthread_self()));
  return head + message + "\n";
}

// The lines from `*from` on, null: all. Holding the mutex. False: there is no such line.
bool since(const CUlogIterator* from, std::vector<std::string>* found, bool* has_lost) {
  const CUlogIterator end = n_dropped + static_cast<CUlogIterator>(lines.size());
  const CUlogIterator begin = from == nullptr ? 0 : *from;
  if (begin > end) return false;
  *has_lost = begin < n_dropped;
  found->assign(lines.begin() + (*has_lost ? 0 : begin - n_dropped), lines.end());
  return true;
}

void advance(CUlogIterator* iterator) {
  if (iterator != nullptr) *iterator = n_dropped + static_cast<CUlogIterator>(lines.size());
}

}  // namespace

void note_failure(const char* entry_point, int result) {
  if (result == CUDA_ERROR_NOT_READY) return;  // an answer, no failure
  const char* name = nullptr;
  (void)get_error_name(static_cast<CUresult>(result), &name);
  std::string message = "Returning " + std::to_string(result) + " (" +
                        (name == nullptr ? "unknown" : name) + ") from " + entry_point;
  std::vector<CUlogsCallbackEntry_st> told;
  {
    const std::lock_guard lock(mutex);
    lines.push_back(line_of(message));
    for (; lines.size() > MAX_LINES; ++n_dropped) lines.pop_front();
    for (const auto& callback : callbacks) told.push_back(*callback);
  }
  for (const auto& [function, data] : told) {
    function(data, CU_LOG_LEVEL_ERROR, message.data(), message.size());
  }
}

CUresult logs_register_callback(CUlogsCallback callbackFunc, void* userData,
                                CUlogsCallbackHandle* callback_out) {
  if (callbackFunc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex);
  callbacks.push_back(new CUlogsCallbackEntry_st{callbackFunc, userData});
  if (callback_out != nullptr) *callback_out = callbacks.back();
  return CUDA_SUCCESS;
}

CUresult logs_unregister_callback(CUlogsCallbackHandle callback) {
  const std::lock_guard lock(mutex);
  if (std::erase(callbacks, callback) == 0) return CUDA_ERROR_INVALID_VALUE;
  delete callback;
  return CUDA_SUCCESS;
}

// Driver 580 does not look at these flags.
CUresult logs_current(CUlogIterator* iterator_out, unsigned int) {
  if (iterator_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex);
  advance(iterator_out);
  return CUDA_SUCCESS;
}

CUresult logs_dump_to_file(CUlogIterator* iterator, const char* pathToFile, unsigned int flags) {
  if (pathToFile == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex);
  std::vector<std::string> found;
  bool has_lost;
  if (!since(iterator, &found, &has_lost)) return CUDA_ERROR_INVALID_VALUE;
  std::FILE* const file = std::fopen(pathToFile, "w");
  if (file == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (has_lost) std::fputs(TRUNCATED, file);
  for (const std::string& line : found) std::fputs(line.c_str(), file);
  if (std::fclose(file) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  advance(iterator);
  return CUDA_SUCCESS;
}

CUresult logs_dump_to_memory(CUlogIterator* iterator, char* buffer, size_t* size,
                             unsigned int flags) {
  if (buffer == nullptr || size == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  // As driver 580: no room is an error since cuInit only.
  if (*size == 0) return Session::is_open() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  const std::lock_guard lock(mutex);
  std::vector<std::string> found;
  bool has_lost;
  const size_t room = *size - 1;
  *size = 0;
  if (!since(iterator, &found, &has_lost)) return CUDA_ERROR_INVALID_VALUE;
  const bool is_any = !found.empty();
  size_t first = 0, bytes = has_lost ? std::strlen(TRUNCATED) : 0;
  for (const std::string& line : found) bytes += line.size();
  for (; first < found.size() && bytes > room; ++first) {
    if (first == 0 && !has_lost) bytes += std::strlen(TRUNCATED);
    bytes -= found[first].size();
  }
  if (is_any && first == found.size()) return CUDA_ERROR_INVALID_VALUE;
  std::string text = is_any && (has_lost || first > 0) ? TRUNCATED : "";
  for (size_t i = first; i < found.size(); ++i) text += found[i];
  std::memcpy(buffer, text.c_str(), text.size() + 1);
  *size = text.size();
  advance(iterator);
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
