// SPDX-License-Identifier: Apache-2.0
// KVGPU_TRACE=FILE: each call into a file, another one for Chrome's trace viewer, a table at the
// end (docs/looking-inside.md). Where it is not asked for, a call costs a load and a branch more,
// whose outcome never changes.
#pragma once

#include <array>
#include <atomic>
#include <bit>
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
  static bool is_off() { return state_.load(std::memory_order_relaxed) == State::OFF; }
  static bool is_on() { return state_.load(std::memory_order_relaxed) == State::ON; }
  /// The first call of all: is it asked for? False: its file cannot be written, which the log says.
  static bool decide();
  /// Of the calling thread's call: a record, a reply, bytes copied through shared memory.
  static void sent(uint32_t len_bytes);
  static void answered(uint32_t len_bytes, uint32_t time);  // as Reply::flags says it
  static void copied(uint64_t len_bytes);
  /// A forked child writes a file of its own. Of one that is forked while a thread decides nothing
  /// is written, and it must not come near what that thread holds.
  static void begin_anew_in_child();
  static bool is_deciding() { return n_deciding_.load(std::memory_order_relaxed) != 0; }

 private:
  enum class State : uint8_t { UNDECIDED, OFF, ON };
  static inline std::atomic<State> state_{State::UNDECIDED};
  static inline std::atomic<int> n_deciding_{0};  // threads; for a forked child, which has none
  friend void finish_trace();
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
    return {Kind::NUMBER, std::bit_cast<uint64_t>(static_cast<double>(value))};
  } else {
    return {Kind::STRUCT, 0};
  }
}

template <typename Call, typename... Arguments>
inline CUresult traced(TracedEntry& entry, Call call, const Arguments&... arguments) {
  if (Trace::is_off()) [[likely]]
    return call();
  TracedCall trace;
  const CUresult result = call();
  const std::array<TracedArgument, sizeof...(Arguments)> values{traced_argument(arguments)...};
  trace.finish(entry, result, values.data(), values.size());
  return result;
}

}  // namespace kvgpu::guest
