// SPDX-License-Identifier: Apache-2.0
// The ways between the slice's own devices: NVLinks, and access to each other's memory. A switch is
// not in reach of a VM, nor is a device of somebody else: the end of such a link has no address.
#include "links.h"

#include <algorithm>
#include <bit>

using namespace kvgpu::nvml;
using kvgpu::control::LinkFacts;
using kvgpu::control::MAX_LINKS;
using kvgpu::control::PeerFacts;
using kvgpu::control::Reading;

namespace {

nvmlReturn_t find_link(nvmlDevice_t device, unsigned link, LinkFacts* facts) {
  if (link >= MAX_LINKS) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  if (Library::get().n_devices() < 2) return refuse(device, NVML_ERROR_NOT_SUPPORTED);
  uint64_t value = 0;
  if (const nvmlReturn_t bad = read(device, nth(Reading::LINK, link), &value)) return bad;
  *facts = std::bit_cast<LinkFacts>(value);
  return NVML_SUCCESS;
}

// One fact of a link, into what NVML has for it.
template <typename T, typename Fact>
nvmlReturn_t read_link(nvmlDevice_t device, unsigned link, Fact LinkFacts::* fact, T* out) {
  if (out == nullptr) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  LinkFacts facts{};
  if (const nvmlReturn_t bad = find_link(device, link, &facts)) return bad;
  *out = static_cast<T>(facts.*fact);
  return NVML_SUCCESS;
}

nvmlReturn_t find_peer(nvmlDevice_t device1, nvmlDevice_t device2, const void* out,
                       PeerFacts* facts) {
  unsigned index = 0;
  if (const nvmlReturn_t bad = refuse(device1, NVML_SUCCESS)) return bad;
  if (const nvmlReturn_t bad = Library::get().find(device2, &index)) return bad;
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  std::shared_ptr<const Report> report;
  if (const nvmlReturn_t bad = Library::get().report(device1, Freshness::RECENT, &report))
    return bad;
  const auto value = report->find(nth(Reading::PEER, index));
  if (value) {
    *facts = std::bit_cast<PeerFacts>(*value);
  } else {  // a host without NVML: no way is known but that through it
    std::ranges::fill(facts->status, uint8_t{NVML_P2P_STATUS_NOT_SUPPORTED});
    facts->ancestor = NVML_TOPOLOGY_SYSTEM;
  }
  if (device1 == device2) facts->is_on_same_board = 1;
  return NVML_SUCCESS;
}

// How many links are of a kind; NOT_SUPPORTED where there is none of any.
template <typename Counts>
nvmlReturn_t count_links(nvmlDevice_t device, unsigned* n, Counts counts) {
  unsigned n_links = 0;
  for (unsigned link = 0; link < MAX_LINKS; ++link) {
    LinkFacts facts{};
    if (find_link(device, link, &facts) != NVML_SUCCESS) continue;
    ++n_links;
    if (counts(facts)) ++*n;
  }
  return n_links != 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

// The field of a link's speed that names the link, not its scope.
bool is_speed_of_link(unsigned field, unsigned* link) {
  constexpr struct {
    unsigned first_field, first_link;
  } RANGES[] = {{NVML_FI_DEV_NVLINK_SPEED_MBPS_L0, 0}, {NVML_FI_DEV_NVLINK_SPEED_MBPS_L6, 6}};
  for (const auto& [first_field, first_link] : RANGES) {
    if (field < first_field || field >= first_field + 6) continue;
    *link = first_link + field - first_field;
    return true;
  }
  return false;
}

// What stands for a device without an address: as driver 580 has it in a VM that has been given two
// H200s but not the switch behind them.
void hide(nvmlPciInfo_t* pci) {
  *pci = {};
  pci->domain = pci->pciDeviceId = ~0u;
  pci->bus = pci->device = 0xff;
  (void)std::snprintf(pci->busId, sizeof pci->busId, "FFFFFFFF:FF:FF.0");
  (void)std::snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "FFFFFFF:FF:FF.0");
}

}  // namespace

namespace kvgpu::nvml {

nvmlReturn_t fill_link_field(nvmlDevice_t device, nvmlFieldValue_t* value) {
  value->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
  value->value = {};
  unsigned* const out = &value->value.uiVal;
  unsigned link = value->scopeId;
  const auto read_fact = [&](auto fact) {
    return link < MAX_LINKS ? read_link(device, link, fact, out) : NVML_ERROR_NOT_SUPPORTED;
  };
  switch (value->fieldId) {
    case NVML_FI_DEV_NVLINK_GET_STATE:
      return read_fact(&LinkFacts::state);
    case NVML_FI_DEV_NVLINK_GET_VERSION:
      return read_fact(&LinkFacts::version);
    case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
      return read(device, Reading::LINK_MBPS, out);
    case NVML_FI_DEV_NVLINK_LINK_COUNT:
      return count_links(device, out, [](const LinkFacts&) { return true; });
    case NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT:
      return count_links(device, out, [](const LinkFacts& facts) {
        return facts.remote_kind == NVML_NVLINK_DEVICE_TYPE_SWITCH;
      });
    case NVML_FI_DEV_NVLINK_GET_SPEED:
      break;
    default:
      if (!is_speed_of_link(value->fieldId, &link)) return NVML_ERROR_NOT_SUPPORTED;
  }
  if (const nvmlReturn_t bad = read_fact(&LinkFacts::is_active)) return bad;
  return *out != 0 ? read(device, Reading::LINK_MBPS, out) : NVML_SUCCESS;
}

}  // namespace kvgpu::nvml

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link,
                                      nvmlEnableState_t* isActive) {
  return read_link(device, link, &LinkFacts::is_active, isActive);
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link,
                                        unsigned int* version) {
  return read_link(device, link, &LinkFacts::version, version);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                 nvmlIntNvLinkDeviceType_t* pNvLinkDeviceType) {
  return read_link(device, link, &LinkFacts::remote_kind, pNvLinkDeviceType);
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link,
                                           nvmlNvLinkCapability_t capability,
                                           unsigned int* capResult) {
  if (capability >= NVML_NVLINK_CAP_COUNT) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  unsigned capabilities = 0;
  if (capResult == nullptr) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  const nvmlReturn_t bad = read_link(device, link, &LinkFacts::capabilities, &capabilities);
  if (bad == NVML_SUCCESS) *capResult = capabilities >> capability & 1;
  return bad;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link,
                                                 nvmlPciInfo_t* pci) {
  unsigned remote = 0;
  if (pci == nullptr) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  if (const nvmlReturn_t bad = read_link(device, link, &LinkFacts::remote_device, &remote)) {
    return bad;
  }
  Library& library = Library::get();
  if (remote != 0 && remote <= library.n_devices()) {
    return nvmlDeviceGetPciInfo_v3(library.handle(remote - 1), pci);
  }
  hide(pci);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link,
                                              nvmlPciInfo_t* pci) {
  if (pci == nullptr) return refuse(device, NVML_ERROR_INVALID_ARGUMENT);
  nvmlPciInfo_t whole{};
  const nvmlReturn_t bad = nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, &whole);
  if (bad == NVML_SUCCESS) put_old(whole, pci);
  return bad;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2,
                                    nvmlGpuP2PCapsIndex_t p2pIndex, nvmlGpuP2PStatus_t* p2pStatus) {
  PeerFacts facts{};
  if (const nvmlReturn_t bad = find_peer(device1, device2, p2pStatus, &facts)) return bad;
  if (p2pIndex >= std::size(facts.status)) return NVML_ERROR_INVALID_ARGUMENT;
  *p2pStatus = static_cast<nvmlGpuP2PStatus_t>(facts.status[p2pIndex]);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                 nvmlGpuTopologyLevel_t* pathInfo) {
  PeerFacts facts{};
  if (const nvmlReturn_t bad = find_peer(device1, device2, pathInfo, &facts)) return bad;
  if (device1 == device2) return NVML_ERROR_NOT_SUPPORTED;  // driver 580
  *pathInfo = static_cast<nvmlGpuTopologyLevel_t>(facts.ancestor);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device1, nvmlDevice_t device2, int* onSameBoard) {
  PeerFacts facts{};
  if (const nvmlReturn_t bad = find_peer(device1, device2, onSameBoard, &facts)) return bad;
  *onSameBoard = facts.is_on_same_board;
  return NVML_SUCCESS;
}
