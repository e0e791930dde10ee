// SPDX-License-Identifier: Apache-2.0
// Devices: answered from the tables that came with the session.
#include <algorithm>
#include <cstring>

#include "generated/api.gen.h"
#include "host_link.h"
#include "session.h"

namespace kvgpu::guest {

namespace {

const wire::DeviceInfo* find_device(CUdevice device, CUresult* error) {
  const DeviceState* const state = Session::get().find_device(device);
  *error = state != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  return state != nullptr ? &state->info : nullptr;
}

}  // namespace

CUresult init(unsigned int Flags) {
  if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return Session::get().open();
}

CUresult driver_get_version(int* driverVersion) {
  if (driverVersion == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *driverVersion = served_cuda_version();
  return CUDA_SUCCESS;
}

CUresult device_get(CUdevice* device, int ordinal) {
  CUresult error;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (find_device(ordinal, &error) != nullptr) *device = ordinal;
  return error;
}

CUresult device_get_count(int* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Session& session = Session::get();
  *count = static_cast<int>(session.devices().size());
  return CUDA_SUCCESS;
}

CUresult device_get_name(char* name, int len, CUdevice dev) {
  CUresult error;
  if (name == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (const auto* info = find_device(dev, &error)) {
    std::strncpy(name, info->name, static_cast<size_t>(len));
    name[len - 1] = '\0';
  }
  return error;
}

CUresult device_total_mem_v2(size_t* bytes, CUdevice dev) {
  CUresult error;
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const auto* info = find_device(dev, &error)) *bytes = info->total_bytes;
  return error;
}

CUresult device_get_attribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
  CUresult error;
  if (pi == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto* info = find_device(dev, &error);
  if (info == nullptr) return error;
  if (attrib < 0 || attrib >= wire::N_DEVICE_ATTRIBUTES) return CUDA_ERROR_INVALID_VALUE;
  const int32_t value = info->attributes[attrib];
  if (value == wire::ATTRIBUTE_UNKNOWN) return CUDA_ERROR_INVALID_VALUE;
  if (attrib == CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) {
    *pi = 0;  // the GPU sees registered memory where it was moved to (registrations.h)
    return CUDA_SUCCESS;
  }
  *pi = value;
  // Made of ordinary device memory (managed_memory.h), whatever the device itself can do.
  if (attrib == CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) {
    *pi = Session::get().speaks(wire::Op::cuLibraryGetManaged) ? 1 : 0;
  }
  return CUDA_SUCCESS;
}

CUresult device_get_uuid(CUuuid* uuid, CUdevice dev) {
  CUresult error;
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const auto* info = find_device(dev, &error))
    std::memcpy(uuid->bytes, info->uuid, sizeof info->uuid);
  return error;
}

CUresult device_get_uuid_v2(CUuuid* uuid, CUdevice dev) { return device_get_uuid(uuid, dev); }

CUresult device_get_pci_bus_id(char* pciBusId, int len, CUdevice dev) {
  CUresult error;
  if (pciBusId == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  const auto* info = find_device(dev, &error);
  if (info == nullptr) return error;
  const size_t with_nul_bytes = std::strlen(info->pci_bus_id) + 1;
  if (with_nul_bytes > static_cast<size_t>(len)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(pciBusId, info->pci_bus_id, with_nul_bytes);
  return CUDA_SUCCESS;
}

CUresult device_get_by_pci_bus_id(CUdevice* dev, const char* pciBusId) {
  if (dev == nullptr || pciBusId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Session& session = Session::get();
  const auto& devices = session.devices();
  for (size_t i = 0; i < devices.size(); ++i) {
    const char* known = devices[i].info.pci_bus_id;
    const char* short_form = std::strchr(known, ':');  // without the domain
    if (strcasecmp(known, pciBusId) == 0 ||
        (short_form && strcasecmp(short_form + 1, pciBusId) == 0)) {
      *dev = static_cast<CUdevice>(i);
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult device_compute_capability(int* major, int* minor, CUdevice dev) {
  const CUresult result =
      device_get_attribute(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev);
  if (result != CUDA_SUCCESS) return result;
  return device_get_attribute(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, dev);
}

CUresult module_get_loading_mode(CUmoduleLoadingMode* mode) {
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const char* wanted = std::getenv("CUDA_MODULE_LOADING");
  *mode = wanted != nullptr && std::strcmp(wanted, "EAGER") == 0 ? CU_MODULE_EAGER_LOADING
                                                                 : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
