// SPDX-License-Identifier: Apache-2.0
// Control frames as bytes: PROTOCOL.md §4. Nothing that is read here is trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvgpu/control.h"

namespace kvgpu::agent {

struct Frame {
  control::Type type{};
  uint32_t id = 0;
  std::vector<uint8_t> payload;
};

std::vector<uint8_t> encode(const Frame& frame);
// One whole message of a packet socket; empty if it is not exactly one well-formed frame.
std::optional<Frame> decode(std::span<const uint8_t> message);

template <typename T>
Frame make_frame(control::Type type, uint32_t id, const T& payload) {
  Frame frame{type, id, std::vector<uint8_t>(sizeof(T))};
  std::memcpy(frame.payload.data(), &payload, sizeof(T));
  return frame;
}
Frame make_failure(control::Type type, uint32_t id, int32_t cuda_error, std::string_view message);

// Copies a payload's struct out; empty if the payload is too short. A longer one is fine.
template <typename T>
std::optional<T> payload_as(const Frame& frame) {
  if (frame.payload.size() < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, frame.payload.data(), sizeof(T));
  return value;
}
// The text behind a Failure, safe to print.
std::string failure_text(const Frame& frame);

// Cuts a byte stream into frames and, after garbage, finds the next frame.
class FrameReader {
 public:
  void push(std::span<const uint8_t> bytes) {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
  std::optional<Frame> next();
  void clear() { buffer_.clear(); }
  // Bytes that belonged to no frame since the last question.
  size_t take_skipped() { return std::exchange(skipped_bytes_, 0); }

 private:
  std::vector<uint8_t> buffer_;
  size_t skipped_bytes_ = 0;
};

}  // namespace kvgpu::agent
