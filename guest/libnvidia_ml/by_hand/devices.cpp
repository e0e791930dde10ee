// SPDX-License-Identifier: Apache-2.0
// Which devices there are, in the order in which CUDA numbers them, and who they are.
#include <array>
#include <string>

#include "answers.h"

using namespace kvgpu::nvml;

namespace {

struct PciAddress {
  unsigned domain = 0, bus = 0, device = 0;
  bool operator==(const PciAddress&) const = default;
};

// "domain:bus:device.function", "bus:device.function"; the function may be missing.
bool parse_address(const char* text, PciAddress* address) {
  unsigned a = 0, b = 0, c = 0;
  switch (std::sscanf(text, "%x:%x:%x", &a, &b, &c)) {
    case 3:
      *address = {a, b, c};
      return true;
    case 2:
      *address = {0, a, b};
      return true;
    default:
      return false;
  }
}

std::string uuid_text(const Report& report) {
  std::string text = "GPU-";
  for (size_t i = 0; i < sizeof report.head.uuid; ++i) {
    std::array<char, 3> digits{};
    (void)std::snprintf(digits.data(), digits.size(), "%02x", report.head.uuid[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits.data();
  }
  return text;
}

template <typename Matches>
nvmlReturn_t find_device(nvmlDevice_t* device, Matches matches) {
  Library& library = Library::get();
  for (unsigned index = 0; index < library.n_devices(); ++index) {
    std::shared_ptr<const Report> report;
    const nvmlDevice_t handle = library.handle(index);
    if (const nvmlReturn_t bad = library.report(handle, Freshness::ANY, &report)) return bad;
    if (!matches(*report)) continue;
    *device = handle;
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

template <typename Info>
nvmlReturn_t fill_address(nvmlDevice_t device, Info* pci) {
  std::shared_ptr<const Report> report;
  if (pci == nullptr) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  if (const nvmlReturn_t bad = Library::get().report(device, Freshness::ANY, &report)) return bad;
  PciAddress address;
  if (!parse_address(report->head.pci_bus_id, &address)) return NVML_ERROR_UNKNOWN;
  pci->domain = address.domain;
  pci->bus = address.bus;
  pci->device = address.device;
  using kvgpu::control::Reading;
  pci->pciDeviceId = static_cast<unsigned>(report->find(Reading::PCI_DEVICE_ID).value_or(0));
  pci->pciSubSystemId = static_cast<unsigned>(report->find(Reading::PCI_SUBSYSTEM_ID).value_or(0));
  (void)std::snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0",
                      address.domain & 0xffffffffu, address.bus & 0xff, address.device & 0x1f);
  return NVML_SUCCESS;
}

}  // namespace

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* deviceCount) {
  if (const nvmlReturn_t bad = refuse(NVML_SUCCESS)) return bad;
  if (deviceCount == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *deviceCount = Library::get().n_devices();
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int* deviceCount) {
  return nvmlDeviceGetCount_v2(deviceCount);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  if (const nvmlReturn_t bad = refuse(NVML_SUCCESS)) return bad;
  Library& library = Library::get();
  if (device == nullptr || index >= library.n_devices()) return NVML_ERROR_INVALID_ARGUMENT;
  *device = library.handle(index);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  if (const nvmlReturn_t bad = refuse(NVML_SUCCESS)) return bad;
  if (uuid == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return find_device(device, [&](const Report& report) { return uuid_text(report) == uuid; });
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t* uuid, nvmlDevice_t* device) {
  if (const nvmlReturn_t bad = refuse(NVML_SUCCESS)) return bad;
  if (uuid == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (uuid->version != nvmlUUID_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (uuid->type == NVML_UUID_TYPE_ASCII) {
    const std::string text(uuid->value.str, strnlen(uuid->value.str, sizeof uuid->value.str));
    return nvmlDeviceGetHandleByUUID(text.c_str(), device);
  }
  if (uuid->type != NVML_UUID_TYPE_BINARY) return NVML_ERROR_INVALID_ARGUMENT;
  return find_device(device, [&](const Report& report) {
    return std::memcmp(uuid->value.bytes, report.head.uuid, sizeof report.head.uuid) == 0;
  });
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* pciBusId, nvmlDevice_t* device) {
  if (const nvmlReturn_t bad = refuse(NVML_SUCCESS)) return bad;
  PciAddress wanted;
  if (pciBusId == nullptr || device == nullptr || !parse_address(pciBusId, &wanted)) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  return find_device(device, [&](const Report& report) {
    PciAddress address;
    return parse_address(report.head.pci_bus_id, &address) && address == wanted;
  });
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* pciBusId, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByPciBusId_v2(pciBusId, device);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned int length) {
  std::shared_ptr<const Report> report;
  if (const nvmlReturn_t bad = Library::get().report(device, Freshness::ANY, &report)) return bad;
  return copy_text(report->head.name, name, length);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
  std::shared_ptr<const Report> report;
  if (const nvmlReturn_t bad = Library::get().report(device, Freshness::ANY, &report)) return bad;
  return copy_text(uuid_text(*report), uuid, length);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int* index) {
  if (index == nullptr) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  return Library::get().find(device, index);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  if (const nvmlReturn_t bad = fill_address(device, pci)) return bad;
  (void)std::snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0",
                      pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0x1f);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  nvmlPciInfo_t whole{};
  if (pci == nullptr) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  const nvmlReturn_t bad = nvmlDeviceGetPciInfo_v3(device, &whole);
  if (bad == NVML_SUCCESS) put_old(whole, pci);
  return bad;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return nvmlDeviceGetPciInfo_v2(device, pci);
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t* pci) {
  if (pci != nullptr && pci->version != nvmlPciInfoExt_v1) {
    return refuse(device, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  }
  if (const nvmlReturn_t bad = fill_address(device, pci)) return bad;
  pci->baseClass = 0x03;  // PCI: a display controller
  pci->subClass = 0x02;   // 3D
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
  std::shared_ptr<const Report> report;
  if (const nvmlReturn_t bad = Library::get().report(device, Freshness::ANY, &report)) return bad;
  if (major == nullptr || minor == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *major = report->head.compute_major;
  *minor = report->head.compute_minor;
  return NVML_SUCCESS;
}
