// SPDX-License-Identifier: Apache-2.0
// Layouts: fat binary as in vosen/ZLUDA; ELF by elf.h.
#include "image.h"

#include <elf.h>

#include <algorithm>
#include <cstring>

namespace kvgpu::guest {

namespace {

constexpr uint32_t WRAPPER_MAGIC = 0x466243b1, FATBIN_MAGIC = 0xBA55ED50;

struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const void* data;
  const void* prelinked;
};

struct FatbinHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t entries_bytes;
};

template <typename T>
T read(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

uint64_t elf_bytes(const std::byte* image) {
  const auto header = read<Elf64_Ehdr>(image);
  uint64_t end = std::max(header.e_shoff + uint64_t{header.e_shnum} * header.e_shentsize,
                          header.e_phoff + uint64_t{header.e_phnum} * header.e_phentsize);
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    const auto section = read<Elf64_Shdr>(image + header.e_shoff + i * header.e_shentsize);
    if (section.sh_type != SHT_NOBITS) end = std::max(end, section.sh_offset + section.sh_size);
  }
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    const auto segment = read<Elf64_Phdr>(image + header.e_phoff + i * header.e_phentsize);
    end = std::max(end, segment.p_offset + segment.p_filesz);
  }
  return end;
}

}  // namespace

std::optional<ImageBytes> measure_image(const void* image) {
  const auto* data = static_cast<const std::byte*>(image);
  if (read<uint32_t>(data) == WRAPPER_MAGIC) {
    const auto wrapper = read<Wrapper>(data);
    // Version 2 (NCCL): prelinked binaries are listed in the fourth field; the first is what
    // counts.
    const void* inner = wrapper.version == 2 && wrapper.prelinked != nullptr
                            ? read<const void*>(wrapper.prelinked)
                            : wrapper.data;
    if (inner == nullptr) return std::nullopt;
    data = static_cast<const std::byte*>(inner);
  }
  const auto magic = read<uint32_t>(data);
  if (magic == FATBIN_MAGIC) {
    const auto header = read<FatbinHeader>(data);
    return ImageBytes{data, header.header_bytes + header.entries_bytes};
  }
  if (std::memcmp(data, ELFMAG, SELFMAG) == 0) return ImageBytes{data, elf_bytes(data)};
  // PTX is text: anything else with a printable beginning is for the driver to judge.
  const char first = static_cast<char>(data[0]);
  if (first == '\0' || static_cast<unsigned char>(first) >= 0x80) return std::nullopt;
  return ImageBytes{data, std::strlen(reinterpret_cast<const char*>(data)) + 1};
}

}  // namespace kvgpu::guest
