// SPDX-License-Identifier: Apache-2.0
// The software GPU's reading of PTX: a text is refused with its line, or becomes a module whose
// every instruction names only what its function has.
#include <cstdlib>

#include "module_loader.h"

namespace software_gpu {

struct Context;
/// In place of context.cpp: the memory here belongs to none.
Context*& current_context() {
  static Context* none = nullptr;
  return none;
}

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check_row(const Function& f, Row row) { require(row == NO_ROW || row < f.n_rows); }

void check_instruction(const Function& f, const Instruction& in) {
  for (const Row row : {in.predicate, in.dst, in.dst2, in.a, in.b, in.c, in.d}) check_row(f, row);
  require(in.control != Control::ORDINARY || in.handler);
  if (in.control == Control::BRANCH) require(in.target < f.code.size());
  if (in.control == Control::BRANCH_INDEXED) require(in.extra < f.tables.size());
  if (in.control == Control::CALL) require(in.extra < f.calls.size());
  if (in.n_vector > 1 && in.extra != 0) require(in.extra < f.vectors.size());
}

void check_function(const Module& module, const Function& f) {
  require(f.is_defined && !f.code.empty() && f.code.back().control == Control::RETURN);
  require(f.local_bytes <= 512 << 10 && f.shared_bytes <= 163 << 10 && f.parameter_bytes < 32768);
  for (const Instruction& in : f.code) check_instruction(f, in);
  for (const Constant& constant : f.constants) check_row(f, constant.row);
  for (const auto& rows : f.vectors)
    for (const Row row : rows) check_row(f, row);
  for (const auto& table : f.tables)
    for (const uint32_t target : table) require(target < f.code.size());
  for (const Call& call : f.calls) {
    for (const Row row : call.arguments) check_row(f, row);
    for (const Row row : call.results) check_row(f, row);
    check_row(f, call.pointer);
    if (call.callee) require(fits(call, f, *call.callee));
  }
  for (const auto* list : {&f.parameters, &f.results})
    for (const Parameter& p : *list)
      require(f.is_entry ? p.offset_bytes + p.size_bytes <= f.parameter_bytes
                         : p.row + p.n_rows() <= f.n_rows);
  for (const auto& [name, global] : module.globals)
    require(global.address + global.size_bytes <=
            reinterpret_cast<uint64_t>(module.memory) + module.memory_bytes);
}

}  // namespace
}  // namespace software_gpu

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace software_gpu;
  Memory memory(0, 1 << 24);
  std::unique_ptr<Module> module;
  std::string error;
  // A copy without anything behind it: reading on is seen.
  const std::unique_ptr<char[]> text(new char[size]);
  std::copy(data, data + size, text.get());
  const CUresult as_input = check_link_input({text.get(), size}, memory, &error);
  const CUresult result = load_module({text.get(), size}, memory, &module, &error);
  require(result != CUDA_SUCCESS || as_input == CUDA_SUCCESS);
  require((result == CUDA_SUCCESS) == (module != nullptr));
  if (result != CUDA_SUCCESS) return 0;
  require(error.empty());
  for (const auto& [name, function] : module->functions) check_function(*module, *function);
  return 0;
}
