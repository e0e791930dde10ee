// SPDX-License-Identifier: Apache-2.0
// PTX text -> syntax tree. Names are views into the source text, which must outlive the tree.
// Knows the shape of statements, not the meaning of instructions (that is decoder.h).
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "types.h"

namespace software_gpu::ptx {

/// What is wrong with a PTX text and where; becomes CUDA_ERROR_INVALID_PTX at the API.
struct Error : std::runtime_error {
  Error(uint32_t line, const std::string& message)
      : std::runtime_error("line " + std::to_string(line) + ": " + message) {}
};

/// The text is of a release that did not exist yet: CUDA_ERROR_UNSUPPORTED_PTX_VERSION.
struct NewerVersion : Error {
  using Error::Error;
};

struct Operand {
  enum class Kind { NAME, INTEGER, F32, F64, ADDRESS, TEXEL, VECTOR, LIST };
  Kind kind = Kind::NAME;
  std::string_view name;          // NAME; ADDRESS, TEXEL: base register or symbol, empty if none
  std::string_view second_name;   // "a|b", "{…}|b"
  int64_t value = 0;              // INTEGER; F32/F64: the bits; ADDRESS: offset in bytes
  bool negated = false;           // "!%p"
  std::vector<Operand> elements;  // VECTOR {...}, LIST (...), coordinates of TEXEL [a, {...}]
};

struct Instruction {
  uint32_t line = 0;
  SourcePlace source;
  std::string_view predicate;  // empty: always
  bool predicate_negated = false;
  std::vector<std::string_view> opcode;  // "ld.global.u32" split at its dots
  std::string_view opcode_text;
  std::vector<Operand> operands;
};

/// Who else may mean a thing by its name: only its own input, or all that are linked with it.
/// Of several definitions the last kind of these is taken.
enum class Linkage { LOCAL, EXTERN, COMMON, WEAK, VISIBLE };

/// A value of an initialiser: a number (already of the element type) or symbol + offset.
struct Initialiser {
  std::string_view symbol;
  int64_t value = 0;
  bool is_float = false;
};

struct Variable {
  enum class Reference { NONE, TEXTURE, SURFACE };
  uint32_t line = 0;
  std::string_view space;  // "reg", "global", "const", "shared", "local", "param"
  std::string_view name;
  Type type = Type::NONE;  // of a reference: that of its handle
  Reference reference = Reference::NONE;
  uint32_t n_vector = 1;
  uint32_t align_bytes = 0;  // 0: natural
  uint64_t n_elements = 1;
  bool is_array = false;
  bool is_managed = false;  // .attribute(.managed)
  Linkage linkage = Linkage::LOCAL;
  uint32_t input = 0;        // that it is of, from 1: each .version begins another
  uint32_t n_registers = 0;  // ".reg .b32 %r<6>": 6; 0 for a single one
  std::vector<Initialiser> initialisers;
  uint64_t size_bytes() const { return n_elements * n_vector * software_gpu::size_bytes(type); }
};

struct Statement {
  enum class Kind { INSTRUCTION, VARIABLE, LABEL, SCOPE_OPEN, SCOPE_CLOSE, TARGETS };
  Kind kind;
  Instruction instruction;
  Variable variable;
  std::string_view label;
  std::vector<std::string_view> targets;  // .branchtargets
};

struct Function {
  uint32_t line = 0;
  std::string_view name;
  Linkage linkage = Linkage::LOCAL;
  uint32_t input = 0;
  bool is_entry = false;
  bool has_body = false;
  std::vector<Variable> parameters, results;
  std::vector<Statement> body;
  uint32_t max_threads = 0;  // .maxntid or .reqntid, multiplied out; 0: not given
  uint32_t required_threads[3] = {0, 0, 0};
};

struct Module {
  std::vector<Variable> variables;
  std::vector<Function> functions;
  std::map<uint32_t, std::string_view> files;  // .file
};

/// Throws Error.
Module parse(std::string_view text);

}  // namespace software_gpu::ptx
