// SPDX-License-Identifier: Apache-2.0
// A cubin's call graph as ptxas and nvlink 13 write it for sm_75 to sm_100: pairs of two u32 in
// section .nv.callgraph, caller and callee, by their numbers in .symtab. Functions that the driver
// provides (vprintf, malloc, what launches kernels) are undefined symbols. (0, -1) to (0, -4) begin
// groups of edges, the last one that of launches of kernels by kernels. What a function calls that
// is compiled with a kernel counts as the kernel's own, also where it is called by pointer; only
// relocatable device code has edges of device functions.
#include "printers.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace kvgpu::worker {

namespace {

constexpr uint32_t SHT_CUDA_CALLGRAPH = 0x70000001;
constexpr uint8_t STO_CUDA_ENTRY = 0x10;  // a kernel
constexpr std::string_view PRINTS = "vprintf";
// An assertion that fails is a fault, and those are waited for anyway.
constexpr std::string_view QUIET[] = {"__assertfail", "malloc", "free"};

struct Edge {
  int32_t caller, callee;
};

// What is no part of the image is empty. Nothing in it need be aligned.
std::span<const std::byte> slice(std::span<const std::byte> image, uint64_t offset,
                                 uint64_t bytes) {
  if (offset > image.size() || bytes > image.size() - offset) return {};
  return image.subspan(offset, bytes);
}

template <typename T>
std::vector<T> items(std::span<const std::byte> bytes) {
  std::vector<T> found(bytes.size() / sizeof(T));
  if (!found.empty()) std::memcpy(found.data(), bytes.data(), found.size() * sizeof(T));
  return found;
}

struct CallGraph {
  std::vector<Edge> edges;  // none: there is no graph, or not one
  std::vector<Elf64_Sym> symbols;
  std::string_view names;

  explicit CallGraph(std::span<const std::byte> image) {
    const auto header = items<Elf64_Ehdr>(slice(image, 0, sizeof(Elf64_Ehdr)));
    if (header.empty() || header[0].e_shentsize != sizeof(Elf64_Shdr)) return;
    const auto sections =
        items<Elf64_Shdr>(slice(image, header[0].e_shoff, header[0].e_shnum * sizeof(Elf64_Shdr)));
    const auto is_graph = [](const Elf64_Shdr& s) { return s.sh_type == SHT_CUDA_CALLGRAPH; };
    const auto graph = std::find_if(sections.begin(), sections.end(), is_graph);
    if (std::count_if(sections.begin(), sections.end(), is_graph) != 1) return;
    if (graph->sh_link >= sections.size()) return;
    const Elf64_Shdr& table = sections[graph->sh_link];
    if (table.sh_type != SHT_SYMTAB || table.sh_entsize != sizeof(Elf64_Sym)) return;
    if (table.sh_link >= sections.size() || graph->sh_size % sizeof(Edge) != 0) return;
    const Elf64_Shdr& strings = sections[table.sh_link];
    if (strings.sh_type != SHT_STRTAB) return;
    edges = items<Edge>(slice(image, graph->sh_offset, graph->sh_size));
    symbols = items<Elf64_Sym>(slice(image, table.sh_offset, table.sh_size));
    const auto text = slice(image, strings.sh_offset, strings.sh_size);
    names = {reinterpret_cast<const char*>(text.data()), text.size()};
  }

  [[nodiscard]] bool has(int32_t symbol) const {
    return symbol >= 0 && static_cast<size_t>(symbol) < symbols.size();
  }
  // Provided by the driver?
  [[nodiscard]] bool is_outside(size_t symbol) const {
    return symbol != 0 && symbols[symbol].st_shndx == SHN_UNDEF;
  }
  [[nodiscard]] bool is_called(size_t symbol, std::string_view name) const {
    const uint32_t at = symbols[symbol].st_name;
    return at < names.size() && names.substr(at).starts_with(name) &&
           names.size() - at > name.size() && names[at + name.size()] == '\0';
  }
  // Where nobody knows what it does, it prints.
  [[nodiscard]] bool may_print_by_itself(size_t symbol) const {
    return is_outside(symbol) && std::none_of(std::begin(QUIET), std::end(QUIET),
                                              [&](auto name) { return is_called(symbol, name); });
  }
};

// By symbol: may it print, or what it calls? Nothing where an edge is not understood.
std::vector<bool> spread(CallGraph* graph) {
  std::vector<bool> prints(graph->symbols.size());
  std::vector<int32_t> pending;
  const auto mark = [&](int32_t symbol) {
    if (!prints[static_cast<size_t>(symbol)]) pending.push_back(symbol);
    prints[static_cast<size_t>(symbol)] = true;
  };
  for (size_t i = 0; i < prints.size(); ++i) {
    if (graph->may_print_by_itself(i)) mark(static_cast<int32_t>(i));
  }
  for (const Edge& edge : graph->edges) {
    if (!graph->has(edge.caller) || (edge.callee >= 0 && !graph->has(edge.callee))) return {};
    if (edge.caller != 0 && edge.callee < 0) mark(edge.caller);  // calls what is not said
  }
  const auto by_callee = [](const Edge& edge) { return edge.callee; };
  std::ranges::sort(graph->edges, {}, by_callee);
  while (!pending.empty()) {
    const int32_t callee = pending.back();
    pending.pop_back();
    for (const Edge& edge : std::ranges::equal_range(graph->edges, callee, {}, by_callee)) {
      mark(edge.caller);
    }
  }
  return prints;
}

}  // namespace

bool Printers::add_cubin(std::span<const std::byte> image) {
  CallGraph graph(image);
  const bool is_told = std::any_of(graph.edges.begin(), graph.edges.end(), [&](const Edge& edge) {
    return graph.has(edge.callee) && graph.is_outside(static_cast<size_t>(edge.callee)) &&
           graph.is_called(static_cast<size_t>(edge.callee), PRINTS);
  });
  if (!is_told) return false;
  const std::vector<bool> prints = spread(&graph);
  if (prints.empty()) return false;
  // Names are as long as a guest wants, and may overlap.
  size_t bytes_left = graph.names.size();
  for (size_t i = 0; i < prints.size(); ++i) {
    if (!prints[i] || graph.is_outside(i)) continue;
    const Elf64_Sym& symbol = graph.symbols[i];
    // Any kernel may call a device function by a pointer that it is given.
    if ((symbol.st_other & STO_CUDA_ENTRY) == 0 || symbol.st_name >= graph.names.size()) {
      return false;
    }
    const size_t length = graph.names.substr(symbol.st_name, bytes_left).find('\0');
    if (length == std::string_view::npos) return false;
    bytes_left -= length + 1;
    names_.emplace(graph.names.substr(symbol.st_name, length));
  }
  return true;
}

bool Printers::add_code(std::span<const std::byte> code) {
  const std::string_view text(reinterpret_cast<const char*>(code.data()), code.size());
  if (text.find(PRINTS) == text.npos) return true;
  return text.starts_with(std::string_view(ELFMAG, SELFMAG)) && add_cubin(code);
}

}  // namespace kvgpu::worker
