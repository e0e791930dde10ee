// SPDX-License-Identifier: Apache-2.0
// Brings managed memory back when a thread of the program has run into its protection. What that
// takes is more than a signal handler may do: threads of ours do it, one for the program's threads,
// which may have to wait for work, and one for host functions, for which that work may wait.
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
