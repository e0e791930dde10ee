// SPDX-License-Identifier: Apache-2.0
#include "module_loader.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>

#include "context.h"
#include "decoder.h"

namespace software_gpu {
namespace {

constexpr uint64_t MAX_MODULE_BYTES = 1ull << 40;

uint64_t align_up(uint64_t value, uint64_t align) { return (value + align - 1) / align * align; }

/// The definitions of a name that all inputs share.
struct Definition {
  const void* item;
  ptx::Linkage linkage;
  uint64_t size_bytes;
};

class Loader {
 public:
  /// `is_input`: others will be linked with it, and may define what it declares.
  Loader(std::string_view text, Memory& memory, bool is_input)
      : tree_(ptx::parse(text)),
        memory_(memory),
        is_input_(is_input),
        module_(std::make_unique<Module>()) {}

  CUresult load(std::unique_ptr<Module>* out) {
    for (const auto& [number, name] : tree_.files) module_->files[number] = std::string(name);
    choose_definitions();
    place_variables();
    if (const CUresult allocated = allocate_variables(); allocated != CUDA_SUCCESS) {
      release_variables(*module_, memory_);
      return allocated;
    }
    try {
      declare_functions();
      initialise_variables();
      decode_functions();
    } catch (...) {
      release_variables(*module_, memory_);
      throw;
    }
    *out = std::move(module_);
    return CUDA_SUCCESS;
  }

 private:
  void choose_definitions() {
    for (const ptx::Variable& variable : tree_.variables)
      choose(variable, variable.linkage, variable.size_bytes());
    for (const ptx::Function& function : tree_.functions)
      if (function.has_body) choose(function, linkage(function), 0);
  }

  /// In an input a name stands for one thing. Among inputs it is as nvlink has it: the strongest,
  /// of those the first, or the largest if they are common.
  template <class Item>
  void choose(const Item& item, ptx::Linkage linkage, uint64_t size_bytes) {
    if (linkage == ptx::Linkage::EXTERN) return;
    if (!defined_.emplace(item.input, item.name).second) fail_twice(item.name, item.line);
    if (linkage == ptx::Linkage::LOCAL) return;
    const Definition definition{&item, linkage, size_bytes};
    const auto [there, is_new] = definitions_.emplace(item.name, definition);
    if (is_new) return;
    Definition& earlier = there->second;
    const auto both_are = [&](ptx::Linkage kind) {
      return linkage == kind && earlier.linkage == kind;
    };
    if (both_are(ptx::Linkage::VISIBLE)) fail_twice(item.name, item.line);
    const bool may_differ = both_are(ptx::Linkage::COMMON);
    if (size_bytes != earlier.size_bytes && !may_differ)
      throw ptx::Error(item.line, "the size of " + quoted(item.name) + " is not what it was");
    if (linkage > earlier.linkage || size_bytes > earlier.size_bytes) earlier = definition;
  }

  /// The host finds every kernel by its name.
  static ptx::Linkage linkage(const ptx::Function& function) {
    const bool is_shared = !function.is_entry || function.linkage != ptx::Linkage::LOCAL;
    return is_shared ? function.linkage : ptx::Linkage::VISIBLE;
  }

  template <class Item>
  bool is_chosen(const Item& item, ptx::Linkage linkage) const {
    if (linkage == ptx::Linkage::LOCAL) return true;
    const auto found = definitions_.find(item.name);
    return found != definitions_.end() && found->second.item == &item;
  }

  void place_variables() {
    for (const ptx::Variable& variable : tree_.variables) {
      if (variable.linkage == ptx::Linkage::EXTERN)
        declare_variable(variable);
      else if (is_chosen(variable, variable.linkage))
        place_variable(variable);
    }
  }

  /// Without a definition: dynamic shared memory, which may be declared again and again.
  void declare_variable(const ptx::Variable& variable) {
    if (definitions_.contains(variable.name)) return;
    const bool is_shared = variable.space == "shared";
    if (!is_shared && !is_input_)
      throw ptx::Error(variable.line, quoted(variable.name) + " is defined nowhere");
    const Symbol symbol{is_shared ? Symbol::Kind::SHARED_DYNAMIC : Symbol::Kind::GLOBAL};
    symbols_.emplace(Key{0, variable.name}, symbol);
  }

  void place_variable(const ptx::Variable& variable) {
    const uint64_t align = alignment(variable), n_bytes = variable.size_bytes();
    Symbol symbol{Symbol::Kind::GLOBAL};
    if (variable.space == "shared") {
      symbol.kind = Symbol::Kind::SHARED;
      if (!place(n_bytes, align, MAX_SHARED_BYTES, &shared_bytes_, &symbol.value))
        throw ptx::Error(variable.line, "too much shared memory");
    } else {
      uint64_t& all_bytes = variable.is_managed ? module_->managed_bytes : module_->memory_bytes;
      symbol.value = align_up(all_bytes, std::max<uint64_t>(align, 16));
      symbol.is_managed = variable.is_managed;
      all_bytes = symbol.value + std::max<uint64_t>(n_bytes, 1);
      if (all_bytes > MAX_MODULE_BYTES)
        throw ptx::Error(variable.line, "variables of too many bytes");
      if (variable.space == "const") module_->constant_bytes += n_bytes;
      const Global global{symbol.value, n_bytes, variable.is_managed};
      if (variable.reference != ptx::Variable::Reference::NONE)
        module_->references[std::string(variable.name)] = {
            symbol.value, variable.reference == ptx::Variable::Reference::SURFACE};
      else if (variable.linkage == ptx::Linkage::LOCAL)
        module_->globals.emplace(variable.name, global);
      else
        module_->globals[std::string(variable.name)] = global;
    }
    add_symbol(variable, variable.linkage, symbol);
  }

  CUresult allocate_variables() {
    const auto allocate = [&](uint64_t n_bytes, bool managed, void** memory) {
      uint64_t base = 0;
      if (n_bytes == 0) return CUDA_SUCCESS;
      const CUresult allocated =
          managed ? Driver::instance().allocate_managed(memory_, n_bytes, 0, &base)
                  : memory_.allocate(n_bytes, MemoryKind::MODULE, 0, &base);
      *memory = reinterpret_cast<void*>(base);
      return allocated;
    };
    CUresult result = allocate(module_->memory_bytes, false, &module_->memory);
    if (result == CUDA_SUCCESS)
      result = allocate(module_->managed_bytes, true, &module_->managed_memory);
    const auto base_of = [&](bool managed) {
      return reinterpret_cast<uint64_t>(managed ? module_->managed_memory : module_->memory);
    };
    for (auto& [key, symbol] : symbols_)
      if (symbol.kind == Symbol::Kind::GLOBAL) symbol.value += base_of(symbol.is_managed);
    for (auto& [name, global] : module_->globals) global.address += base_of(global.is_managed);
    for (auto& [name, reference] : module_->references) reference.address += base_of(false);
    return result;
  }

  template <class Item>
  void add_symbol(const Item& item, ptx::Linkage linkage, Symbol symbol) {
    const uint32_t input = linkage == ptx::Linkage::LOCAL ? item.input : 0;
    symbols_[{input, item.name}] = symbol;
  }

  /// What a name stands for in an input; null: nothing.
  const Symbol* find(uint32_t input, std::string_view name) const {
    auto found = symbols_.find({input, name});
    if (found == symbols_.end()) found = symbols_.find({0, name});
    return found == symbols_.end() ? nullptr : &found->second;
  }

  static std::string quoted(std::string_view name) { return "'" + std::string(name) + "'"; }

  [[noreturn]] static void fail_twice(std::string_view name, uint32_t line) {
    throw ptx::Error(line, quoted(name) + " is defined twice");
  }

  void declare_functions() {
    for (const ptx::Function& source : tree_.functions) {
      const bool may_come = is_input_ && source.linkage == ptx::Linkage::EXTERN &&
                            !definitions_.contains(source.name) && !find(0, source.name);
      if (source.has_body ? !is_chosen(source, linkage(source)) : !may_come) continue;
      auto function = std::make_unique<Function>();
      function->name = std::string(source.name);
      function->is_entry = source.is_entry;
      if (source.max_threads != 0) function->max_threads = std::min(source.max_threads, 1024u);
      std::copy(source.required_threads, source.required_threads + 3, function->required_threads);
      add_symbol(source, linkage(source),
                 {Symbol::Kind::FUNCTION, reinterpret_cast<uint64_t>(function.get())});
      std::string key = function->name;
      if (linkage(source) == ptx::Linkage::LOCAL) key += "#" + std::to_string(source.input);
      module_->functions[key] = std::move(function);
    }
  }

  void initialise_variables() {
    for (const ptx::Variable& variable : tree_.variables) {
      if (variable.initialisers.empty() || !is_chosen(variable, variable.linkage)) continue;
      if (variable.space == "shared")
        throw ptx::Error(variable.line, "shared memory cannot be initialised");
      const uint32_t n_bytes = size_bytes(variable.type);
      if (variable.initialisers.size() * n_bytes > variable.size_bytes())
        throw ptx::Error(variable.line, "too many initialisers for " + quoted(variable.name));
      char* at = reinterpret_cast<char*>(find(variable.input, variable.name)->value);
      for (const ptx::Initialiser& initialiser : variable.initialisers) {
        uint64_t value = static_cast<uint64_t>(initialiser.value);
        if (!initialiser.symbol.empty()) {
          const Symbol* symbol = find(variable.input, initialiser.symbol);
          if (!symbol)
            throw ptx::Error(variable.line, "unknown name " + quoted(initialiser.symbol));
          value += symbol->value;
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
        if (!is_chosen(source, linkage(source))) continue;
        auto* function = reinterpret_cast<Function*>(find(source.input, source.name)->value);
        function->shared_bytes = shared_bytes_;
        FunctionDecoder(source, function, [&](std::string_view name) {
          return find(source.input, name);
        }).decode();
        if (!entries) shared_bytes_ = function->shared_bytes;
      }
    }
    for (const auto& [key, function] : module_->functions) {
      for (const Call& call : function->calls) {
        module_->uses_heap |= call.builtin == Builtin::MALLOC || call.builtin == Builtin::FREE;
        if (call.callee && (call.callee->is_defined || !is_input_) &&
            !fits(call, *function, *call.callee))
          throw ptx::Error(0, "call of " + quoted(call.callee->name) + " in " +
                                  quoted(function->name) + " does not fit its declaration");
      }
    }
  }

  // The input, 0 for what all share, and the name.
  using Key = std::pair<uint32_t, std::string_view>;
  ptx::Module tree_;
  Memory& memory_;
  const bool is_input_;
  std::unique_ptr<Module> module_;
  std::unordered_map<std::string_view, Definition> definitions_;
  std::set<Key> defined_;
  std::map<Key, Symbol> symbols_;
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

namespace {

CUresult load(std::string_view ptx, Memory& memory, bool is_input, std::unique_ptr<Module>* out,
              std::string* error) {
  error->clear();
  try {
    return Loader(ptx, memory, is_input).load(out);
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

}  // namespace

void release_variables(const Module& module, Memory& memory) {
  if (module.memory)
    static_cast<void>(memory.release(reinterpret_cast<uint64_t>(module.memory), MemoryKind::MODULE,
                                     MemoryKind::MODULE));
  if (module.managed_memory)
    static_cast<void>(
        Driver::instance().release_managed(reinterpret_cast<uint64_t>(module.managed_memory)));
}

CUresult load_module(std::string_view ptx, Memory& memory, std::unique_ptr<Module>* out,
                     std::string* error) {
  return load(ptx, memory, false, out, error);
}

CUresult check_link_input(std::string_view ptx, Memory& memory, std::string* error) {
  std::unique_ptr<Module> module;
  const CUresult result = load(ptx, memory, true, &module, error);
  if (module) release_variables(*module, memory);
  return result;
}

}  // namespace software_gpu
