// SPDX-License-Identifier: Apache-2.0
// Fat binary layout as public projects describe it (vosen/ZLUDA): a 16-byte header, then entries of
// 64 bytes or more.
#include "image.h"

#include <lz4.h>
#include <zstd.h>

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace kvgpu::worker {

namespace {

constexpr uint32_t FATBIN_MAGIC = 0xBA55ED50;
constexpr uint64_t FLAG_LZ4 = 0x2000, FLAG_ZSTD = 0x8000;
constexpr uint64_t MAX_UNPACKED_BYTES = 1ull << 30;

struct FatbinHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t entries_bytes;
};

struct FatbinEntry {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t stored_bytes;
  uint32_t packed_bytes;
  uint32_t unknown[5];
  uint64_t flags;
  uint64_t unknown2;
  uint64_t unpacked_bytes;
};
static_assert(sizeof(FatbinEntry) == 64);

bool mentions_printing(std::string_view code) {
  return code.find("vprintf") != code.npos || code.find("__assertfail") != code.npos;
}

bool entry_may_print(const FatbinEntry& entry, std::span<const std::byte> stored) {
  if (entry.packed_bytes == 0 || !(entry.flags & (FLAG_LZ4 | FLAG_ZSTD))) {
    return mentions_printing({reinterpret_cast<const char*>(stored.data()), stored.size()});
  }
  if (entry.unpacked_bytes > MAX_UNPACKED_BYTES || entry.packed_bytes > stored.size()) return true;
  std::vector<char> unpacked(entry.unpacked_bytes);
  const auto* packed = reinterpret_cast<const char*>(stored.data());
  const bool ok =
      entry.flags & FLAG_ZSTD
          ? !ZSTD_isError(
                ZSTD_decompress(unpacked.data(), unpacked.size(), packed, entry.packed_bytes))
          : LZ4_decompress_safe(packed, unpacked.data(), static_cast<int>(entry.packed_bytes),
                                static_cast<int>(unpacked.size())) >= 0;
  return !ok || mentions_printing({unpacked.data(), unpacked.size()});
}

}  // namespace

bool is_fatbin(std::span<const std::byte> image) {
  uint32_t magic = 0;
  if (image.size() >= sizeof magic) std::memcpy(&magic, image.data(), sizeof magic);
  return magic == FATBIN_MAGIC;
}

bool may_print(std::span<const std::byte> image) {
  if (!is_fatbin(image)) {
    return mentions_printing({reinterpret_cast<const char*>(image.data()), image.size()});
  }
  FatbinHeader header;
  if (image.size() < sizeof header) return true;
  std::memcpy(&header, image.data(), sizeof header);
  size_t offset = header.header_bytes;
  while (offset + sizeof(FatbinEntry) <= image.size() &&
         offset < header.header_bytes + header.entries_bytes) {
    FatbinEntry entry;
    std::memcpy(&entry, image.data() + offset, sizeof entry);
    const uint64_t left = image.size() - offset;
    if (entry.header_bytes < sizeof entry || entry.header_bytes > left ||
        entry.stored_bytes > left - entry.header_bytes) {
      return true;
    }
    if (entry_may_print(entry, image.subspan(offset + entry.header_bytes, entry.stored_bytes))) {
      return true;
    }
    offset += entry.header_bytes + entry.stored_bytes;
  }
  return false;
}

}  // namespace kvgpu::worker
