// SPDX-License-Identifier: Apache-2.0
// Objects of the program that live as long as a graph needs them.
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <mutex>

namespace software_gpu {

struct UserObject : std::enable_shared_from_this<UserObject> {
  UserObject(CUhostFn destroy_, void* user_, uint64_t n) : destroy(destroy_), user(user_), n_(n) {}
  void retain(uint64_t n);
  /// Releasing the last one runs the destructor, on a thread of its own.
  void release(uint64_t n);
  const CUhostFn destroy;
  void* const user;

 private:
  std::mutex mutex_;
  uint64_t n_;
};

/// What a graph holds; a copy holds as much.
class UserReferences {
 public:
  UserReferences() = default;
  UserReferences(const UserReferences& other);
  UserReferences& operator=(const UserReferences&) = delete;
  ~UserReferences();
  /// The references exist and are the graph's from now on.
  void take(const std::shared_ptr<UserObject>& object, uint64_t n);
  /// False: the graph has fewer.
  [[nodiscard]] bool release(const std::shared_ptr<UserObject>& object, uint64_t n);

 private:
  mutable std::mutex mutex_;
  std::map<std::shared_ptr<UserObject>, uint64_t> held_;
};

}  // namespace software_gpu
