// SPDX-License-Identifier: Apache-2.0
// What a thread has for itself and must be cleaned up when it ends.
#pragma once

#include <pthread.h>

namespace kvgpu::guest {

template <typename T>
constinit thread_local T* object_of_thread = nullptr;

template <typename T>
[[gnu::noinline]] T& make_for_this_thread() {
  static const pthread_key_t key = [] {
    pthread_key_t made{};
    (void)pthread_key_create(&made, [](void* ended) {
      object_of_thread<T> = nullptr;  // another destructor of the thread may need a new one
      delete static_cast<T*>(ended);
    });
    return made;
  }();
  object_of_thread<T> = new T;
  (void)pthread_setspecific(key, object_of_thread<T>);
  return *object_of_thread<T>;
}

/// One T for each thread, made at its first use. It is destroyed when the thread ends, but not, as
/// a thread_local object is, by exit() in the main thread: destructors of libraries still call us
/// then.
template <typename T>
T& of_this_thread() {
  T* const object = object_of_thread<T>;
  return object != nullptr ? *object : make_for_this_thread<T>();
}

}  // namespace kvgpu::guest
