// SPDX-License-Identifier: Apache-2.0
// The agent's reading of control frames: one message, and a byte stream that comes in pieces.
#include "frames.h"

#include <cstdlib>

using namespace kvgpu;

namespace {

void use(const agent::Frame& frame) {
  if (frame.payload.size() > control::max_payload_bytes(frame.type)) std::abort();
  (void)agent::payload_as<control::Welcome>(frame);
  (void)agent::payload_as<control::Opened>(frame);
  (void)agent::payload_as<control::Open>(frame);
  for (const char c : agent::failure_text(frame)) {
    if (static_cast<unsigned char>(c) < ' ') std::abort();
  }
  const auto again = agent::decode(agent::encode(frame));
  if (!again || again->payload != frame.payload || again->id != frame.id) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (const auto frame = agent::decode({data, size})) use(*frame);
  if (size == 0) return 0;
  agent::FrameReader reader;
  const size_t piece = 1 + data[0];
  for (size_t at = 1; at < size; at += piece) {
    reader.push({data + at, std::min(piece, size - at)});
    while (const auto frame = reader.next()) use(*frame);
  }
  (void)reader.take_skipped();
  return 0;
}
