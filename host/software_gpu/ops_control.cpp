// SPDX-License-Identifier: Apache-2.0
// Control flow: bra brx call ret exit trap bar barrier nanosleep. The scheduler carries these out.
#include "builtins.h"
#include "decoder.h"
#include "map.h"

namespace software_gpu {

void full_fence();  // ops_memory.cpp

namespace {

void decode_branch(Decoding& d) {
  d.modifiers.take("uni");
  if (d.modifiers.take("idx")) {  // brx.idx index, list
    d.out.a = d.value(0, Type::U32);
    d.out.extra = d.decoder.add_table(d.decoder.targets(d.operand(1).name), d.source.line);
    d.out.control = Control::BRANCH_INDEXED;
    return;
  }
  d.out.control = Control::BRANCH;
  d.decoder.fix_branch(d.operand(0).name, d.source.line);
}

std::vector<Row> rows_of(Decoding& d, const ptx::Operand& list, bool results) {
  std::vector<Row> rows;
  for (const ptx::Operand& element : list.elements) {
    const Symbol* symbol =
        element.kind == ptx::Operand::Kind::NAME ? d.decoder.find(element.name) : nullptr;
    if (symbol && symbol->kind == Symbol::Kind::ROWS)
      rows.push_back(static_cast<Row>(symbol->value));
    else
      rows.push_back(results ? d.decoder.destination(element)
                             : d.decoder.value(element, Type::B64));
  }
  return rows;
}

/// call (results), callee, (arguments), prototype — each part but the callee may be missing.
void decode_call(Decoding& d) {
  d.modifiers.take("uni");
  d.out.control = Control::CALL;
  Call call;
  size_t at = 0;
  if (d.operand(0).kind == ptx::Operand::Kind::LIST)
    call.results = rows_of(d, d.operand(at++), true);
  const ptx::Operand& callee = d.operand(at++);
  if (at < d.n_operands()) call.arguments = rows_of(d, d.operand(at), false);
  const Symbol* symbol = d.decoder.find(callee.name);
  if (callee.name == "vprintf" && call.arguments.size() == 2) {
    call.builtin = Builtin::VPRINTF;
  } else if (callee.name == "__assertfail" && call.arguments.size() == 5) {
    call.builtin = Builtin::ASSERTFAIL;
  } else if (callee.name == "malloc" && call.arguments.size() == 1 && call.results.size() == 1) {
    call.builtin = Builtin::MALLOC;
  } else if (callee.name == "free" && call.arguments.size() == 1) {
    call.builtin = Builtin::FREE;
  } else if (callee.name == "cudaGraphSetConditional" && call.arguments.size() == 2) {
    call.builtin = Builtin::SET_CONDITIONAL;
  } else if (symbol && symbol->kind == Symbol::Kind::REGISTER) {
    call.pointer = static_cast<Row>(symbol->value);
    d.decoder.function().makes_calls = true;
  } else {
    if (!symbol || symbol->kind != Symbol::Kind::FUNCTION)
      d.fail("function '" + std::string(callee.name) + "' is not provided by the software GPU");
    call.callee = reinterpret_cast<const Function*>(symbol->value);
    d.decoder.function().makes_calls = true;
  }
  d.out.extra = d.decoder.add_call(std::move(call));
}

void warp_barrier(Block&, const Instruction&, const Lanes&) { full_fence(); }

void decode_barrier(Decoding& d) {
  Modifiers& m = d.modifiers;
  if (m.take("warp")) {  // bar.warp.sync mask
    m.take("sync");
    d.out.control = Control::WARP;
    d.out.d = d.value(0, Type::B32);
    d.out.handler = warp_barrier;
    return;
  }
  m.ignore({"cta", "aligned"});
  d.out.control = Control::BARRIER;
  size_t at = 0;
  if (m.take("red")) {
    const int kind = m.take_one({"popc", "and", "or"});
    if (kind < 0) d.fail("unknown operation");
    d.out.mode = static_cast<uint8_t>(BARRIER_POPC + kind);
    m.take_type();
    d.set_dst();
    ptx::Operand source = d.operand(d.n_operands() - 1);
    d.out.operand_negated = source.negated;
    source.negated = false;
    d.out.c = d.decoder.value(source, Type::PRED);
    at = 1;
  } else {
    d.out.mode = m.take("arrive") ? BARRIER_ARRIVE : BARRIER_SYNC;
    m.take("sync");
  }
  const size_t end = d.n_operands() - (d.out.c == NO_ROW ? 0 : 1);
  d.out.a = d.value(at, Type::U32);
  if (at + 1 < end) d.out.b = d.value(at + 1, Type::U32);
}

void sleep(Block& block, const Instruction&, const Lanes&) { block.poll(); }

void nothing(Block&, const Instruction&, const Lanes&) {}

}  // namespace

void add_control_operations(OperationTable* table) {
  OperationTable& t = *table;
  t["bra"] = t["brx"] = decode_branch;
  t["call"] = decode_call;
  t["bar"] = t["barrier"] = decode_barrier;
  t["ret"] = [](Decoding& d) {
    d.modifiers.take("uni");
    d.out.control = Control::RETURN;
  };
  t["exit"] = [](Decoding& d) { d.out.control = Control::EXIT; };
  t["trap"] = [](Decoding& d) { d.out.control = Control::TRAP; };
  t["brkpt"] = t["trap"];
  t["nanosleep"] = [](Decoding& d) {
    d.modifiers.take_type();
    d.out.handler = sleep;
  };
  t["pmevent"] = [](Decoding& d) {
    d.modifiers.take("mask");
    d.out.handler = nothing;
  };
}

}  // namespace software_gpu
