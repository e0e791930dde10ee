// SPDX-License-Identifier: Apache-2.0
// Which kernels of an image may print, by the call graph of its cubins.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "cubin.h"
#include "fatbin.h"
#include "image.h"

using namespace kvgpu::tests;
using namespace kvgpu::worker;

namespace {

// Exactly as long as it is: a sanitizer sees who reads on.
Printers printers(const std::string& image) {
  const std::vector<char> copy(image.begin(), image.end());
  return printers_of(std::as_bytes(std::span(copy)));
}
bool all_may_print(const std::string& image) { return printers(image).has("no such kernel"); }

std::string entry(const std::string& code, Packing packing = {}) {
  return fatbin_entry(ELF_KIND, 90, code, packing);
}

const std::string SILENT = "any code", TEXT = ".extern .func vprintf";

}  // namespace

TEST_CASE("the kernels that print") {
  const Printers found = printers(PrintingCubin().image());
  CHECK(found.any());
  CHECK(found.has("prints"));
  CHECK_FALSE(found.has("quiet"));
}

TEST_CASE("a kernel that launches one that prints") {
  PrintingCubin cubin;
  const int32_t parent = cubin.add("parent", KERNEL);
  cubin.edges.push_back({cubin.add("grandparent", KERNEL), parent});
  cubin.edges.push_back({parent, cubin.prints});
  const Printers found = printers(cubin.image());
  CHECK(found.has("parent"));
  CHECK(found.has("grandparent"));
  CHECK_FALSE(found.has("quiet"));
}

TEST_CASE("a call of which nothing is known") {
  PrintingCubin through_pointer, into_driver;
  through_pointer.edges.push_back({through_pointer.quiet, -1});
  into_driver.edges.push_back(
      {into_driver.quiet, into_driver.add_outside("__cuda_syscall_cnpv2LaunchDeviceV2")});
  CHECK(printers(through_pointer.image()).has("quiet"));
  CHECK(printers(into_driver.image()).has("quiet"));
  CHECK_FALSE(all_may_print(into_driver.image()));
}

TEST_CASE("a device function that prints may be called by any kernel") {
  PrintingCubin cubin;
  const int32_t device = cubin.add("device", DEVICE);
  cubin.edges.push_back({cubin.quiet, device});
  CHECK_FALSE(all_may_print(cubin.image()));
  cubin.edges.push_back({device, cubin.vprintf});
  CHECK(all_may_print(cubin.image()));
}

TEST_CASE("code without a graph that is understood") {
  PrintingCubin usual;
  Cubin no_edge;
  no_edge.add_outside("vprintf");
  no_edge.add("kernel", KERNEL);
  CHECK(all_may_print(no_edge.image()));
  for (const Edge edge : {Edge{1, 99}, {99, 1}, {-1, 1}, {0, usual.vprintf}}) {
    PrintingCubin cubin;
    cubin.edges.push_back(edge);
    CHECK(all_may_print(cubin.image()));
  }
  const auto changed = [](auto change) {
    PrintingCubin cubin;
    change(cubin);
    return all_may_print(cubin.image());
  };
  CHECK(changed([](Cubin& c) { c.sections[3].sh_type = SHT_PROGBITS; }));
  CHECK(changed([](Cubin& c) { c.sections[3].sh_link = 99; }));
  CHECK(changed([](Cubin& c) { c.sections[3].sh_link = 1; }));
  CHECK(changed([](Cubin& c) { c.sections[2].sh_link = 99; }));
  CHECK(changed([](Cubin& c) { c.sections[2].sh_link = 3; }));
  CHECK(changed([](Cubin& c) { c.sections[2].sh_entsize = 16; }));
  CHECK(changed([](Cubin& c) { c.sections.push_back(c.sections[3]); }));
  PrintingCubin no_name, no_end;
  no_name.symbols[1].st_name = ~0u;
  no_end.names += "prints";  // without a NUL
  no_end.symbols[1].st_name = static_cast<uint32_t>(no_end.names.size() - 6);
  CHECK(all_may_print(no_name.image()));
  CHECK(all_may_print(no_end.image()));
}

TEST_CASE("names that overlap") {
  PrintingCubin cubin;
  const uint32_t at = cubin.symbols[1].st_name;
  for (int i = 0; i < 1000; ++i) {
    const int32_t again = cubin.add("", KERNEL);
    cubin.symbols[static_cast<size_t>(again)].st_name = at;
    cubin.edges.push_back({again, cubin.vprintf});
  }
  CHECK(all_may_print(cubin.image()));
}

TEST_CASE("a cubin that is cut or has other bytes is read within its bounds") {
  const std::string image = PrintingCubin().image();
  for (size_t length = 0; length < image.size(); ++length) {
    const std::string cut = image.substr(0, length);
    if (cut.find("vprintf") != cut.npos) CHECK(all_may_print(cut));
  }
  for (size_t i = 0; i < image.size(); ++i) {
    for (const char value : {'\0', '\x7f', '\xff'}) {
      std::string other = image;
      other[i] = value;
      (void)printers(other);
    }
  }
}

TEST_CASE("other code") {
  CHECK_FALSE(printers(SILENT).any());
  CHECK(all_may_print(TEXT));
}

TEST_CASE("a fat binary: what any of its entries prints") {
  Cubin later;
  const int32_t kernel = later.add("quiet", KERNEL);
  later.edges.push_back({kernel, later.add_outside("vprintf")});
  const std::string cubin = entry(PrintingCubin().image());
  CHECK_FALSE(printers(fatbin(entry(SILENT))).any());
  CHECK(printers(fatbin(entry(SILENT) + cubin)).has("prints"));
  CHECK_FALSE(printers(fatbin(entry(SILENT) + cubin)).has("quiet"));
  CHECK(printers(fatbin(cubin + entry(later.image()))).has("prints"));
  CHECK(printers(fatbin(cubin + entry(later.image()))).has("quiet"));
  CHECK(all_may_print(fatbin(cubin + entry(TEXT))));
  CHECK(all_may_print(fatbin(entry(SILENT, {4, 0x1000}))));
  CHECK(all_may_print(fatbin(cubin).substr(0, 200)));
}
