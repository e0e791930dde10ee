// SPDX-License-Identifier: Apache-2.0
// Readings of the physical device that take more than a pointer; the others are generated.
#include <chrono>

#include "answers.h"
#include "links.h"

using namespace kvgpu::nvml;
using kvgpu::control::Reading;

namespace {

// One field of nvmlDeviceGetFieldValues.
struct Field {
  unsigned id;
  Reading reading;
  nvmlValueType_t type = NVML_VALUE_TYPE_UNSIGNED_INT;
};
constexpr Field FIELDS[] = {
    {NVML_FI_DEV_ECC_CURRENT, Reading::ECC_MODE, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG},
    {NVML_FI_DEV_ECC_PENDING, Reading::PENDING_ECC_MODE, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG},
    {NVML_FI_DEV_MEMORY_TEMP, Reading::MEMORY_TEMPERATURE_C},
    {NVML_FI_DEV_POWER_AVERAGE, Reading::POWER_MW},
    {NVML_FI_DEV_POWER_MIN_LIMIT, Reading::MIN_POWER_LIMIT_MW},
    {NVML_FI_DEV_POWER_MAX_LIMIT, Reading::MAX_POWER_LIMIT_MW},
    {NVML_FI_DEV_POWER_DEFAULT_LIMIT, Reading::DEFAULT_POWER_LIMIT_MW},
    {NVML_FI_DEV_POWER_CURRENT_LIMIT, Reading::ENFORCED_POWER_LIMIT_MW},
    {NVML_FI_DEV_POWER_REQUESTED_LIMIT, Reading::POWER_LIMIT_MW},
};

// Power is asked for by part of the card: of its module and its memory nothing is known.
nvmlReturn_t check_scope(const nvmlFieldValue_t& value) {
  const bool is_power = value.fieldId >= NVML_FI_DEV_POWER_AVERAGE &&
                        value.fieldId <= NVML_FI_DEV_POWER_REQUESTED_LIMIT;
  if (!is_power || value.scopeId == NVML_POWER_SCOPE_GPU) return NVML_SUCCESS;
  return value.scopeId <= NVML_POWER_SCOPE_MEMORY ? NVML_ERROR_NOT_SUPPORTED
                                                  : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t fill(nvmlDevice_t device, nvmlFieldValue_t* value) {
  for (const auto& [id, reading, type] : FIELDS) {
    if (value->fieldId != id) continue;
    if (const nvmlReturn_t bad = check_scope(*value)) return refuse(device, bad);
    value->valueType = type;
    value->value = {};
    return type == NVML_VALUE_TYPE_UNSIGNED_LONG_LONG ? read(device, reading, &value->value.ullVal)
                                                      : read(device, reading, &value->value.uiVal);
  }
  return fill_link_field(device, value);
}

}  // namespace

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensorType,
                                      unsigned int* temp) {
  if (sensorType != NVML_TEMPERATURE_GPU) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  return read(device, Reading::TEMPERATURE_C, temp);
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t* temperature) {
  if (temperature == nullptr) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  if (temperature->version != nvmlTemperature_v1) {
    return refuse(device, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  }
  unsigned celsius = 0;
  const nvmlReturn_t bad = nvmlDeviceGetTemperature(device, temperature->sensorType, &celsius);
  if (bad == NVML_SUCCESS) temperature->temperature = static_cast<int>(celsius);
  return bad;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device,
                                               nvmlTemperatureThresholds_t thresholdType,
                                               unsigned int* temp) {
  if (thresholdType >= 8) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  return read(device, nth(Reading::TEMPERATURE_THRESHOLD_C, thresholdType), temp);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type,
                                    unsigned int* clock) {
  if (type >= NVML_CLOCK_COUNT) return refuse(device, NVML_ERROR_NOT_SUPPORTED);
  return read(device, nth(Reading::CLOCK_MHZ, type), clock);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type,
                                       unsigned int* clock) {
  if (type >= NVML_CLOCK_COUNT) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  return read(device, nth(Reading::MAX_CLOCK_MHZ, type), clock);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t clockType,
                                nvmlClockId_t clockId, unsigned int* clockMHz) {
  if (clockId != NVML_CLOCK_ID_CURRENT) return refuse(device, NVML_ERROR_NOT_SUPPORTED);
  return nvmlDeviceGetClockInfo(device, clockType, clockMHz);
}

nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  unsigned limit = 0;
  if (mode == nullptr) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  if (const nvmlReturn_t bad = read(device, Reading::POWER_LIMIT_MW, &limit)) return bad;
  *mode = NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device,
                                                          unsigned int* minLimit,
                                                          unsigned int* maxLimit) {
  if (const nvmlReturn_t bad = read(device, Reading::MIN_POWER_LIMIT_MW, minLimit)) return bad;
  return read(device, Reading::MAX_POWER_LIMIT_MW, maxLimit);
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t* current,
                                  nvmlEnableState_t* pending) {
  if (const nvmlReturn_t bad = read(device, Reading::ECC_MODE, current)) return bad;
  return read(device, Reading::PENDING_ECC_MODE, pending);
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount,
                                      nvmlFieldValue_t* values) {
  if (const nvmlReturn_t bad = refuse(device, NVML_SUCCESS)) return bad;
  if (valuesCount <= 0 || values == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  const auto now_us = std::chrono::duration_cast<std::chrono::microseconds>(since_1970).count();
  for (int i = 0; i < valuesCount; ++i) {
    values[i].timestamp = now_us;
    values[i].latencyUsec = 0;
    values[i].nvmlReturn = fill(device, &values[i]);
  }
  return NVML_SUCCESS;
}
