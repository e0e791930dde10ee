// SPDX-License-Identifier: Apache-2.0
#include "telemetry_links.h"

#include <bit>
#include <cstdint>

#include "kvgpu/device_report.h"

namespace kvgpu::worker {

namespace {

using control::LinkFacts;
using control::PeerFacts;

constexpr unsigned N_P2P_INDICES = NVML_P2P_CAPS_INDEX_UNKNOWN;
static_assert(N_P2P_INDICES == sizeof(PeerFacts::status));
static_assert(control::MAX_LINKS == NVML_NVLINK_MAX_LINKS);

template <typename Facts>
std::string number(const Facts& facts) {
  return std::to_string(std::bit_cast<uint64_t>(facts));
}

}  // namespace

const std::string& TelemetryLinks::of(nvmlDevice_t device) {
  const auto known = known_.find(device);
  if (known != known_.end()) return known->second;
  return known_[device] = describe(device);
}

std::string TelemetryLinks::describe(nvmlDevice_t device) const {
  return "\"link_mbps\": " + std::to_string(speed(device)) + ", \"links\": [" + links(device) +
         "], \"peers\": [" + peers(device) + "]";
}

// Driver 580 has no common speed of an H200's links, but one for each; older ones only the former.
unsigned TelemetryLinks::speed(nvmlDevice_t device) const {
  if (const auto mbps = field(device, NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, 0)) return *mbps;
  for (unsigned link = 0; link < control::MAX_LINKS; ++link) {
    const unsigned mbps = field(device, NVML_FI_DEV_NVLINK_GET_SPEED, link).value_or(0);
    if (mbps != 0) return mbps;
  }
  return 0;
}

std::optional<unsigned> TelemetryLinks::field(nvmlDevice_t device, unsigned id,
                                              unsigned scope) const {
  nvmlFieldValue_t value{};
  value.fieldId = id;
  value.scopeId = scope;
  const nvmlReturn_t bad = nvml_.call("nvmlDeviceGetFieldValues", device, 1, &value);
  if (bad != NVML_SUCCESS || value.nvmlReturn != NVML_SUCCESS) return std::nullopt;
  return value.value.uiVal;
}

std::string TelemetryLinks::links(nvmlDevice_t device) const {
  std::string text, separator;
  for (unsigned link = 0; link < control::MAX_LINKS; ++link) {
    LinkFacts facts{};
    for (unsigned capability = 0; capability < NVML_NVLINK_CAP_COUNT; ++capability) {
      unsigned has = 0;
      if (nvml_.call("nvmlDeviceGetNvLinkCapability", device, link,
                     static_cast<nvmlNvLinkCapability_t>(capability), &has) == NVML_SUCCESS &&
          has != 0) {
        facts.capabilities = static_cast<uint8_t>(facts.capabilities | 1u << capability);
      }
    }
    // After the capabilities: asking for those makes the driver train the link (NCCL, xml.cc).
    nvmlEnableState_t is_active = NVML_FEATURE_DISABLED;
    const bool has_activity =
        nvml_.call("nvmlDeviceGetNvLinkState", device, link, &is_active) == NVML_SUCCESS;
    const auto state = field(device, NVML_FI_DEV_NVLINK_GET_STATE, link);
    if (!has_activity && !state) continue;
    facts.state = static_cast<uint8_t>(state.value_or(is_active));
    facts.is_active =
        static_cast<uint8_t>(has_activity ? is_active != NVML_FEATURE_DISABLED : facts.state != 0);
    unsigned version = 0;
    (void)nvml_.call("nvmlDeviceGetNvLinkVersion", device, link, &version);
    facts.version = static_cast<uint8_t>(version);
    nvmlIntNvLinkDeviceType_t kind = NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    (void)nvml_.call("nvmlDeviceGetNvLinkRemoteDeviceType", device, link, &kind);
    facts.remote_kind = static_cast<uint8_t>(kind);
    nvmlPciInfo_t pci{};
    nvmlDevice_t remote = nullptr;
    std::string remote_uuid;
    if (nvml_.call("nvmlDeviceGetNvLinkRemotePciInfo_v2", device, link, &pci) == NVML_SUCCESS &&
        nvml_.call("nvmlDeviceGetHandleByPciBusId_v2", static_cast<const char*>(pci.busId),
                   &remote) == NVML_SUCCESS) {
      remote_uuid = uuid(remote);
    }
    text += separator;
    text += "[" + std::to_string(link) + ", " + number(facts) + ", \"";
    text += remote_uuid + "\"]";
    separator = ", ";
  }
  return text;
}

std::string TelemetryLinks::peers(nvmlDevice_t device) const {
  std::string text, separator;
  unsigned n_devices = 0;
  (void)nvml_.call("nvmlDeviceGetCount_v2", &n_devices);
  for (unsigned i = 0; i < n_devices; ++i) {
    nvmlDevice_t other = nullptr;
    if (nvml_.call("nvmlDeviceGetHandleByIndex_v2", i, &other) != NVML_SUCCESS) continue;
    PeerFacts facts{};
    for (unsigned index = 0; index < N_P2P_INDICES; ++index) {
      nvmlGpuP2PStatus_t status = NVML_P2P_STATUS_UNKNOWN;
      (void)nvml_.call("nvmlDeviceGetP2PStatus", device, other,
                       static_cast<nvmlGpuP2PCapsIndex_t>(index), &status);
      facts.status[index] = static_cast<uint8_t>(status);
    }
    nvmlGpuTopologyLevel_t ancestor = NVML_TOPOLOGY_SYSTEM;
    (void)nvml_.call("nvmlDeviceGetTopologyCommonAncestor", device, other, &ancestor);
    facts.ancestor = static_cast<uint8_t>(ancestor);
    int is_on_same_board = 0;
    (void)nvml_.call("nvmlDeviceOnSameBoard", device, other, &is_on_same_board);
    facts.is_on_same_board = is_on_same_board != 0 ? 1 : 0;
    text += separator + "[\"" + uuid(other) + "\", " + number(facts) + "]";
    separator = ", ";
  }
  return text;
}

std::string TelemetryLinks::uuid(nvmlDevice_t device) const {
  char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE]{};
  const nvmlReturn_t bad = nvml_.call("nvmlDeviceGetUUID", device, text, unsigned{sizeof text});
  return bad == NVML_SUCCESS ? text : "";
}

}  // namespace kvgpu::worker
