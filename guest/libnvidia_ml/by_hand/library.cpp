// SPDX-License-Identifier: Apache-2.0
#include "library.h"

#include <unistd.h>

#include <algorithm>

#include "settings.h"

// A handle is the address of one of these; there is nothing in it.
struct nvmlDevice_st {
  char unused;
};

namespace kvgpu::nvml {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds FIRST_LIMIT{8000};  // kvgpud may wait for a driver that nobody has used
constexpr milliseconds LIMIT{3000};
constexpr milliseconds RECENT{100};

nvmlDevice_st handles[MAX_DEVICES];

}  // namespace

Library& Library::get() {
  static Library& library = *new Library;  // used until the process has ended
  return library;
}

nvmlReturn_t Library::init() {
  if (!guest::check_settings()) return NVML_ERROR_INVALID_ARGUMENT;
  if (!is_initialised()) {
    if (const nvmlReturn_t bad = list_devices()) return bad;
  }
  const std::lock_guard lock(mutex_);
  ++n_inits_;
  return NVML_SUCCESS;
}

nvmlReturn_t Library::list_devices() {
  std::array<Known, MAX_DEVICES> found;
  unsigned n_devices = 1;
  for (unsigned index = 0; index < n_devices; ++index) {
    Report report{};
    const auto now = std::chrono::steady_clock::now();
    if (const nvmlReturn_t bad = ask(index, FIRST_LIMIT, &report)) return bad;
    const uint64_t wanted =
        guest::settings().devices != 0 ? guest::settings().devices : MAX_DEVICES;
    n_devices =
        static_cast<unsigned>(std::min<uint64_t>({report.head.n_devices, MAX_DEVICES, wanted}));
    found[index] = {std::make_shared<const Report>(std::move(report)), now};
  }
  const std::lock_guard lock(mutex_);
  known_ = std::move(found);
  n_devices_ = n_devices;
  return NVML_SUCCESS;
}

nvmlReturn_t Library::shutdown() {
  const std::lock_guard lock(mutex_);
  if (n_inits_ == 0) return NVML_ERROR_UNINITIALIZED;
  --n_inits_;
  return NVML_SUCCESS;
}

bool Library::is_initialised() const {
  const std::lock_guard lock(mutex_);
  return n_inits_ > 0;
}

nvmlDevice_t Library::handle(unsigned index) const { return &handles[index]; }

nvmlReturn_t Library::find(nvmlDevice_t device, unsigned* index) const {
  if (!is_initialised()) return NVML_ERROR_UNINITIALIZED;
  for (unsigned i = 0; i < n_devices_; ++i) {
    if (device != &handles[i]) continue;
    *index = i;
    return NVML_SUCCESS;
  }
  return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t Library::report(nvmlDevice_t device, Freshness freshness,
                             std::shared_ptr<const Report>* report) {
  unsigned index = 0;
  if (const nvmlReturn_t bad = find(device, &index)) return bad;
  const auto now = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    const Known& known = known_[index];
    if (freshness == Freshness::ANY ||
        (freshness == Freshness::RECENT && now - known.asked_at < RECENT)) {
      *report = known.report;
      return NVML_SUCCESS;
    }
  }
  Report asked{};
  const nvmlReturn_t bad = ask(index, LIMIT, &asked);
  // Natively a driver does not go away; a card may.
  if (bad != NVML_SUCCESS) return bad == NVML_ERROR_TIMEOUT ? bad : NVML_ERROR_GPU_IS_LOST;
  *report = std::make_shared<const Report>(std::move(asked));
  const std::lock_guard lock(mutex_);
  known_[index] = {*report, now};
  return NVML_SUCCESS;
}

MemoryView memory_of(const Report& report) {
  MemoryView view{report.head.total_bytes,
                  std::min(report.head.free_bytes, report.head.total_bytes)};
  const uint64_t limit_bytes = guest::memory_limit_bytes();
  if (limit_bytes == 0) return view;
  const auto own = std::ranges::find(report.processes, static_cast<uint32_t>(getpid()),
                                     &control::DeviceProcess::pid);
  const uint64_t used_bytes = own == report.processes.end() ? 0 : own->used_bytes;
  view.total_bytes = std::min(view.total_bytes, limit_bytes);
  view.free_bytes =
      std::min(view.free_bytes, view.total_bytes - std::min(view.total_bytes, used_bytes));
  return view;
}

}  // namespace kvgpu::nvml
