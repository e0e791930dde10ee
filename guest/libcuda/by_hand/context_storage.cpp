// SPDX-License-Identifier: Apache-2.0
#include "context_storage.h"

#include <map>
#include <mutex>
#include <vector>

#include "contexts.h"
#include "session.h"

namespace kvgpu::guest {

namespace {

struct Entry {
  void* value;
  StorageDestructor destructor;
};

std::mutex mutex;
auto& entries = *new std::map<std::pair<Context*, void*>, Entry>;
// Changes with every put and delete: release by those, acquire by get.
std::atomic<uint64_t> generation{1};

// cudart asks for the same value at every call: the last answer, as long as nothing has changed.
struct LastHit {
  uint64_t generation = 0;
  Context* context = nullptr;
  void* key = nullptr;
  void* value = nullptr;
};
thread_local LastHit last_hit;

Context* resolve(CUcontext context) {
  return context == nullptr ? current_context() : find(context);
}

}  // namespace

CUresult storage_put(CUcontext handle, void* key, void* value, StorageDestructor destructor) {
  Context* const context = resolve(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard lock(mutex);
  entries[{context, key}] = {value, destructor};
  generation.fetch_add(1, std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult storage_delete(CUcontext handle, void* key) {
  Context* const context = resolve(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard lock(mutex);
  generation.fetch_add(1, std::memory_order_release);
  return entries.erase({context, key}) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult storage_get(void** value, CUcontext handle, void* key) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *value = nullptr;
  Context* const context = resolve(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const uint64_t now = generation.load(std::memory_order_acquire);
  if (last_hit.generation == now && last_hit.context == context && last_hit.key == key) {
    *value = last_hit.value;
    return CUDA_SUCCESS;
  }
  const std::lock_guard lock(mutex);
  const auto found = entries.find({context, key});
  if (found == entries.end()) return CUDA_ERROR_INVALID_HANDLE;
  *value = found->second.value;
  last_hit = {now, context, key, *value};
  return CUDA_SUCCESS;
}

void run_storage_destructors(Context& context) {
  std::vector<std::pair<void*, Entry>> mine;
  {
    const std::lock_guard lock(mutex);
    const auto first = entries.lower_bound({&context, nullptr});
    auto last = first;
    for (; last != entries.end() && last->first.first == &context; ++last) {
      mine.emplace_back(last->first.second, last->second);
    }
    entries.erase(first, last);
    generation.fetch_add(1, std::memory_order_release);
  }
  for (const auto& [key, entry] : mine) {
    if (entry.destructor != nullptr) {
      entry.destructor(from_wire<CUcontext>(context.handle), key, entry.value);
    }
  }
}

}  // namespace kvgpu::guest
