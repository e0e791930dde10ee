// SPDX-License-Identifier: Apache-2.0
// Fat binary layout as public projects describe it (vosen/ZLUDA): a 16-byte header, then entries of
// 64 bytes or more.
#include "image.h"

#include <elf.h>
#include <lz4.h>
#include <zstd.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

namespace kvgpu::worker {

namespace {

constexpr uint32_t FATBIN_MAGIC = 0xBA55ED50;
constexpr uint64_t FLAG_LZ4 = 0x2000, FLAG_ZSTD = 0x8000;
constexpr uint64_t MAX_UNPACKED_BYTES = 1ull << 30;
// Code is never packed better than that: who says so wants our memory.
constexpr uint64_t MAX_RATIO = 256;

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

// What is stored unpacked, `room` being for what is not; nothing where nobody knows how.
std::optional<std::span<const std::byte>> unpacked(const FatbinEntry& entry,
                                                   std::span<const std::byte> stored,
                                                   std::vector<std::byte>* room) {
  if (entry.packed_bytes == 0) return stored;
  if (!(entry.flags & (FLAG_LZ4 | FLAG_ZSTD)) || entry.packed_bytes > stored.size() ||
      entry.unpacked_bytes > MAX_UNPACKED_BYTES ||
      entry.unpacked_bytes / MAX_RATIO > entry.packed_bytes) {
    return std::nullopt;
  }
  room->resize(entry.unpacked_bytes);
  auto* const to = reinterpret_cast<char*>(room->data());
  const auto* packed = reinterpret_cast<const char*>(stored.data());
  const bool ok = entry.flags & FLAG_ZSTD
                      ? !ZSTD_isError(ZSTD_decompress(to, room->size(), packed, entry.packed_bytes))
                      : LZ4_decompress_safe(packed, to, static_cast<int>(entry.packed_bytes),
                                            static_cast<int>(room->size())) >= 0;
  if (!ok) return std::nullopt;
  return *room;
}

}  // namespace

bool is_fatbin(std::span<const std::byte> image) {
  uint32_t magic = 0;
  if (image.size() >= sizeof magic) std::memcpy(&magic, image.data(), sizeof magic);
  return magic == FATBIN_MAGIC;
}

namespace {

// Visits the entries of a fat binary; false where a size points out of it, or where `visit` says
// so.
template <typename Visit>
bool each_entry(std::span<const std::byte> image, Visit visit) {
  FatbinHeader header;
  if (image.size() < sizeof header) return false;
  std::memcpy(&header, image.data(), sizeof header);
  if (header.header_bytes < sizeof header || header.header_bytes > image.size() ||
      header.entries_bytes > image.size() - header.header_bytes) {
    return false;
  }
  const size_t end = header.header_bytes + header.entries_bytes;
  for (size_t offset = header.header_bytes; offset + sizeof(FatbinEntry) <= end;) {
    FatbinEntry entry;
    std::memcpy(&entry, image.data() + offset, sizeof entry);
    const uint64_t left = end - offset;
    if (entry.header_bytes < sizeof entry || entry.header_bytes > left ||
        entry.stored_bytes > left - entry.header_bytes) {
      return false;
    }
    if (!visit(entry, image.subspan(offset + entry.header_bytes, entry.stored_bytes))) return false;
    offset += entry.header_bytes + entry.stored_bytes;
  }
  return true;
}

bool elf_is_whole(std::span<const std::byte> image) {
  Elf64_Ehdr header;
  if (image.size() < sizeof header) return false;
  std::memcpy(&header, image.data(), sizeof header);
  const auto inside = [&](uint64_t offset, uint64_t bytes) {
    return offset <= image.size() && bytes <= image.size() - offset;
  };
  if (header.e_shentsize != sizeof(Elf64_Shdr) && header.e_shnum != 0) return false;
  if (header.e_phentsize != sizeof(Elf64_Phdr) && header.e_phnum != 0) return false;
  if (!inside(header.e_shoff, uint64_t{header.e_shnum} * sizeof(Elf64_Shdr)) ||
      !inside(header.e_phoff, uint64_t{header.e_phnum} * sizeof(Elf64_Phdr))) {
    return false;
  }
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, image.data() + header.e_shoff + i * sizeof section, sizeof section);
    if (section.sh_type != SHT_NOBITS && !inside(section.sh_offset, section.sh_size)) return false;
  }
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    std::memcpy(&segment, image.data() + header.e_phoff + i * sizeof segment, sizeof segment);
    if (!inside(segment.p_offset, segment.p_filesz)) return false;
  }
  return true;
}

bool is_elf(std::span<const std::byte> image) {
  return image.size() >= SELFMAG && std::memcmp(image.data(), ELFMAG, SELFMAG) == 0;
}

}  // namespace

bool is_whole(std::span<const std::byte> image) {
  if (is_elf(image)) return elf_is_whole(image);
  if (!is_fatbin(image)) return true;  // text, ends with a zero (Blobs)
  return each_entry(image, [](const FatbinEntry&, std::span<const std::byte> stored) {
    return !is_elf(stored) || elf_is_whole(stored);
  });
}

Printers printers_of(std::span<const std::byte> image) {
  Printers found;
  const auto add_entry = [&](const FatbinEntry& entry, std::span<const std::byte> stored) {
    std::vector<std::byte> room;
    const auto code = unpacked(entry, stored, &room);
    return code && found.add_code(*code);
  };
  const bool is_told = is_fatbin(image) ? each_entry(image, add_entry) : found.add_code(image);
  if (!is_told) found.add_all();
  return found;
}

}  // namespace kvgpu::worker
