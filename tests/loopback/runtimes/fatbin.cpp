// SPDX-License-Identifier: Apache-2.0
#include "fatbin.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// As fatbinary of CUDA 13.0 writes it for PTX without compression (seen in its output).
struct Fatbin {
  uint32_t magic = 0xBA55ED50;
  uint16_t version = 1;
  uint16_t header_bytes = 16;
  uint64_t entries_bytes = 0;
  uint16_t kind = 1;  // PTX
  uint16_t entry_version = 0x101;
  uint32_t entry_header_bytes = 80;
  uint64_t stored_bytes = 0;
  uint32_t packed_bytes = 0;
  uint32_t unknown = 64;
  uint16_t ptx_minor = 0, ptx_major = 9;
  uint32_t architecture = 80;
  uint64_t no_name = 0;
  uint64_t flags = 0x11;  // 64 bit, Linux
  uint64_t no_packing[2] = {};
  uint64_t no_options[2] = {72, 0};
};
static_assert(sizeof(Fatbin) == 16 + 80);

}  // namespace

std::string make_fatbin(const std::string& ptx) {
  Fatbin header;
  header.stored_bytes = (ptx.size() + 7) / 8 * 8;
  header.entries_bytes = header.entry_header_bytes + header.stored_bytes;
  unsigned major, minor;
  const size_t version = ptx.find(".version ");
  if (version == ptx.npos ||
      std::sscanf(ptx.c_str() + version, ".version %u.%u", &major, &minor) != 2) {
    std::fprintf(stderr, "no .version in the PTX\n");
    std::exit(2);
  }
  header.ptx_major = static_cast<uint16_t>(major);
  header.ptx_minor = static_cast<uint16_t>(minor);
  std::string image(sizeof header + header.stored_bytes, '\0');
  std::memcpy(image.data(), &header, sizeof header);
  std::memcpy(image.data() + sizeof header, ptx.data(), ptx.size());
  return image;
}
