// SPDX-License-Identifier: Apache-2.0
#include "region_memory.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "log.h"
#include "memory_type.h"
#include "parallel_copy.h"
#include "streaming.h"
#include "trace.h"

namespace kvgpu::guest {

namespace {

void say_once(std::atomic<bool>* said, const char* what) {
  if (!said->exchange(true)) log(Level::DEBUG, "the first streaming copy %s", what);
}

void cached(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

}  // namespace

RegionMemory& RegionMemory::get() {
  static auto& memory = *new RegionMemory;
  return memory;
}

void RegionMemory::find_out(std::byte* page) {
  const char* const told = secure_getenv("KVGPU_MEMORY_TYPE");
  const auto forced = told != nullptr ? memory::parse(told) : std::nullopt;
  if (told != nullptr && !forced) {
    log(Level::WARNING, "KVGPU_MEMORY_TYPE=%s is none of wb, wc, uc: measured instead", told);
  }
  const auto begun = std::chrono::steady_clock::now();
  const memory::Measured measured = memory::measure(page);
  const std::chrono::duration<double, std::micro> took_us =
      std::chrono::steady_clock::now() - begun;
  const memory::Type type = forced.value_or(measured.type);
  streams_ = type != memory::Type::WRITE_BACK;
  const std::string_view name = memory::to_string(type);
  log(Level::DEBUG, "memory type of the region: %.*s (%s; reads %.0f MB/s; %.0f us to find out)",
      static_cast<int>(name.size()), name.data(), forced ? "told" : "measured",
      measured.read_mb_per_s, took_us.count());
}

void RegionMemory::copy_in(void* to, const void* from, size_t bytes) const {
  static std::atomic<bool> said{false};
  Trace::copied(bytes);
  if (streams_) say_once(&said, "into the region");
  memory::CopyCrew::get().run(streams_ ? memory::stream_in : cached, to, from, bytes);
}

void RegionMemory::copy_out(void* to, const void* from, size_t bytes) const {
  static std::atomic<bool> said{false};
  Trace::copied(bytes);
  if (streams_) say_once(&said, "out of the region");
  memory::CopyCrew::get().run(streams_ ? memory::stream_out : cached, to, from, bytes);
}

}  // namespace kvgpu::guest
