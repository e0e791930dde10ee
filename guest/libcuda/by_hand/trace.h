// SPDX-License-Identifier: Apache-2.0
// KVGPU_TRACE=FILE: each call into a file, another one for Chrome's trace viewer, a table at the
// end (docs/settings.md). Where it is not asked for a call costs one load more.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <type_traits>

#include "cuda_api.h"

namespace kvgpu::guest {

/// An entry point, and what its calls came to.
struct TracedEntry {
  const char* name;
  const char* call_class;
  const char* parameters;  // their names, separated by spaces
  // Below: Trace's, under its lock.
  TracedEntry* next = nullptr;
  uint64_t n_calls = 0, total_ns = 0, host_us = 0, n_round_trips = 0, n_bytes = 0;
};

struct TracedArgument {
  enum class Kind { INTEGER, ADDRESS, TEXT, NUMBER, STRUCT } kind;
  uint64_t value;
};

class Trace {
 public:
  static bool is_on() { return on_.load(std::memory_order_relaxed); }
  /// cuInit; `path` from the settings. False: it cannot be written there, which the log says.
  static bool start(const char* path);
  static void sent(uint32_t len_bytes);
  static void answered(uint32_t len_bytes, uint32_t time);  // as Reply::flags says it
  /// A forked child has no trace.
  static void stop_in_child() { on_.store(false, std::memory_order_relaxed); }

 private:
  static inline std::atomic<bool> on_{false};
};

/// One call: from its construction to finish().
class TracedCall {
 public:
  TracedCall();
  void finish(TracedEntry& entry, CUresult result, const TracedArgument* arguments, size_t n);

 private:
  std::chrono::steady_clock::time_point begun_;
};

template <typename T>
TracedArgument traced_argument(const T& value) {
  using Kind = TracedArgument::Kind;
  if constexpr (std::is_same_v<T, const char*>) {
    return {Kind::TEXT, reinterpret_cast<uint64_t>(value)};
  } else if constexpr (std::is_pointer_v<T>) {
    return {Kind::ADDRESS, reinterpret_cast<uint64_t>(value)};
  } else if constexpr (std::is_same_v<T, CUdeviceptr>) {
    return {Kind::ADDRESS, value};
  } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
    return {Kind::INTEGER, static_cast<uint64_t>(static_cast<int64_t>(value))};
  } else if constexpr (std::is_floating_point_v<T>) {
    return {Kind::NUMBER, static_cast<uint64_t>(static_cast<int64_t>(value))};
  } else {
    return {Kind::STRUCT, 0};
  }
}

template <typename Call, typename... Arguments>
inline CUresult traced(TracedEntry& entry, Call call, const Arguments&... arguments) {
  if (!Trace::is_on()) [[likely]]
    return call();
  TracedCall trace;
  const CUresult result = call();
  const std::array<TracedArgument, sizeof...(Arguments)> values{traced_argument(arguments)...};
  trace.finish(entry, result, values.data(), values.size());
  return result;
}

}  // namespace kvgpu::guest
