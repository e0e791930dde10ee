// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress: by exact (name, version, flags), with the answers driver 580 gives, or the
// host's driver where that is older: it knows no name, and no version of a name, of a later
// release.
#include "proc_address.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "generated/api.gen.h"
#include "host_link.h"

namespace kvgpu::guest {

namespace {

struct Found {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
};

Found find(const char* symbol, int version, bool per_thread, int served_version) {
  const std::span table(PROC_ADDRESSES, N_PROC_ADDRESSES);
  const auto by_name = [](const ProcAddress& a, const char* b) {
    return std::strcmp(a.name, b) < 0;
  };
  const auto first = std::lower_bound(table.begin(), table.end(), symbol, by_name);
  const auto last = std::find_if(
      first, table.end(), [&](const ProcAddress& e) { return std::strcmp(e.name, symbol) != 0; });
  const bool has_twin = std::any_of(first, last, [&](const ProcAddress& e) {
    return e.per_thread && e.version <= served_version;
  });
  Found found;
  for (auto entry = first; entry != last; ++entry) {
    if (entry->per_thread != (per_thread && has_twin)) continue;
    if (entry->version > served_version) continue;
    if (entry->version <= version || version < 0) {  // driver 580: the newest
      found = {entry->function, CU_GET_PROC_ADDRESS_SUCCESS};
    } else if (found.function == nullptr) {
      found.status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    }
  }
  return found;
}

}  // namespace

CUresult get_proc_address_v2(const char* symbol, void** pfn, int cuda_version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* symbol_status,
                             CUstream default_stream) {
  if (symbol == nullptr || pfn == nullptr || flags > 2) return CUDA_ERROR_INVALID_VALUE;
  const int served_version = served_cuda_version();
  if (cuda_version > served_version) return CUDA_ERROR_INVALID_VALUE;
  // The _ptsz twin: "default" means the stream per thread.
  if (flags == CU_GET_PROC_ADDRESS_DEFAULT && default_stream == CU_STREAM_PER_THREAD) {
    flags = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  }
  const Found found = find(symbol, cuda_version,
                           flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, served_version);
  *pfn = found.function;
  if (symbol_status != nullptr) *symbol_status = found.status;
  return CUDA_SUCCESS;
}

CUresult get_proc_address(const char* symbol, void** pfn, int cuda_version, cuuint64_t flags) {
  CUdriverProcAddressQueryResult status;
  const CUresult result =
      get_proc_address_v2(symbol, pfn, cuda_version, flags, &status, CU_STREAM_LEGACY);
  if (result != CUDA_SUCCESS) return result;
  // The four-argument form has no other way to say so.
  return status == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // namespace kvgpu::guest
