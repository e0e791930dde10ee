// SPDX-License-Identifier: Apache-2.0
#include "managed_advice.h"

#include <cstring>
#include <vector>

#include "call.h"
#include "generated/api.gen.h"
#include "managed_ranges.h"

namespace kvgpu::guest {

AdviceMap& AdviceMap::get() {
  static auto& map = *new AdviceMap;
  return map;
}

AdviceMap::Pieces::iterator AdviceMap::split(uint64_t address) {
  const auto before = std::prev(pieces_.upper_bound(address));
  return before->first == address ? before : pieces_.emplace(address, before->second).first;
}

Advice AdviceMap::common(uint64_t address, uint64_t bytes) const {
  const auto is_same = [](const CUmemLocation& a, const CUmemLocation& b) {
    return a.type == b.type && (a.type == CU_MEM_LOCATION_TYPE_HOST || a.id == b.id);
  };
  const std::lock_guard lock(mutex_);
  auto at = std::prev(pieces_.upper_bound(address));
  Advice all = at->second;
  for (++at; at != pieces_.end() && at->first - address < bytes; ++at) {
    const Advice& next = at->second;
    all.read_mostly &= next.read_mostly;
    all.accessed_by &= next.accessed_by;
    all.accessed_by_host &= next.accessed_by_host;
    if (!is_same(all.preferred, next.preferred)) all.preferred = Advice().preferred;
    if (!is_same(all.prefetched, next.prefetched)) all.prefetched = Advice().prefetched;
  }
  return all;
}

namespace {

bool is_host_node(const CUmemLocation& location) {
  return is_host(location) && location.type != CU_MEM_LOCATION_TYPE_HOST;
}

// As driver 580 looks at the location: not at all where only whether there is one matters.
CUresult check_advice(CUmem_advise advice, const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_INVALID) return CUDA_ERROR_INVALID_VALUE;
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      return check_location(location, CUDA_ERROR_INVALID_VALUE);
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      if (is_host_node(location)) return CUDA_ERROR_INVALID_VALUE;
      return check_location(location, CUDA_ERROR_INVALID_VALUE);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

void follow(CUmem_advise advice, const CUmemLocation& location, Advice* kept) {
  const bool is_set = advice == CU_MEM_ADVISE_SET_ACCESSED_BY;
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      kept->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
      return;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      // As driver 580: of a node of the host's nothing is kept.
      if (!is_host_node(location)) kept->preferred = location;
      return;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      kept->preferred = Advice().preferred;
      return;
    default:
      break;
  }
  if (is_host(location)) {
    kept->accessed_by_host = is_set;
    return;
  }
  const uint32_t bit = 1u << location.id;
  kept->accessed_by = is_set ? kept->accessed_by | bit : kept->accessed_by & ~bit;
}

CUresult advise(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                const CUmemLocation& location) {
  const Call call(CaptureRule::FORBIDDEN);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (const CUresult bad = check_managed(address, bytes)) return bad;
  if (const CUresult bad = check_advice(advice, location)) return bad;
  AdviceMap::get().change(address, bytes, [&](Advice& kept) { follow(advice, location, &kept); });
  return CUDA_SUCCESS;
}

CUresult answer(void* data, size_t bytes, int value) {
  if (bytes != sizeof value) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

CUresult answer_accessed_by(void* data, size_t bytes, const Advice& advice) {
  if (bytes == 0 || bytes % sizeof(int) != 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<int> ids;
  for (int id = 0; id < 32; ++id) {
    if ((advice.accessed_by >> id & 1) != 0) ids.push_back(id);
  }
  if (advice.accessed_by_host) ids.push_back(CU_DEVICE_CPU);
  ids.resize(bytes / sizeof(int), CU_DEVICE_INVALID);
  std::memcpy(data, ids.data(), bytes);
  return CUDA_SUCCESS;
}

CUresult range_attribute(void* data, size_t bytes, CUmem_range_attribute attribute,
                         const Advice& advice) {
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      return answer(data, bytes, advice.read_mostly ? 1 : 0);
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      return answer(data, bytes, device_of(advice.preferred));
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
      return answer_accessed_by(data, bytes, advice);
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      return answer(data, bytes, device_of(advice.prefetched));
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      return answer(data, bytes, advice.preferred.type);
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      return answer(data, bytes, id_of(advice.preferred));
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      return answer(data, bytes, advice.prefetched.type);
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      return answer(data, bytes, id_of(advice.prefetched));
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

CUresult mem_advise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device) {
  const CUmemLocation location = location_of(device);
  if (is_host(location) || Session::get().find_device(device) != nullptr) {
    return mem_advise_v2(devPtr, count, advice, location);
  }
  return CUDA_ERROR_INVALID_DEVICE;
}
CUresult mem_advise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                       CUmemLocation location) {
  return advise(devPtr, count, advice, location);
}

CUresult mem_range_get_attribute(void* data, size_t dataSize, CUmem_range_attribute attribute,
                                 CUdeviceptr devPtr, size_t count) {
  return mem_range_get_attributes(&data, &dataSize, &attribute, 1, devPtr, count);
}
CUresult mem_range_get_attributes(void** data, size_t* dataSizes, CUmem_range_attribute* attributes,
                                  size_t numAttributes, CUdeviceptr devPtr, size_t count) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (data == nullptr || dataSizes == nullptr || attributes == nullptr || numAttributes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult bad = check_managed(devPtr, count)) return bad;
  const Advice advice = AdviceMap::get().common(devPtr, count);
  for (size_t i = 0; i < numAttributes; ++i) {
    if (data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult bad = range_attribute(data[i], dataSizes[i], attributes[i], advice);
    if (bad != CUDA_SUCCESS) return bad;
  }
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
