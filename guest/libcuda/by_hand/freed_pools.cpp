// SPDX-License-Identifier: Apache-2.0
#include "freed_pools.h"

#include <algorithm>
#include <vector>

#include "call.h"
#include "enqueue.h"
#include "generated/api.gen.h"
#include "kvgpu/plain_calls.gen.h"

namespace kvgpu::guest {

namespace {

struct Freed {
  wire::Handle pool, stream;
  int device;
  bool operator==(const Freed&) const = default;
};

std::mutex mutex;
auto& freed = *new std::vector<Freed>;

bool is_still_running(const Freed& each) {
  Stream* const stream = tables().streams.find(each.stream);
  uint64_t number;
  return stream != nullptr && !is_over(*stream, &number);
}

CUresult trim_pool(const Freed& each) {
  CUmemoryPool pool = from_wire<CUmemoryPool>(each.pool);
  if (each.pool == 0) {  // the default one, which the program has not asked for yet
    if (const CUresult bad = device_get_default_mem_pool(&pool, each.device)) return bad;
  }
  const MemPool* const known = find(pool);
  if (known == nullptr) return CUDA_SUCCESS;  // destroyed
  const uint64_t threshold = known->release_threshold.load(std::memory_order_relaxed);
  if (threshold == UINT64_MAX) return CUDA_SUCCESS;
  const wire::cuMemPoolTrimTo_in body{0, to_wire(pool), threshold};
  const CUresult result =
      Session::get().call(wire::Op::cuMemPoolTrimTo, each.device, nullptr, part(body));
  // Another thread has destroyed it.
  return result == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : result;
}

}  // namespace

void FreedPools::add(const Stream& stream, wire::Handle pool) {
  const Freed one{pool, stream.handle, stream.context->device};
  const std::lock_guard lock(mutex);
  if (std::ranges::find(freed, one) == freed.end()) freed.push_back(one);
  is_any_.store(true, std::memory_order_relaxed);
}

CUresult FreedPools::trim() {
  std::vector<Freed> over;
  {
    const std::lock_guard lock(mutex);
    const auto begin = std::partition(freed.begin(), freed.end(), is_still_running);
    over.assign(begin, freed.end());
    freed.erase(begin, freed.end());
    is_any_.store(!freed.empty(), std::memory_order_relaxed);
  }
  std::vector<wire::Handle> done;
  for (const Freed& each : over) {
    if (std::ranges::find(done, each.pool) != done.end()) continue;
    done.push_back(each.pool);
    if (const CUresult bad = trim_pool(each)) return bad;
  }
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
