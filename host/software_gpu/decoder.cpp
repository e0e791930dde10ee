// SPDX-License-Identifier: Apache-2.0
#include "decoder.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "check.h"
#include "forms.h"

namespace software_gpu {
namespace {

const OperationTable& operation_table() {
  static const OperationTable table = [] {
    OperationTable result;
    add_integer_operations(&result);
    add_bit_operations(&result);
    add_move_operations(&result);
    add_float_operations(&result);
    add_compare_operations(&result);
    add_convert_operations(&result);
    add_memory_operations(&result);
    add_atomic_operations(&result);
    add_warp_operations(&result);
    add_control_operations(&result);
    add_texture_operations(&result);
    add_surface_operations(&result);
    return result;
  }();
  return table;
}

const std::map<std::string_view, Constant::Kind> SPECIAL_REGISTERS = {
    {"%tid.x", Constant::Kind::TID_X},
    {"%tid.y", Constant::Kind::TID_Y},
    {"%tid.z", Constant::Kind::TID_Z},
    {"%ntid.x", Constant::Kind::NTID_X},
    {"%ntid.y", Constant::Kind::NTID_Y},
    {"%ntid.z", Constant::Kind::NTID_Z},
    {"%ctaid.x", Constant::Kind::CTAID_X},
    {"%ctaid.y", Constant::Kind::CTAID_Y},
    {"%ctaid.z", Constant::Kind::CTAID_Z},
    {"%nctaid.x", Constant::Kind::NCTAID_X},
    {"%nctaid.y", Constant::Kind::NCTAID_Y},
    {"%nctaid.z", Constant::Kind::NCTAID_Z},
    {"%laneid", Constant::Kind::LANEID},
    {"%warpid", Constant::Kind::WARPID},
    {"%nwarpid", Constant::Kind::NWARPID},
    {"%lanemask_eq", Constant::Kind::LANEMASK_EQ},
    {"%lanemask_le", Constant::Kind::LANEMASK_LE},
    {"%lanemask_lt", Constant::Kind::LANEMASK_LT},
    {"%lanemask_ge", Constant::Kind::LANEMASK_GE},
    {"%lanemask_gt", Constant::Kind::LANEMASK_GT},
    {"%smid", Constant::Kind::SMID},
    {"%nsmid", Constant::Kind::NSMID},
    {"%gridid", Constant::Kind::GRIDID},
    {"%dynamic_smem_size", Constant::Kind::DYNAMIC_SHARED_BYTES},
    {"%total_smem_size", Constant::Kind::TOTAL_SHARED_BYTES},
    // What cooperative_groups.h reads in them.
    {"%envreg1", Constant::Kind::GRID_WORKSPACE_HIGH},
    {"%envreg2", Constant::Kind::GRID_WORKSPACE_LOW}};

constexpr uint64_t MAX_ROWS = 1 << 20;

}  // namespace

uint64_t alignment(const ptx::Variable& variable) {
  return std::max(variable.align_bytes, size_bytes(variable.type) * variable.n_vector);
}

bool place(uint64_t n_bytes, uint64_t align, uint64_t max_bytes, uint32_t* used_bytes,
           uint64_t* offset) {
  *offset = (*used_bytes + align - 1) & ~(align - 1);
  if (*offset > max_bytes || n_bytes > max_bytes - *offset) return false;
  *used_bytes = static_cast<uint32_t>(*offset + n_bytes);
  return true;
}

const ptx::Operand& Decoding::operand(size_t i) const {
  if (i >= source.operands.size()) fail("too few operands");
  return source.operands[i];
}

FunctionDecoder::FunctionDecoder(const ptx::Function& source, Function* out, Lookup globals)
    : source_(source), out_(out), globals_(std::move(globals)) {
  open_scope();
}

void FunctionDecoder::open_scope() {
  scopes_.push_back({scope_, {}, {}, {}});
  scope_ = scopes_.size() - 1;
}

Row FunctionDecoder::add_rows(uint64_t n) {
  if (n > MAX_ROWS - out_->n_rows) fail("too many registers");
  const Row first = out_->n_rows;
  out_->n_rows += static_cast<uint32_t>(n);
  return first;
}

void FunctionDecoder::fail(const std::string& why) const {
  if (current_)
    throw ptx::Error(current_->line,
                     "instruction '" + std::string(current_->opcode_text) + "': " + why);
  throw ptx::Error(source_.line, why);
}

const Symbol* FunctionDecoder::find(std::string_view name) const {
  for (size_t i = scope_;; i = scopes_[i].outer) {
    const Scope& scope = scopes_[i];
    if (const auto found = scope.symbols.find(name); found != scope.symbols.end())
      return &found->second;
    for (const Range& range : scope.ranges) {
      uint32_t number = 0;
      if (!name.starts_with(range.prefix) || name.size() == range.prefix.size()) continue;
      const char* end = name.data() + name.size();
      const auto parsed = std::from_chars(name.data() + range.prefix.size(), end, number);
      if (parsed.ec != std::errc() || parsed.ptr != end || number >= range.count) continue;
      thread_local Symbol symbol;
      symbol = {Symbol::Kind::REGISTER, range.first + number};
      return &symbol;
    }
    if (i == 0) return globals_(name);
  }
}

void FunctionDecoder::declare_parameters() {
  const auto add = [&](const ptx::Variable& variable, std::vector<Parameter>* list) {
    Parameter parameter;
    parameter.name = std::string(variable.name);
    if (variable.size_bytes() > MAX_PARAMETER_BYTES) fail("a parameter of too many bytes");
    parameter.size_bytes = static_cast<uint32_t>(variable.size_bytes());
    if (variable.space == "reg") parameter.size_bytes = std::max(size_bytes(variable.type), 1u);
    Symbol symbol{Symbol::Kind::ROWS};
    if (out_->is_entry) {
      uint64_t offset = 0;
      if (!place(parameter.size_bytes, alignment(variable), MAX_PARAMETER_BYTES,
                 &out_->parameter_bytes, &offset))
        fail("parameters of too many bytes");
      parameter.offset_bytes = static_cast<uint32_t>(offset);
      symbol = {Symbol::Kind::ENTRY_PARAMETER, parameter.offset_bytes};
    } else {
      symbol.n_rows = (parameter.size_bytes + 7) / 8;
      symbol.value = parameter.row = add_rows(symbol.n_rows);
      if (variable.space == "reg") symbol.kind = Symbol::Kind::REGISTER;
    }
    scopes_.front().symbols[variable.name] = symbol;
    list->push_back(parameter);
  };
  for (const ptx::Variable& variable : source_.results) add(variable, &out_->results);
  for (const ptx::Variable& variable : source_.parameters) add(variable, &out_->parameters);
}

void FunctionDecoder::declare(const ptx::Variable& variable) {
  Symbol symbol{Symbol::Kind::REGISTER};
  if (variable.space == "reg") {
    const uint32_t count = std::max(variable.n_registers, 1u);
    symbol.value = add_rows(count);
    out_->n_registers += count * (size_bytes(variable.type) == 8 ? 2 : 1);
    if (variable.n_registers != 0) {
      scopes_[scope_].ranges.push_back({variable.name, count, static_cast<Row>(symbol.value)});
      return;
    }
  } else if (variable.space == "local") {
    symbol.kind = Symbol::Kind::LOCAL;
    if (!place(variable.size_bytes(), alignment(variable), MAX_LOCAL_BYTES, &out_->local_bytes,
               &symbol.value))
      throw ptx::Error(variable.line, "too much local memory");
  } else if (variable.space == "shared") {
    symbol.kind = Symbol::Kind::SHARED;
    if (!place(variable.size_bytes(), alignment(variable), MAX_SHARED_BYTES, &out_->shared_bytes,
               &symbol.value))
      throw ptx::Error(variable.line, "too much shared memory");
  } else if (variable.space == "param") {
    symbol.kind = Symbol::Kind::ROWS;
    symbol.n_rows = (variable.size_bytes() + 7) / 8;
    symbol.value = add_rows(symbol.n_rows);
  } else {
    throw ptx::Error(variable.line, "declaration in ." + std::string(variable.space) +
                                        " space inside a function is not supported");
  }
  scopes_[scope_].symbols[variable.name] = symbol;
}

Row FunctionDecoder::constant(Constant::Kind kind, uint64_t value) {
  const auto found = constants_.find({kind, value});
  if (found != constants_.end()) return found->second;
  const Row row = add_rows(1);
  out_->constants.push_back({row, kind, value});
  return constants_[{kind, value}] = row;
}

Row FunctionDecoder::carry() {
  if (carry_ == NO_ROW) carry_ = scratch();
  return carry_;
}

Row FunctionDecoder::destination(const ptx::Operand& operand) {
  if (operand.kind != ptx::Operand::Kind::NAME) fail("destination is not a register");
  if (operand.name == "_") return scratch();
  const Symbol* symbol = find(operand.name);
  if (!symbol || symbol->kind != Symbol::Kind::REGISTER)
    fail("unknown register '" + std::string(operand.name) + "'");
  return static_cast<Row>(symbol->value);
}

Row FunctionDecoder::value(const ptx::Operand& operand, Type type) {
  using Kind = ptx::Operand::Kind;
  if (operand.kind == Kind::F64 && type == Type::F32)
    return constant(
        std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(operand.value))));
  if (operand.kind == Kind::INTEGER && type == Type::F32)
    return constant(std::bit_cast<uint32_t>(static_cast<float>(operand.value)));
  if (operand.kind == Kind::INTEGER && type == Type::F64)
    return constant(std::bit_cast<uint64_t>(static_cast<double>(operand.value)));
  if (operand.kind == Kind::INTEGER || operand.kind == Kind::F32 || operand.kind == Kind::F64)
    return constant(static_cast<uint64_t>(operand.value));
  if (operand.kind != Kind::NAME) fail("operand is not a value");
  if (operand.negated) fail("negated operand is not supported here");
  if (operand.name == "WARP_SZ") return constant(32);
  if (const auto special = SPECIAL_REGISTERS.find(operand.name); special != SPECIAL_REGISTERS.end())
    return constant(special->second, 0);
  const Symbol* symbol = find(operand.name);
  if (!symbol) fail("unknown name '" + std::string(operand.name) + "'");
  const uint64_t offset = symbol->value + static_cast<uint64_t>(operand.value);
  switch (symbol->kind) {
    case Symbol::Kind::REGISTER:
      return static_cast<Row>(symbol->value);
    case Symbol::Kind::ENTRY_PARAMETER:
      return constant(Constant::Kind::PARAMETER_BUFFER, offset);
    case Symbol::Kind::LOCAL:
      return constant(Constant::Kind::LOCAL, offset);
    case Symbol::Kind::SHARED_DYNAMIC:
      return constant(Constant::Kind::SHARED_DYNAMIC, offset);
    case Symbol::Kind::SHARED:
    case Symbol::Kind::GLOBAL:
      return constant(offset);
    case Symbol::Kind::FUNCTION:
      return constant(symbol->value);
    case Symbol::Kind::ROWS:
      break;
  }
  fail("the address of parameter '" + std::string(operand.name) + "' is not supported");
}

Row FunctionDecoder::predicate(const ptx::Operand& operand) {
  if (operand.negated) fail("negated predicate is not supported here");
  return value(operand, Type::PRED);
}

void FunctionDecoder::address(const ptx::Operand& operand, Instruction* out) {
  if (operand.kind != ptx::Operand::Kind::ADDRESS) fail("operand is not an address");
  ptx::Operand base;
  base.name = operand.name;
  if (operand.name.empty()) {
    out->a = constant(static_cast<uint64_t>(operand.value));
    return;
  }
  out->a = value(base, Type::U64);
  out->imm = operand.value;
}

uint32_t FunctionDecoder::add_vector(const ptx::Operand& operand, Type type, bool is_destination) {
  if (!operand.second_name.empty()) fail("a vector with a second destination");
  std::vector<Row> rows;
  rows.reserve(operand.elements.size());
  for (const ptx::Operand& element : operand.elements)
    rows.push_back(is_destination ? destination(element) : value(element, type));
  return add_vector(std::move(rows));
}

uint32_t FunctionDecoder::add_vector(std::vector<Row> rows) {
  out_->vectors.push_back(std::move(rows));
  return static_cast<uint32_t>(out_->vectors.size() - 1);
}

uint32_t FunctionDecoder::add_call(Call call) {
  out_->calls.push_back(std::move(call));
  return static_cast<uint32_t>(out_->calls.size() - 1);
}

const std::vector<std::string_view>& FunctionDecoder::targets(std::string_view label) const {
  const auto found = target_lists_.find(label);
  if (found == target_lists_.end()) fail("unknown target list '" + std::string(label) + "'");
  return *found->second;
}

void FunctionDecoder::fix_branch(std::string_view label, uint32_t line) {
  fixups_.push_back({label, scope_, line, out_->code.size()});
}

uint32_t FunctionDecoder::add_table(const std::vector<std::string_view>& labels, uint32_t line) {
  const int table = static_cast<int>(out_->tables.size());
  out_->tables.emplace_back(labels.size());
  for (size_t i = 0; i < labels.size(); ++i)
    fixups_.push_back({labels[i], scope_, line, 0, table, static_cast<int>(i)});
  return static_cast<uint32_t>(table);
}

void FunctionDecoder::instruction(const ptx::Instruction& source) {
  current_ = &source;
  const auto entry = operation_table().find(source.opcode.front());
  if (entry == operation_table().end()) fail("not supported by the software GPU");
  if (!is_listed(source)) fail("these modifiers and types are not supported by the software GPU");
  Instruction out;
  out.line = source.line;
  out.source = source.source;
  if (!source.predicate.empty()) {
    ptx::Operand name;
    name.name = source.predicate;
    out.predicate = value(name, Type::PRED);
    out.predicate_negated = source.predicate_negated;
  }
  Modifiers modifiers(source);
  Decoding decoding{*this, source, modifiers, out};
  entry->second(decoding);
  modifiers.require_all_taken();
  if (out.control == Control::ORDINARY && !out.handler) fail("this type is not supported");
  if (check_mode()) add_check(&out);
  emit(out);
  current_ = nullptr;
}

void FunctionDecoder::decode() {
  declare_parameters();
  for (const ptx::Statement& statement : source_.body)
    if (statement.kind == ptx::Statement::Kind::TARGETS)
      target_lists_[statement.label] = &statement.targets;
  for (const ptx::Statement& each : source_.body) statement(each);
  Instruction end;  // falling off the end returns
  end.control = Control::RETURN;
  emit(end);
  for (const Fixup& fixup : fixups_) patch(fixup);
  out_->is_defined = true;
}

void FunctionDecoder::statement(const ptx::Statement& statement) {
  switch (statement.kind) {
    case ptx::Statement::Kind::SCOPE_OPEN:
      return open_scope();
    case ptx::Statement::Kind::SCOPE_CLOSE:
      scope_ = scopes_[scope_].outer;
      return;
    case ptx::Statement::Kind::VARIABLE:
      return declare(statement.variable);
    case ptx::Statement::Kind::LABEL:
      if (!scopes_[scope_].labels.emplace(statement.label, out_->code.size()).second)
        fail("label '" + std::string(statement.label) + "' is there twice");
      return;
    case ptx::Statement::Kind::TARGETS:
      return;
    case ptx::Statement::Kind::INSTRUCTION:
      return instruction(statement.instruction);
  }
}

void FunctionDecoder::patch(const Fixup& fixup) {
  for (size_t i = fixup.scope;; i = scopes_[i].outer) {
    const auto label = scopes_[i].labels.find(fixup.label);
    if (label == scopes_[i].labels.end()) {
      if (i == 0) throw ptx::Error(fixup.line, "unknown label '" + std::string(fixup.label) + "'");
      continue;
    }
    if (fixup.table < 0)
      out_->code[fixup.instruction].target = label->second;
    else
      out_->tables[static_cast<size_t>(fixup.table)][static_cast<size_t>(fixup.entry)] =
          label->second;
    return;
  }
}

}  // namespace software_gpu
