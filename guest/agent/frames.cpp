// SPDX-License-Identifier: Apache-2.0
#include "frames.h"

#include <algorithm>

namespace kvgpu::agent {

namespace {

constexpr size_t HEADER_BYTES = sizeof(control::FrameHeader);

bool is_valid(const control::FrameHeader& header) {
  return header.magic == control::FRAME_MAGIC &&
         header.len_bytes <= control::max_payload_bytes(static_cast<control::Type>(header.type));
}

}  // namespace

std::vector<uint8_t> encode(const Frame& frame) {
  const control::FrameHeader header{control::FRAME_MAGIC, static_cast<uint16_t>(frame.type), 0,
                                    static_cast<uint32_t>(frame.payload.size()), frame.id};
  std::vector<uint8_t> bytes(HEADER_BYTES + frame.payload.size());
  std::memcpy(bytes.data(), &header, HEADER_BYTES);
  std::copy(frame.payload.begin(), frame.payload.end(), bytes.begin() + HEADER_BYTES);
  return bytes;
}

std::optional<Frame> decode(std::span<const uint8_t> message) {
  control::FrameHeader header;
  if (message.size() < HEADER_BYTES) return std::nullopt;
  std::memcpy(&header, message.data(), HEADER_BYTES);
  if (!is_valid(header) || message.size() != HEADER_BYTES + header.len_bytes) return std::nullopt;
  const auto payload = message.subspan(HEADER_BYTES);
  return Frame{static_cast<control::Type>(header.type), header.id,
               std::vector<uint8_t>(payload.begin(), payload.end())};
}

Frame make_failure(control::Type type, uint32_t id, int32_t cuda_error, std::string_view message) {
  Frame frame = make_frame(type, id, control::Failure{cuda_error});
  message = message.substr(0, control::MAX_PAYLOAD_BYTES - sizeof(control::Failure));
  frame.payload.resize(sizeof(control::Failure) + message.size());
  std::memcpy(frame.payload.data() + sizeof(control::Failure), message.data(), message.size());
  return frame;
}

std::string failure_text(const Frame& frame) {
  if (frame.payload.size() <= sizeof(control::Failure)) return "no reason given";
  std::string text(frame.payload.begin() + sizeof(control::Failure), frame.payload.end());
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 127; }, '?');
  return text;
}

std::optional<Frame> FrameReader::next() {
  size_t start = 0;
  control::FrameHeader header{};
  for (; start + HEADER_BYTES <= buffer_.size(); ++start) {
    std::memcpy(&header, buffer_.data() + start, HEADER_BYTES);
    if (is_valid(header)) break;
  }
  skipped_bytes_ += start;
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(start));
  if (buffer_.size() < HEADER_BYTES || buffer_.size() < HEADER_BYTES + header.len_bytes) {
    return std::nullopt;
  }
  const size_t frame_bytes = HEADER_BYTES + header.len_bytes;
  auto frame = decode(std::span(buffer_).first(frame_bytes));
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(frame_bytes));
  return frame;
}

}  // namespace kvgpu::agent
