// SPDX-License-Identifier: Apache-2.0
// The digest by which a cudart knows its driver (private table INTEGRITY_CHECK). Described by
// vosen/ZLUDA (`integrity_check`), seen to agree with driver 580.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace kvgpu::guest {

using Md2Digest = std::array<uint8_t, 16>;

// RFC 1319.
Md2Digest md2(std::span<const uint8_t> message);
// RFC 2104 over md2, for keys of one block.
Md2Digest hmac_md2(const Md2Digest& key, std::span<const uint8_t> message);

struct IntegrityInput {
  uint32_t driver_version;
  uint32_t version;  // the argument: cudart's version + 0, 1 or 2
  uint64_t unix_seconds;
  const void* cudart_interface_table;
  const void* integrity_table;
  const void* integrity_function;
};
Md2Digest integrity_digest(const IntegrityInput& input);

}  // namespace kvgpu::guest
