// SPDX-License-Identifier: Apache-2.0
#include <climits>
#include <thread>

#include "api.h"

namespace software_gpu {

void UserObject::retain(uint64_t n) {
  std::lock_guard lock(mutex_);
  n_ += n;
}

void UserObject::release(uint64_t n) {
  {
    std::lock_guard lock(mutex_);
    n_ -= std::min(n, n_);
    if (n_ != 0) return;
  }
  // Whoever released the last one may hold locks, and waits for nothing.
  if (auto self = Driver::instance().user_objects.take(this))
    std::thread([self] {
      in_host_function() = true;
      self->destroy(self->user);
    }).detach();
}

UserReferences::UserReferences(const UserReferences& other) {
  std::lock_guard lock(other.mutex_);
  held_ = other.held_;
  for (const auto& [object, n] : held_) object->retain(n);
}

UserReferences::~UserReferences() {
  for (const auto& [object, n] : held_) object->release(n);
}

void UserReferences::take(const std::shared_ptr<UserObject>& object, uint64_t n) {
  std::lock_guard lock(mutex_);
  held_[object] += n;
}

bool UserReferences::release(const std::shared_ptr<UserObject>& object, uint64_t n) {
  {
    std::lock_guard lock(mutex_);
    const auto found = held_.find(object);
    if (found == held_.end() || found->second < n) return false;
    found->second -= n;
    if (found->second == 0) held_.erase(found);
  }
  object->release(n);
  return true;
}

}  // namespace software_gpu

using namespace software_gpu;

namespace {

CUresult find(CUuserObject handle, unsigned n, std::shared_ptr<UserObject>* object) {
  RETURN_IF_FAILED(enter_without_context());
  *object = Driver::instance().user_objects.find(handle);
  return *object && n != 0 && n <= INT_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

SOFTWARE_GPU_API cuUserObjectCreate(CUuserObject* handle, void* user, CUhostFn destroy, unsigned n,
                                    unsigned flags) {
  RETURN_IF_FAILED(enter_without_context());
  if (!handle || !destroy || n == 0 || n > INT_MAX || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
    return CUDA_ERROR_INVALID_VALUE;
  auto object = std::make_shared<UserObject>(destroy, user, n);
  *handle = reinterpret_cast<CUuserObject>(object.get());
  Driver::instance().user_objects.add(std::move(object));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuUserObjectRetain(CUuserObject handle, unsigned n) {
  std::shared_ptr<UserObject> object;
  RETURN_IF_FAILED(find(handle, n, &object));
  object->retain(n);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuUserObjectRelease(CUuserObject handle, unsigned n) {
  std::shared_ptr<UserObject> object;
  RETURN_IF_FAILED(find(handle, n, &object));
  object->release(n);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned n,
                                         unsigned flags) {
  std::shared_ptr<UserObject> object;
  RETURN_IF_FAILED(find(handle, n, &object));
  const auto graph = Driver::instance().graphs.find(graph_handle);
  if (!graph || (flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE})) return CUDA_ERROR_INVALID_VALUE;
  if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) object->retain(n);
  graph->references->take(object, n);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle, unsigned n) {
  std::shared_ptr<UserObject> object;
  RETURN_IF_FAILED(find(handle, n, &object));
  const auto graph = Driver::instance().graphs.find(graph_handle);
  return graph && graph->references->release(object, n) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
