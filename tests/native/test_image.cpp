// SPDX-License-Identifier: Apache-2.0
// What of a fat binary is sent: all but machine code that no device of the session can run.
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "image.h"

using namespace kvgpu::guest;

namespace {

constexpr uint16_t PTX = 1, ELF = 2;

template <typename T>
void put(std::string* to, T value) {
  to->append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string entry(uint16_t kind, uint32_t arch, const std::string& text) {
  std::string made;
  put(&made, kind);
  put(&made, uint16_t{0x101});
  put(&made, uint32_t{64});
  put(&made, uint64_t{text.size()});
  made.append(12, '\0');
  put(&made, arch);
  made.append(64 - made.size(), '\0');
  return made + text;
}

std::string fatbin(const std::string& entries) {
  std::string made;
  put(&made, uint32_t{0xBA55ED50});
  put(&made, uint16_t{1});
  put(&made, uint16_t{16});
  put(&made, uint64_t{entries.size()});
  return made + entries;
}

std::string sent(const std::string& image, std::vector<int> majors) {
  const ImageBytes bytes{reinterpret_cast<const std::byte*>(image.data()), image.size()};
  const LoadableImage found = loadable_parts(bytes, majors);
  std::string all;
  for (const ImageBytes& part : found.parts) {
    all.append(reinterpret_cast<const char*>(part.data), part.bytes);
  }
  return all;
}

const std::string OF_80 = entry(ELF, 80, "eighty  "), OF_86 = entry(ELF, 86, "eightysix       "),
                  OF_90 = entry(ELF, 90, "ninety  "), OF_100 = entry(ELF, 100, "blackwell       "),
                  OF_120 = entry(ELF, 120, "geforce "), TEXT = entry(PTX, 90, "ptx     "),
                  OTHER = entry(16, 70, "unknown "), OF_NONE = entry(ELF, 0, "of none ");

}  // namespace

TEST_CASE("machine code for other devices stays here") {
  const std::string all = fatbin(OF_80 + OF_86 + OF_90 + OF_100 + OF_120 + TEXT + OTHER);
  CHECK(sent(all, {9}) == fatbin(OF_90 + TEXT + OTHER));
  CHECK(sent(all, {8}) == fatbin(OF_80 + OF_86 + TEXT + OTHER));
  CHECK(sent(all, {8, 9}) == fatbin(OF_80 + OF_86 + OF_90 + TEXT + OTHER));
  CHECK(sent(all, {10}) == fatbin(OF_100 + OF_120 + TEXT + OTHER));
  CHECK(sent(all, {12}) == fatbin(OF_100 + OF_120 + TEXT + OTHER));
  CHECK(sent(fatbin(OF_80 + OF_NONE), {9}) == fatbin(OF_NONE));
}

TEST_CASE(
    "what is left to the driver is sent whole: nothing to leave out, nothing left, no sense") {
  std::string other_version = fatbin(OF_80 + OF_90);
  other_version[4] = 2;
  for (const std::string& whole :
       {other_version, fatbin(OF_90 + TEXT), fatbin(OF_80 + OF_100), fatbin(""),
        std::string("\x7f"
                    "ELF cubin"),
        std::string(".version 7.0"), fatbin(OF_80 + OF_90 + "rest"),
        fatbin(OF_80 + OF_90.substr(0, OF_90.size() - 1))}) {
    CHECK(sent(whole, {9}) == whole);
  }
}
