// SPDX-License-Identifier: Apache-2.0
// Syntax tree -> Module: lays out memory, numbers rows, resolves names and picks each instruction's
// handler. Whatever the interpreter does not do is refused here, before anything runs.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <unordered_map>

#include "modifiers.h"
#include "program.h"
#include "ptx_syntax.h"

namespace software_gpu {

struct Symbol {
  enum class Kind {
    REGISTER,
    ENTRY_PARAMETER,
    ROWS,
    LOCAL,
    SHARED,
    SHARED_DYNAMIC,
    GLOBAL,
    FUNCTION
  };
  Kind kind;
  uint64_t value = 0;   // row, offset or address
  uint64_t n_rows = 0;  // of ROWS
  bool is_managed = false;
};

/// Place `n_bytes` at the next multiple of `align`, a power of two, of what is `*used_bytes` long.
/// False when it would then be longer than `max_bytes`.
[[nodiscard]] bool place(uint64_t n_bytes, uint64_t align, uint64_t max_bytes, uint32_t* used_bytes,
                         uint64_t* offset);

/// The alignment of a variable: the one it states or its type's, whichever is more.
uint64_t alignment(const ptx::Variable& variable);

// As NVIDIA's assembler has them, but for shared memory: there it is what a block may ask for.
inline constexpr uint64_t MAX_PARAMETER_BYTES = 32764, MAX_LOCAL_BYTES = 512 << 10,
                          MAX_SHARED_BYTES = 163 << 10;

class FunctionDecoder {
 public:
  using Lookup = std::function<const Symbol*(std::string_view)>;
  FunctionDecoder(const ptx::Function& source, Function* out, Lookup globals);
  void decode();

  // For the tables of operations.
  Row destination(const ptx::Operand& operand);
  Row value(const ptx::Operand& operand, Type type);
  Row predicate(const ptx::Operand& operand);  // not negated
  Row constant(uint64_t bits) { return constant(Constant::Kind::VALUE, bits); }
  Row constant(Constant::Kind kind, uint64_t value);
  Row scratch() { return add_rows(1); }
  Row carry();
  /// Set out->a and out->imm from an address operand.
  void address(const ptx::Operand& operand, Instruction* out);
  const Symbol* find(std::string_view name) const;
  uint32_t add_vector(const ptx::Operand& operand, Type type, bool is_destination);
  uint32_t add_vector(std::vector<Row> rows);
  uint32_t add_call(Call call);
  const std::vector<std::string_view>& targets(std::string_view label) const;
  void fix_branch(std::string_view label, uint32_t line);
  uint32_t add_table(const std::vector<std::string_view>& labels, uint32_t line);
  void emit(const Instruction& instruction) { out_->code.push_back(instruction); }
  Function& function() { return *out_; }
  [[noreturn]] void fail(const std::string& why) const;

 private:
  struct Range {
    std::string_view prefix;
    uint32_t count;
    Row first;
  };
  struct Fixup {
    std::string_view label;
    size_t scope;  // in which it is looked up first
    uint32_t line;
    size_t instruction;  // to patch, or
    int table = -1, entry = 0;
  };
  struct Scope {
    size_t outer;  // index of the scope around it; its own for the outermost
    std::unordered_map<std::string_view, Symbol> symbols;
    std::vector<Range> ranges;
    std::unordered_map<std::string_view, uint32_t> labels;
  };

  Row add_rows(uint64_t n);
  void open_scope();
  void statement(const ptx::Statement& statement);
  void patch(const Fixup& fixup);
  void declare(const ptx::Variable& variable);
  void declare_parameters();
  void instruction(const ptx::Instruction& source);
  void negate_operand(const ptx::Operand& operand);

  const ptx::Function& source_;
  Function* out_;
  Lookup globals_;
  std::vector<Scope> scopes_;  // all that ever were: a branch may come before its label
  size_t scope_ = 0;           // the innermost
  std::unordered_map<std::string_view, const std::vector<std::string_view>*> target_lists_;
  std::vector<Fixup> fixups_;
  std::map<std::pair<Constant::Kind, uint64_t>, Row> constants_;
  Row carry_ = NO_ROW;
  const ptx::Instruction* current_ = nullptr;
};

/// What a table entry gets: the decoder, the source and the instruction to complete.
struct Decoding {
  FunctionDecoder& decoder;
  const ptx::Instruction& source;
  Modifiers& modifiers;
  Instruction& out;

  size_t n_operands() const { return source.operands.size(); }
  const ptx::Operand& operand(size_t i) const;
  Row value(size_t i, Type type) { return decoder.value(operand(i), type); }
  void set_dst() { out.dst = decoder.destination(operand(0)); }
  [[noreturn]] void fail(const std::string& why) const { modifiers.fail(why); }
};

using DecodeOperation = void (*)(Decoding&);
using OperationTable = std::unordered_map<std::string_view, DecodeOperation>;
void add_integer_operations(OperationTable*);
void add_bit_operations(OperationTable*);
void add_move_operations(OperationTable*);
void add_float_operations(OperationTable*);
void add_compare_operations(OperationTable*);
void add_convert_operations(OperationTable*);
void add_memory_operations(OperationTable*);
void add_atomic_operations(OperationTable*);
void add_warp_operations(OperationTable*);
void add_control_operations(OperationTable*);
void add_texture_operations(OperationTable*);
void add_surface_operations(OperationTable*);

}  // namespace software_gpu
