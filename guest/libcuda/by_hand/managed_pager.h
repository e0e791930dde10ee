// SPDX-License-Identifier: Apache-2.0
// The thread that brings managed memory back when a thread of the program has run into its
// protection. What that takes is more than a signal handler may do.
#pragma once

namespace kvgpu::guest {

class Pager {
 public:
  static void start();
  // Pages have been protected.
  static void watch();
  // ManagedMemory::after_host_function(): the calling thread may make no calls.
  static void after_host_function();
};

}  // namespace kvgpu::guest
