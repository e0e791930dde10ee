// SPDX-License-Identifier: Apache-2.0
// What the functions of nvml.h have in common.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "library.h"
#include "nvml_api.h"

namespace kvgpu::nvml {

inline nvmlReturn_t refuse(nvmlReturn_t why) {
  return Library::get().is_initialised() ? why : NVML_ERROR_UNINITIALIZED;
}
inline nvmlReturn_t refuse(nvmlDevice_t device, nvmlReturn_t why) {
  unsigned index = 0;
  const nvmlReturn_t bad = Library::get().find(device, &index);
  return bad != NVML_SUCCESS ? bad : why;
}

// An answer that is the same for every device.
template <typename T>
nvmlReturn_t answer(nvmlDevice_t device, T* out, std::type_identity_t<T> value) {
  if (const nvmlReturn_t bad = refuse(device, NVML_SUCCESS)) return bad;
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *out = value;
  return NVML_SUCCESS;
}

template <typename T>
nvmlReturn_t read(nvmlDevice_t device, control::Reading reading, T* out) {
  std::shared_ptr<const Report> report;
  if (out == nullptr) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  if (const nvmlReturn_t bad = Library::get().report(device, Freshness::RECENT, &report))
    return bad;
  const auto value = report->find(reading);
  if (!value) return NVML_ERROR_NOT_SUPPORTED;
  *out = static_cast<T>(*value);
  return NVML_SUCCESS;
}

inline control::Reading nth(control::Reading first, unsigned n) {
  return static_cast<control::Reading>(static_cast<uint32_t>(first) + n);
}

// Programs that call the unversioned functions have room for less: no busId of 32 bytes.
inline void put_old(const nvmlPciInfo_t& pci, nvmlPciInfo_t* out) {
  std::memcpy(static_cast<void*>(out), &pci, offsetof(nvmlPciInfo_t, busId));
}

inline nvmlReturn_t copy_text(std::string_view text, char* out, unsigned length) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (text.size() >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(out, text.data(), text.size());
  out[text.size()] = '\0';
  return NVML_SUCCESS;
}

}  // namespace kvgpu::nvml
