// SPDX-License-Identifier: Apache-2.0
#include "control.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "log.h"

namespace kvgpu::worker {

bool Control::send(control::Type type, uint32_t id, const void* payload, uint32_t len_bytes) {
  char frame[sizeof(control::FrameHeader) + control::MAX_PAYLOAD_BYTES];
  const control::FrameHeader header{control::FRAME_MAGIC, static_cast<uint16_t>(type), 0, len_bytes,
                                    id};
  std::memcpy(frame, &header, sizeof header);
  std::memcpy(frame + sizeof header, payload, len_bytes);
  return ::send(CONTROL_FD, frame, sizeof header + len_bytes, MSG_NOSIGNAL) >= 0;
}

void Control::ready(uint32_t n_devices) {
  const control::Ready body{n_devices};
  send(control::Type::READY, session_id_, &body, sizeof body);
}

void Control::report_failure(CUresult error, const std::string& reason) {
  char payload[1024];
  const control::Failure failure{static_cast<int32_t>(error)};
  const size_t n = std::min(reason.size(), sizeof payload - sizeof failure);
  std::memcpy(payload, &failure, sizeof failure);
  std::memcpy(payload + sizeof failure, reason.data(), n);
  send(control::Type::FAILED, 0, payload, static_cast<uint32_t>(sizeof failure + n));
}

bool Control::allocate_extent(uint64_t bytes, control::Extent* extent) {
  std::unique_lock lock(mutex_);
  const uint32_t request = next_request_++;
  const control::ExtentAlloc body{bytes};
  if (!send(control::Type::EXTENT_ALLOC, request, &body, sizeof body)) return false;
  answered_.wait(lock, [&] { return answers_.contains(request); });
  *extent = answers_[request];
  answers_.erase(request);
  return extent->bytes >= bytes;
}

void Control::free_extent(uint64_t offset) {
  const control::ExtentFree body{offset};
  send(control::Type::EXTENT_FREE, 0, &body, sizeof body);
}

void Control::serve() {
  char frame[sizeof(control::FrameHeader) + control::MAX_PAYLOAD_BYTES];
  for (;;) {
    const ssize_t n = recv(CONTROL_FD, frame, sizeof frame, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    control::FrameHeader header;
    if (static_cast<size_t>(n) < sizeof header) continue;
    std::memcpy(&header, frame, sizeof header);
    if (header.type != static_cast<uint16_t>(control::Type::EXTENT) ||
        static_cast<size_t>(n) < sizeof header + sizeof(control::Extent)) {
      log("control frame of type %u ignored", header.type);
      continue;
    }
    const std::lock_guard lock(mutex_);
    std::memcpy(&answers_[header.id], frame + sizeof header, sizeof(control::Extent));
    answered_.notify_all();
  }
}

}  // namespace kvgpu::worker
