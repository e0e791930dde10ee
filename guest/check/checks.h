// SPDX-License-Identifier: Apache-2.0
// The checks. Each looks for itself: none trusts what another part of kvgpu says about itself.
#pragma once

#include <cstddef>
#include <string>

#include "kvgpu/control.h"
#include "report.h"

namespace kvgpu::check {

// Is this a VM with the ivshmem device, or a process under `kvgpu run`?
Result check_device();

// A session of our own with the host, as a CUDA program has one. Lives as long as this object.
class Channel {
 public:
  Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel();

  Result open();          // agent up, host up, session given
  Result check_region();  // mapped, and what the host has set up
  Result check_memory();  // type and bandwidth
  Result check_kick();    // how a program wakes its worker
  Result check_host();    // protocol

 private:
  Result read_answer(const char* frame, size_t len_bytes);
  // Does the host have other memory than this guest?
  bool is_byte_stream() const { return (opened_.features & control::FEATURE_BYTE_STREAM) != 0; }

  int socket_ = -1;
  int region_fd_ = -1;
  int kick_fd_ = -1;  // BAR 0, or on the host an eventfd
  control::Opened opened_{};
  std::byte* block_ = nullptr;
};

// Whose libcuda.so.1 does the loader pick?
Result check_library();
// A small kernel on the first device.
Result check_kernel();

}  // namespace kvgpu::check
