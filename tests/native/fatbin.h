// SPDX-License-Identifier: Apache-2.0
// Fat binaries of what tests put into them.
#pragma once

#include <cstdint>
#include <string>

namespace kvgpu::tests {

inline constexpr uint16_t PTX_KIND = 1, ELF_KIND = 2;

template <typename T>
void put(std::string* to, const T& value) {
  to->append(reinterpret_cast<const char*>(&value), sizeof value);
}

struct Packing {  // none
  uint32_t packed_bytes = 0;
  uint64_t flags = 0;
};

// `arch`: 90 for sm_90.
inline std::string fatbin_entry(uint16_t kind, uint32_t arch, const std::string& code,
                                Packing packing = {}) {
  std::string made;
  put(&made, kind);
  put(&made, uint16_t{0x101});
  put(&made, uint32_t{64});
  put(&made, uint64_t{code.size()});
  put(&made, packing.packed_bytes);
  made.append(8, '\0');
  put(&made, arch);
  made.append(8, '\0');
  put(&made, packing.flags);
  made.append(64 - made.size(), '\0');
  return made + code;
}

inline std::string fatbin(const std::string& entries) {
  std::string made;
  put(&made, uint32_t{0xBA55ED50});
  put(&made, uint16_t{1});
  put(&made, uint16_t{16});
  put(&made, uint64_t{entries.size()});
  return made + entries;
}

}  // namespace kvgpu::tests
