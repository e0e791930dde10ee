// SPDX-License-Identifier: Apache-2.0
// Cubins of nothing but what a call graph needs, as ptxas 13 has it: sections of the symbols, their
// names, and the graph.
#pragma once

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "fatbin.h"

namespace kvgpu::tests {

inline constexpr uint8_t KERNEL = 0x10, DEVICE = 0;
inline constexpr uint16_t DEFINED = 7;
inline constexpr uint32_t CALL_GRAPH = 0x70000001;

struct Edge {
  int32_t caller, callee;
};

struct Cubin {
  std::string names{"\0", 1};
  std::vector<Elf64_Sym> symbols{Elf64_Sym{}};
  std::vector<Edge> edges{{0, -1}};
  std::vector<Elf64_Shdr> sections = std::vector<Elf64_Shdr>(4);

  Cubin() {
    sections[1].sh_type = SHT_STRTAB;
    sections[2].sh_type = SHT_SYMTAB;
    sections[2].sh_entsize = sizeof(Elf64_Sym);
    sections[2].sh_link = 1;
    sections[3].sh_type = CALL_GRAPH;
    sections[3].sh_link = 2;
  }
  int32_t add(const std::string& name, uint8_t other, uint16_t section = DEFINED) {
    Elf64_Sym symbol{};
    symbol.st_name = static_cast<uint32_t>(names.size());
    symbol.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    symbol.st_other = other;
    symbol.st_shndx = section;
    symbols.push_back(symbol);
    names.append(name).push_back('\0');
    return static_cast<int32_t>(symbols.size() - 1);
  }
  int32_t add_outside(const std::string& name) { return add(name, 0, SHN_UNDEF); }

  std::string image() const {
    std::string contents[4];
    contents[1] = names;
    for (const Elf64_Sym& symbol : symbols) put(&contents[2], symbol);
    for (const Edge& edge : edges) put(&contents[3], edge);
    for (int32_t group = -2; group >= -4; --group) put(&contents[3], Edge{0, group});
    std::string body;
    std::vector<Elf64_Shdr> headers = sections;
    for (size_t i = 1; i < headers.size() && i < 4; ++i) {
      headers[i].sh_offset = sizeof(Elf64_Ehdr) + body.size();
      headers[i].sh_size = contents[i].size();
      body += contents[i];
    }
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_shoff = sizeof header + body.size();
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = static_cast<uint16_t>(headers.size());
    std::string made;
    put(&made, header);
    made += body;
    for (const Elf64_Shdr& section : headers) put(&made, section);
    return made;
  }
};

// `prints` does, `quiet` calls what may not.
struct PrintingCubin : Cubin {
  int32_t prints = add("prints", KERNEL), quiet = add("quiet", KERNEL),
          vprintf = add_outside("vprintf"), asserts = add_outside("__assertfail");
  PrintingCubin() {
    edges.push_back({prints, vprintf});
    edges.push_back({quiet, asserts});
  }
};

}  // namespace kvgpu::tests
