// SPDX-License-Identifier: Apache-2.0
#include "fatbin.h"

#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace software_gpu::fatbin {
namespace {

constexpr uint32_t WRAPPER_MAGIC = 0x466243b1;  // __fatBinC_Wrapper_t of fatbinary_section.h
constexpr uint32_t FATBIN_MAGIC = 0xba55ed50;
constexpr uint32_t ELF_MAGIC = 0x464c457f;
constexpr uint16_t KIND_PTX = 1;
constexpr uint64_t FLAG_LZ4 = 0x2000;
constexpr uint64_t FLAG_ZSTD = 0x8000;
constexpr uint64_t MAX_PTX_BYTES = 1ull << 30;
constexpr uint64_t MAX_LZ4_RATIO = 255;

struct Wrapper {
  uint32_t magic, version;
  const void* data;
  const void* filename_or_fatbins;
};

struct Header {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t size_bytes;  // of all entries
};

struct Entry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t payload_bytes;  // as stored, padding included
  uint32_t compressed_bytes;
  uint32_t options_offset;
  uint16_t minor, major;
  uint32_t arch;
  uint32_t name_offset, name_bytes;
  uint64_t flags, zero;
  uint64_t raw_bytes;  // 0 when stored plainly
};
static_assert(sizeof(Entry) == 64);

/// What the compressed bytes may become at most; a damaged header must not ask for more.
uint64_t max_raw_bytes(const Entry& entry, const char* payload) {
  if ((entry.flags & FLAG_ZSTD) == 0) return MAX_LZ4_RATIO * entry.compressed_bytes;
  const unsigned long long stated = ZSTD_getFrameContentSize(payload, entry.compressed_bytes);
  if (stated == ZSTD_CONTENTSIZE_ERROR) return 0;
  return stated == ZSTD_CONTENTSIZE_UNKNOWN ? MAX_PTX_BYTES : stated;
}

CUresult unpack(const Entry& entry, const char* payload, std::string* ptx) {
  if (entry.raw_bytes == 0 || (entry.flags & (FLAG_LZ4 | FLAG_ZSTD)) == 0) {
    ptx->assign(payload, strnlen(payload, entry.payload_bytes));
    return CUDA_SUCCESS;
  }
  if (entry.compressed_bytes > entry.payload_bytes || entry.raw_bytes > MAX_PTX_BYTES ||
      entry.raw_bytes > max_raw_bytes(entry, payload))
    return CUDA_ERROR_INVALID_IMAGE;
  std::vector<char> raw(entry.raw_bytes);
  bool complete = false;
  if (entry.flags & FLAG_ZSTD) {
    const size_t n = ZSTD_decompress(raw.data(), raw.size(), payload, entry.compressed_bytes);
    complete = !ZSTD_isError(n) && n == raw.size();
  } else {
    const int n = LZ4_decompress_safe(payload, raw.data(), static_cast<int>(entry.compressed_bytes),
                                      static_cast<int>(raw.size()));
    complete = n >= 0 && static_cast<size_t>(n) == raw.size();
  }
  if (!complete) return CUDA_ERROR_INVALID_IMAGE;
  ptx->assign(raw.data(), strnlen(raw.data(), raw.size()));
  return CUDA_SUCCESS;
}

CUresult extract_from_container(const char* at, uint64_t image_bytes, std::string* ptx) {
  Header header;
  if (image_bytes < sizeof header) return CUDA_ERROR_INVALID_IMAGE;
  memcpy(&header, at, sizeof header);
  if (header.version != 1 || header.header_bytes < sizeof header ||
      header.header_bytes > image_bytes || header.size_bytes > image_bytes - header.header_bytes)
    return CUDA_ERROR_INVALID_IMAGE;
  at += header.header_bytes;
  uint64_t left_bytes = header.size_bytes;
  Entry best{};
  const char* best_payload = nullptr;
  while (left_bytes >= sizeof(Entry)) {
    Entry entry;
    memcpy(&entry, at, sizeof entry);
    if (entry.header_bytes < sizeof entry || entry.header_bytes > left_bytes ||
        entry.payload_bytes > left_bytes - entry.header_bytes)
      return CUDA_ERROR_INVALID_IMAGE;
    if (entry.kind == KIND_PTX && entry.arch <= TARGET_ARCH &&
        (!best_payload || entry.arch > best.arch)) {
      best = entry;
      best_payload = at + entry.header_bytes;
    }
    at += entry.header_bytes + entry.payload_bytes;
    left_bytes -= entry.header_bytes + entry.payload_bytes;
  }
  if (!best_payload) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  return unpack(best, best_payload, ptx);
}

}  // namespace

CUresult extract_ptx(const void* image, uint64_t image_bytes, bool or_wrapper, std::string* ptx) {
  if (!image) return CUDA_ERROR_INVALID_VALUE;
  const char* bytes = static_cast<const char*>(image);
  uint32_t magic = 0;
  // No magic holds a zero byte.
  memcpy(&magic, bytes, strnlen(bytes, std::min<uint64_t>(image_bytes, sizeof magic)));
  if (magic == WRAPPER_MAGIC && or_wrapper) {
    Wrapper wrapper;
    if (image_bytes < sizeof wrapper) return CUDA_ERROR_INVALID_IMAGE;
    memcpy(&wrapper, bytes, sizeof wrapper);
    if (!wrapper.data) return CUDA_ERROR_INVALID_IMAGE;
    bytes = static_cast<const char*>(wrapper.data);
    memcpy(&magic, bytes, 4);
    image_bytes = UNKNOWN_BYTES;  // it lies elsewhere
  }
  if (magic == FATBIN_MAGIC) return extract_from_container(bytes, image_bytes, ptx);
  if (magic == ELF_MAGIC) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  // What is left is PTX text; it is ASCII and ends with a NUL.
  const unsigned char first = static_cast<unsigned char>(magic & 0xff);
  if (first == 0 || first >= 0x80) return CUDA_ERROR_INVALID_IMAGE;
  ptx->assign(bytes, image_bytes == UNKNOWN_BYTES ? strlen(bytes) : strnlen(bytes, image_bytes));
  return CUDA_SUCCESS;
}

}  // namespace software_gpu::fatbin
