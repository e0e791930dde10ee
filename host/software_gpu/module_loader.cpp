// SPDX-License-Identifier: Apache-2.0
#include "module_loader.h"

#include <algorithm>
#include <cstring>

#include "decoder.h"

namespace software_gpu {
namespace {

constexpr uint64_t MAX_MODULE_BYTES = 1ull << 40;

uint64_t align_up(uint64_t value, uint64_t align) { return (value + align - 1) / align * align; }

class Loader {
 public:
  Loader(std::string_view text, Memory& memory)
      : tree_(ptx::parse(text)), memory_(memory), module_(std::make_unique<Module>()) {}

  CUresult load(std::unique_ptr<Module>* out) {
    for (const auto& [number, name] : tree_.files) module_->files[number] = std::string(name);
    place_variables();
    if (module_->memory_bytes != 0) {
      uint64_t base = 0;
      const CUresult allocated =
          memory_.allocate(module_->memory_bytes, MemoryKind::MODULE, 0, &base);
      if (allocated != CUDA_SUCCESS) return allocated;
      module_->memory = reinterpret_cast<void*>(base);
      for (auto& [name, symbol] : symbols_)
        if (symbol.kind == Symbol::Kind::GLOBAL) symbol.value += base;
      for (auto& [name, global] : module_->globals) global.address += base;
    }
    try {
      declare_functions();
      initialise_variables();
      decode_functions();
    } catch (...) {
      if (module_->memory)
        static_cast<void>(memory_.release(reinterpret_cast<uint64_t>(module_->memory),
                                          MemoryKind::MODULE, MemoryKind::MODULE));
      throw;
    }
    *out = std::move(module_);
    return CUDA_SUCCESS;
  }

 private:
  void place_variables() {
    for (const ptx::Variable& variable : tree_.variables) {
      const uint64_t align = alignment(variable), n_bytes = variable.size_bytes();
      Symbol symbol{Symbol::Kind::GLOBAL};
      if (variable.space == "shared") {
        symbol.kind = variable.is_extern ? Symbol::Kind::SHARED_DYNAMIC : Symbol::Kind::SHARED;
        if (!variable.is_extern &&
            !place(n_bytes, align, MAX_SHARED_BYTES, &shared_bytes_, &symbol.value))
          throw ptx::Error(variable.line, "too much shared memory");
      } else {
        if (variable.is_extern)
          throw ptx::Error(variable.line,
                           "'" + std::string(variable.name) + "' is defined nowhere");

        symbol.value = align_up(module_->memory_bytes, std::max<uint64_t>(align, 16));
        module_->memory_bytes = symbol.value + std::max<uint64_t>(n_bytes, 1);
        if (module_->memory_bytes > MAX_MODULE_BYTES)
          throw ptx::Error(variable.line, "variables of too many bytes");
        if (variable.space == "const") module_->constant_bytes += n_bytes;
        module_->globals[std::string(variable.name)] = {symbol.value, n_bytes};
      }
      add_symbol(variable.name, symbol, variable.line);
    }
  }

  /// A name stands for one thing; dynamic shared memory may be declared again and again.
  void add_symbol(std::string_view name, Symbol symbol, uint32_t line) {
    const auto [there, is_new] = symbols_.emplace(name, symbol);
    if (!is_new &&
        (symbol.kind != Symbol::Kind::SHARED_DYNAMIC || there->second.kind != symbol.kind))
      throw ptx::Error(line, "'" + std::string(name) + "' is defined twice");
  }

  void declare_functions() {
    for (const ptx::Function& source : tree_.functions) {
      if (!source.has_body) continue;
      auto function = std::make_unique<Function>();
      function->name = std::string(source.name);
      function->is_entry = source.is_entry;
      if (source.max_threads != 0) function->max_threads = std::min(source.max_threads, 1024u);
      std::copy(source.required_threads, source.required_threads + 3, function->required_threads);
      add_symbol(source.name, {Symbol::Kind::FUNCTION, reinterpret_cast<uint64_t>(function.get())},
                 source.line);
      module_->functions[function->name] = std::move(function);
    }
  }

  void initialise_variables() {
    for (const ptx::Variable& variable : tree_.variables) {
      if (variable.initialisers.empty()) continue;
      if (variable.space == "shared")
        throw ptx::Error(variable.line, "shared memory cannot be initialised");
      const uint32_t n_bytes = size_bytes(variable.type);
      if (variable.initialisers.size() * n_bytes > variable.size_bytes())
        throw ptx::Error(variable.line,
                         "too many initialisers for '" + std::string(variable.name) + "'");
      char* at = reinterpret_cast<char*>(symbols_[variable.name].value);
      for (const ptx::Initialiser& initialiser : variable.initialisers) {
        uint64_t value = static_cast<uint64_t>(initialiser.value);
        if (!initialiser.symbol.empty()) {
          const auto symbol = symbols_.find(initialiser.symbol);
          if (symbol == symbols_.end())
            throw ptx::Error(variable.line,
                             "unknown name '" + std::string(initialiser.symbol) + "'");
          value += symbol->second.value;
        }
        memcpy(at, &value, n_bytes);
        at += n_bytes;
      }
    }
  }

  void decode_functions() {
    // Called functions first: their shared memory comes below every kernel's own.
    for (const bool entries : {false, true}) {
      for (const ptx::Function& source : tree_.functions) {
        if (!source.has_body || source.is_entry != entries) continue;
        Function* function = module_->functions.find(source.name)->second.get();
        function->shared_bytes = shared_bytes_;
        FunctionDecoder(
            source, function,
            [this](std::string_view name) -> const Symbol* {
              const auto found = symbols_.find(name);
              return found == symbols_.end() ? nullptr : &found->second;
            },
            [this](std::string_view name) -> Function* {
              const auto found = module_->functions.find(name);
              return found == module_->functions.end() ? nullptr : found->second.get();
            })
            .decode();
        if (!entries) shared_bytes_ = function->shared_bytes;
      }
    }
    for (const auto& [name, function] : module_->functions) {
      for (const Call& call : function->calls) {
        module_->uses_printf |= call.builtin != Builtin::NONE;
        if (call.callee && !fits(call, *function, *call.callee))
          throw ptx::Error(0, "call of '" + call.callee->name + "' in '" + name +
                                  "' does not fit its declaration");
      }
    }
  }

  ptx::Module tree_;
  Memory& memory_;
  std::unique_ptr<Module> module_;
  std::unordered_map<std::string_view, Symbol> symbols_;
  uint32_t shared_bytes_ = 0;  // at module level
};

}  // namespace

bool fits(const Call& call, const Function& caller, const Function& callee) {
  const auto all_fit = [&](const std::vector<Row>& given, const std::vector<Parameter>& wanted) {
    if (given.size() != wanted.size()) return false;
    for (size_t i = 0; i < given.size(); ++i)
      if (wanted[i].n_rows() > caller.n_rows - given[i]) return false;
    return true;
  };
  return !callee.is_entry && all_fit(call.arguments, callee.parameters) &&
         all_fit(call.results, callee.results);
}

CUresult load_module(std::string_view ptx, Memory& memory, std::unique_ptr<Module>* out,
                     std::string* error) {
  error->clear();
  try {
    return Loader(ptx, memory).load(out);
  } catch (const ptx::NewerVersion& failure) {
    *error = failure.what();
    return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  } catch (const ptx::Error& failure) {
    *error = failure.what();
    return CUDA_ERROR_INVALID_PTX;
  } catch (const std::bad_alloc&) {
    *error = "out of host memory";
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

}  // namespace software_gpu
