// SPDX-License-Identifier: Apache-2.0
// What of a fat binary is sent: all but machine code that no device of the session can run.
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "fatbin.h"
#include "image.h"

using namespace kvgpu::guest;
using namespace kvgpu::tests;

namespace {

std::string sent(const std::string& image, std::vector<int> majors) {
  const ImageBytes bytes{reinterpret_cast<const std::byte*>(image.data()), image.size()};
  const LoadableImage found = loadable_parts(bytes, majors);
  std::string all;
  for (const ImageBytes& part : found.parts) {
    all.append(reinterpret_cast<const char*>(part.data), part.bytes);
  }
  return all;
}

const std::string OF_80 = fatbin_entry(ELF_KIND, 80, "eighty  "),
                  OF_86 = fatbin_entry(ELF_KIND, 86, "eightysix       "),
                  OF_90 = fatbin_entry(ELF_KIND, 90, "ninety  "),
                  OF_100 = fatbin_entry(ELF_KIND, 100, "blackwell       "),
                  OF_120 = fatbin_entry(ELF_KIND, 120, "geforce "),
                  TEXT = fatbin_entry(PTX_KIND, 90, "ptx     "),
                  OTHER = fatbin_entry(16, 70, "unknown "),
                  OF_NONE = fatbin_entry(ELF_KIND, 0, "of none ");

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
