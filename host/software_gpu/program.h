// SPDX-License-Identifier: Apache-2.0
// The decoded form of a module: what the interpreter runs. No strings are looked at while running.
//
// Every operand is a *row*: one 64-bit slot per thread of the block. Immediates, addresses of
// symbols and special registers are rows too, filled when a function is entered, so that an
// operation reads all its operands the same way. A slot holds a value in its low bits; what lies
// above the width of an operation's type is ignored by every reader.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "types.h"

namespace software_gpu {

class Block;
struct Lanes;
struct Instruction;

using Row = uint32_t;
inline constexpr Row NO_ROW = UINT32_MAX;

/// Applies one instruction to the given lanes.
using Handler = void (*)(Block&, const Instruction&, const Lanes&);

/// Instructions that the scheduler itself carries out; ORDINARY ones have a handler.
enum class Control : uint8_t {
  ORDINARY,
  WARP,
  BRANCH,
  BRANCH_INDEXED,
  CALL,
  RETURN,
  EXIT,
  BARRIER,
  TRAP
};

/// What an instruction does with memory, for check mode.
enum class Access : uint8_t { NONE, READ, WRITE, UPDATE, FENCE };

enum class Space : uint8_t { GENERIC, SHARED, LOCAL };

struct Instruction {
  Handler handler = nullptr;
  Handler unchecked = nullptr;  // check mode: what `handler` calls
  Control control = Control::ORDINARY;
  bool predicate_negated = false;
  uint8_t mode = 0;  // per operation: rounding, comparison, shuffle or barrier kind, …
  uint8_t n_vector = 1;
  bool flush = false;  // .ftz
  bool saturate = false;
  bool operand_negated = false;  // the predicate that an instruction reads as a value
  Space space = Space::GENERIC;
  Access access = Access::NONE;
  uint8_t access_bytes = 0;  // by one thread
  bool strong = false;       // atomic, volatile or relaxed: races with none of its kind
  bool releases = false;     // is a fence, too
  Type type = Type::NONE, source_type = Type::NONE;
  Row predicate = NO_ROW;
  Row dst = NO_ROW, dst2 = NO_ROW;
  Row a = NO_ROW, b = NO_ROW, c = NO_ROW, d = NO_ROW;
  int64_t imm = 0;      // byte offset of an address
  uint32_t target = 0;  // BRANCH: instruction index; sured: which reduction
  uint32_t line = 0;    // of the PTX
  SourcePlace source;
  uint32_t extra = 0;  // index into Function::calls, ::vectors or ::tables
};

/// A row with a value known before the function's first instruction.
struct Constant {
  enum class Kind : uint8_t {
    VALUE,
    SHARED_DYNAMIC,
    LOCAL,
    PARAMETER_BUFFER,
    TID_X,
    TID_Y,
    TID_Z,
    NTID_X,
    NTID_Y,
    NTID_Z,
    CTAID_X,
    CTAID_Y,
    CTAID_Z,
    NCTAID_X,
    NCTAID_Y,
    NCTAID_Z,
    LANEID,
    WARPID,
    NWARPID,
    LANEMASK_EQ,
    LANEMASK_LE,
    LANEMASK_LT,
    LANEMASK_GE,
    LANEMASK_GT,
    SMID,
    NSMID,
    GRIDID,
    DYNAMIC_SHARED_BYTES,
    TOTAL_SHARED_BYTES,
    GRID_WORKSPACE_HIGH,
    GRID_WORKSPACE_LOW
  };
  Row row;
  Kind kind;
  uint64_t value;
};

struct Parameter {
  std::string name;
  uint32_t offset_bytes = 0, size_bytes = 0;
  uint32_t n_rows() const { return (size_bytes + 7) / 8; }
  Row row =
      0;  // functions: first of ceil(size / 8) rows; entries keep theirs in the launch's buffer
};

struct Function;

enum class Builtin : uint8_t { NONE, VPRINTF, ASSERTFAIL, SET_CONDITIONAL, MALLOC, FREE };

struct Call {
  const Function* callee = nullptr;  // null: indirect through `pointer`
  Builtin builtin = Builtin::NONE;
  Row pointer = NO_ROW;
  std::vector<Row> arguments, results;  // first rows, in the callee's order
};

struct Function {
  std::string name;
  bool is_entry = false;
  bool is_defined = false;
  bool makes_calls = false;
  uint32_t n_rows = 0;
  uint32_t n_registers = 0;  // declared ones, for cuFuncGetAttribute
  uint32_t parameter_bytes = 0;
  uint32_t local_bytes = 0;
  uint32_t shared_bytes = 0;  // static shared memory of a kernel
  uint32_t max_threads = 1024;
  uint32_t required_threads[3] = {0, 0, 0};
  std::vector<Parameter> parameters, results;
  std::vector<Constant> constants;
  std::vector<Instruction> code;
  std::vector<Call> calls;
  std::vector<std::vector<Row>> vectors;      // elements of vector operands
  std::vector<std::vector<uint32_t>> tables;  // brx.idx targets
};

/// True when `call`, which is in `caller`, has what `callee` takes and gives.
bool fits(const Call& call, const Function& caller, const Function& callee);

struct Global {
  uint64_t address = 0, size_bytes = 0;
  bool is_managed = false;
};

/// A texture or surface reference: kernels name it by its address.
struct Reference {
  uint64_t address = 0;
  bool is_surface = false;
};

struct Module {
  std::map<std::string, std::unique_ptr<Function>, std::less<>> functions;
  std::map<std::string, Global, std::less<>> globals;
  std::map<std::string, Reference, std::less<>> references;
  std::map<uint32_t, std::string> files;  // that instructions name as their source
  void* memory = nullptr;                 // of all variables in global and constant space
  void* managed_memory = nullptr;         // of those that are managed
  uint64_t memory_bytes = 0, managed_bytes = 0, constant_bytes = 0;
  bool uses_heap = false;  // calls malloc or free
};

}  // namespace software_gpu
