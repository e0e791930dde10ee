// SPDX-License-Identifier: Apache-2.0
// Layouts: fat binary as in vosen/ZLUDA; ELF by elf.h.
#include "image.h"

#include <elf.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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

struct FatbinEntry {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t stored_bytes;
  uint32_t unknown[3];
  uint32_t arch;  // as in sm_90
};
static_assert(sizeof(FatbinEntry) == 32);
constexpr uint16_t KNOWN_VERSION = 1, KIND_ELF = 2;

// Relocatable device code (NCCL): `data` is what nvlink made, `prelinked` lists what of.
constexpr uint32_t LINKED_VERSION = 2;
constexpr size_t MAX_PRELINKED = 1 << 16;
constexpr uint64_t MAX_IMAGE_BYTES = 1ull << 32;

// False: not readable.
template <typename T>
bool read(const std::byte* from, T* value) {
  return copy_from_program(value, from, sizeof *value);
}

// 0: damaged.
uint64_t elf_bytes(const std::byte* image) {
  Elf64_Ehdr header;
  if (!read(image, &header)) return 0;
  uint64_t end = sizeof header;
  const auto reaches = [&](uint64_t offset, uint64_t bytes) {
    if (offset > MAX_IMAGE_BYTES || bytes > MAX_IMAGE_BYTES) return false;
    end = std::max(end, offset + bytes);
    return true;
  };
  if (!reaches(header.e_shoff, uint64_t{header.e_shnum} * header.e_shentsize) ||
      !reaches(header.e_phoff, uint64_t{header.e_phnum} * header.e_phentsize)) {
    return 0;
  }
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    if (!read(image + header.e_shoff + i * header.e_shentsize, &section)) return 0;
    if (section.sh_type != SHT_NOBITS && !reaches(section.sh_offset, section.sh_size)) return 0;
  }
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!read(image + header.e_phoff + i * header.e_phentsize, &segment)) return 0;
    if (!reaches(segment.p_offset, segment.p_filesz)) return 0;
  }
  return end;
}

}  // namespace

bool copy_from_program(void* to, const void* from, size_t bytes) {
  auto* at = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const iovec local{at, bytes}, remote{const_cast<std::byte*>(source), bytes};
    const ssize_t n = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
    if (n < 0 && errno == EFAULT) return false;
    if (n <= 0) {  // forbidden here (seccomp): as natively, then
      std::memcpy(at, source, bytes);
      return true;
    }
    at += n;
    source += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool is_wrapper(const void* image) {
  uint32_t magic = 0;
  const auto* data = static_cast<const std::byte*>(image);
  return copy_from_program(&magic, data, 1) && magic == (WRAPPER_MAGIC & 0xff) &&
         read(data, &magic) && magic == WRAPPER_MAGIC;
}

std::optional<ImageBytes> measure_image(const void* image) {
  const auto* data = static_cast<const std::byte*>(image);
  uint32_t magic = 0;
  // An empty PTX may be one byte long.
  if (!copy_from_program(&magic, data, 1) || (magic != 0 && !read(data, &magic)))
    return std::nullopt;
  if (magic == WRAPPER_MAGIC) {
    Wrapper wrapper;
    if (!read(data, &wrapper)) return std::nullopt;
    if (wrapper.data == nullptr) return std::nullopt;
    data = static_cast<const std::byte*>(wrapper.data);
    if (!read(data, &magic)) return std::nullopt;
  }
  if (magic == FATBIN_MAGIC) {
    FatbinHeader header;
    if (!read(data, &header) || header.entries_bytes > MAX_IMAGE_BYTES) return std::nullopt;
    return ImageBytes{data, header.header_bytes + header.entries_bytes};
  }
  if (std::memcmp(&magic, ELFMAG, SELFMAG) == 0) {
    const uint64_t bytes = elf_bytes(data);
    return bytes == 0 ? std::nullopt : std::optional(ImageBytes{data, bytes});
  }
  // PTX is text: anything else with a printable beginning is for the driver to judge.
  const char first = static_cast<char>(data[0]);
  if (first == '\0' || static_cast<unsigned char>(first) >= 0x80) return std::nullopt;
  return ImageBytes{data, std::strlen(reinterpret_cast<const char*>(data)) + 1};
}

namespace {

// Machine code runs on devices of its own major only. Of those since Blackwell that is not assumed:
// their numbers have changed between releases of CUDA.
bool may_run(const FatbinEntry& entry, std::span<const int> majors) {
  constexpr int FIRST_UNSURE = 10;
  const int major = static_cast<int>(entry.arch / 10);
  return entry.kind != KIND_ELF || major == 0 || std::ranges::any_of(majors, [&](int device) {
           return major == device || std::min(major, device) >= FIRST_UNSURE;
         });
}

}  // namespace

LoadableImage loadable_parts(const ImageBytes& image, std::span<const int> majors) {
  LoadableImage whole{{}, {image}};
  FatbinHeader header;
  if (image.bytes < sizeof header || !read(image.data, &header) || header.magic != FATBIN_MAGIC ||
      header.version != KNOWN_VERSION || header.header_bytes < sizeof header) {
    return whole;
  }
  LoadableImage found{std::vector<std::byte>(header.header_bytes), {}};
  uint64_t kept_bytes = 0;
  const uint64_t end = header.header_bytes + header.entries_bytes;
  for (uint64_t offset = header.header_bytes; offset < end;) {
    FatbinEntry entry;
    const uint64_t left = end - offset;
    if (left < sizeof entry || !read(image.data + offset, &entry) ||
        entry.header_bytes < sizeof entry || entry.header_bytes > left ||
        entry.stored_bytes > left - entry.header_bytes) {
      return whole;  // the driver is to say what it thinks of that
    }
    const ImageBytes part{image.data + offset, entry.header_bytes + entry.stored_bytes};
    if (may_run(entry, majors)) {
      found.parts.push_back(part);
      kept_bytes += part.bytes;
    }
    offset += part.bytes;
  }
  if (found.parts.empty() || kept_bytes == header.entries_bytes) return whole;
  if (!copy_from_program(found.head.data(), image.data, found.head.size())) return whole;
  header.entries_bytes = kept_bytes;
  std::memcpy(found.head.data(), &header, sizeof header);
  found.parts.insert(found.parts.begin(), {found.head.data(), found.head.size()});
  return found;
}

std::vector<ImageBytes> prelinked_images(const void* wrapper) {
  std::vector<ImageBytes> images;
  Wrapper linked;
  if (!is_wrapper(wrapper) || !read(static_cast<const std::byte*>(wrapper), &linked) ||
      linked.version < LINKED_VERSION || linked.prelinked == nullptr) {
    return images;
  }
  const auto* at = static_cast<const std::byte*>(linked.prelinked);
  for (const void* each; images.size() < MAX_PRELINKED && read(at, &each) && each != nullptr;
       at += sizeof each) {
    if (const auto image = measure_image(each)) images.push_back(*image);
  }
  return images;
}

}  // namespace kvgpu::guest
