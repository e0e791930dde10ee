// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <charconv>
#include <cstring>

#include "ptx_cursor.h"
#include "ptx_syntax.h"

namespace software_gpu::ptx {
namespace {

// Times another dimension's length it still is a 64-bit number.
constexpr uint64_t MAX_ELEMENTS = 1ull << 32;

const std::map<std::string_view, Linkage> LINKAGES = {{".extern", Linkage::EXTERN},
                                                      {".common", Linkage::COMMON},
                                                      {".weak", Linkage::WEAK},
                                                      {".visible", Linkage::VISIBLE}};

class Parser : private Cursor {
 public:
  explicit Parser(std::string_view text) : Cursor(tokenize(text)) {}

  Module module() {
    while (peek().kind != Token::Kind::END) module_item();
    return std::move(module_);
  }

 private:
  static std::vector<std::string_view> split(std::string_view text) {
    std::vector<std::string_view> parts;
    while (true) {
      const size_t dot = text.find('.');
      std::string_view part = text.substr(0, dot);
      if (part == "shared::cta") part = "shared";
      parts.push_back(part);
      if (dot == std::string_view::npos) return parts;
      text.remove_prefix(dot + 1);
    }
  }

  Instruction instruction() {
    Instruction result;
    result.line = peek().line;
    if (accept("@")) {
      result.predicate_negated = accept("!");
      result.predicate = word();
    }
    result.line = peek().line;
    result.source = place_;
    opcode_ = result.opcode_text = word();
    result.opcode = split(result.opcode_text);
    while (!accept(";")) {
      if (peek().kind == Token::Kind::END) fail("expected ';'");
      result.operands.push_back(operand());
      if (!is(";")) accept(",");
    }
    opcode_ = {};
    return result;
  }

  /// One value, or values in braces, which say nothing that their order does not.
  void initialiser_list(Variable* variable) {
    size_t depth = 0;
    do {
      if (accept("{"))
        ++depth;
      else if (depth == 0 || !accept("}"))
        initialiser(variable);
      else
        --depth;
      if (depth != 0) accept(",");
    } while (depth != 0);
  }

  void initialiser(Variable* variable) {
    Initialiser value;
    if (peek().kind == Token::Kind::WORD) {
      value.symbol = word();
      if (value.symbol == "generic" && accept("(")) {
        value.symbol = word();
        expect(")");
      }
      if (accept("+") || is("-")) value.value = integer();
    } else {
      const bool negative = accept("-");
      Operand number_operand = number();
      if (number_operand.kind != Operand::Kind::INTEGER) {
        value.is_float = true;
        if (negative)
          number_operand.value ^= number_operand.kind == Operand::Kind::F32 ? 1ll << 31 : INT64_MIN;
        if (number_operand.kind == Operand::Kind::F64 && variable->type == Type::F32) {
          double wide;
          memcpy(&wide, &number_operand.value, sizeof wide);
          const float narrow = static_cast<float>(wide);
          uint32_t bits;
          memcpy(&bits, &narrow, sizeof bits);
          number_operand.value = bits;
        }
      } else if (negative) {
        number_operand.value =
            static_cast<int64_t>(0 - static_cast<uint64_t>(number_operand.value));
      }
      value.value = number_operand.value;
    }
    variable->initialisers.push_back(value);
  }

  /// After ".attribute": "(.managed, .unified(1,2))".
  bool attribute_is_managed() {
    bool managed = false;
    expect("(");
    while (!accept(")")) {
      if (peek().kind == Token::Kind::END) fail("expected ')'");
      const bool unified = is(".unified");
      managed |= take().text == ".managed";
      if (unified) skip_past(")");
      accept(",");
    }
    return managed;
  }

  /// After the space word: ".align 4 .b8 name[16] = {...}".
  Variable variable(std::string_view space) {
    Variable result;
    result.space = space;
    result.line = peek().line;
    while (peek().text.size() > 1 && peek().text[0] == '.') {
      const std::string_view text = word().substr(1);
      if (text == "align")
        result.align_bytes = alignment();
      else if (text == "v2")
        result.n_vector = 2;
      else if (text == "v4")
        result.n_vector = 4;
      else if (text == "texref" || text == "surfref")
        reference(text, &result);
      else if (text == "attribute")
        result.is_managed |= attribute_is_managed();
      else if (text == "ptr" || text == "global" || text == "const" || text == "shared" ||
               text == "local") {
      } else if (result.type = type_from_name(text); result.type == Type::NONE) {
        fail("unknown type or attribute '." + std::string(text) + "'");
      }
    }
    if (result.type == Type::NONE) fail("variable without a type");
    result.name = word();
    declarator(&result);
    return result;
  }

  void reference(std::string_view kind, Variable* variable) {
    if (variable->space != "global") fail("a reference that is no global variable");
    variable->type = Type::B64;
    variable->reference =
        kind == "texref" ? Variable::Reference::TEXTURE : Variable::Reference::SURFACE;
  }

  uint32_t alignment() {
    const uint32_t value = positive();
    if (!std::has_single_bit(value)) fail("an alignment is a power of two");
    return value;
  }

  void declarator(Variable* variable) {
    if (accept("<")) {
      variable->n_registers = positive();
      expect(">");
    }
    while (accept("[")) {
      variable->is_array = true;
      variable->n_elements *= is("]") ? 0 : positive();
      if (variable->n_elements > MAX_ELEMENTS) fail("too many elements");
      expect("]");
    }
    if (variable->reference != Variable::Reference::NONE && (is("=") || variable->is_array))
      fail("references in arrays, or with values, are not supported");
    if (accept("=")) {
      initialiser_list(variable);
      if (variable->is_array && variable->n_elements == 0)
        variable->n_elements = variable->initialisers.size();
    }
  }

  template <class Add>
  void variables(std::string_view space, Linkage linkage, Add add) {
    Variable first = variable(space);
    first.linkage = linkage;
    first.input = input_;
    add(first);
    while (accept(",")) {
      Variable next = first;
      next.name = word();
      next.n_elements = 1;
      next.n_registers = 0;
      next.is_array = false;
      next.initialisers.clear();
      declarator(&next);
      add(next);
    }
    expect(";");
  }

  std::vector<Variable> parameter_list() {
    std::vector<Variable> result;
    expect("(");
    while (!accept(")")) {
      const std::string_view space = word();
      result.push_back(variable(space.substr(1)));
      accept(",");
    }
    return result;
  }

  void function(bool is_entry, Linkage linkage) {
    Function result;
    result.is_entry = is_entry;
    result.linkage = linkage;
    result.input = input_;
    result.line = peek().line;
    if (!is_entry && is("(")) result.results = parameter_list();
    result.name = word();
    if (is("(")) result.parameters = parameter_list();
    while (!is("{") && !is(";")) function_directive(&result);
    if (accept(";")) {
      module_.functions.push_back(std::move(result));
      return;
    }
    if (linkage == Linkage::EXTERN) fail("an extern function with a body");
    result.has_body = true;
    body(&result);
    module_.functions.push_back(std::move(result));
  }

  void function_directive(Function* function) {
    const std::string_view directive = word();
    if (directive == ".maxntid" || directive == ".reqntid") {
      uint32_t n[3] = {1, 1, 1};
      for (int i = 0; i < 3; ++i) {
        n[i] = positive();
        if (!accept(",")) break;
      }
      function->max_threads = n[0] * n[1] * n[2];
      if (directive == ".reqntid") std::copy(n, n + 3, function->required_threads);
    } else if (directive == ".pragma") {
      skip_past(";");
    } else if (directive != ".noreturn") {
      while (peek().kind == Token::Kind::NUMBER || is(",")) take();
    }
  }

  void body(Function* function) {
    expect("{");
    place_ = {};
    int depth = 1;
    while (depth > 0) {
      if (peek().kind == Token::Kind::END) fail("function body without end");
      Statement statement{};
      if (accept("{")) {
        ++depth;
        statement.kind = Statement::Kind::SCOPE_OPEN;
      } else if (accept("}")) {
        if (--depth == 0) break;
        statement.kind = Statement::Kind::SCOPE_CLOSE;
      } else if (accept(".loc")) {
        location();
        continue;
      } else if (is(".pragma")) {
        skip_past(";");
        continue;
      } else if (peek().kind == Token::Kind::WORD && peek().text[0] == '.') {
        const std::string_view space = word().substr(1);
        variables(space, Linkage::LOCAL, [&](const Variable& variable) {
          Statement declaration{};
          declaration.kind = Statement::Kind::VARIABLE;
          declaration.variable = variable;
          function->body.push_back(std::move(declaration));
        });
        continue;
      } else if (peek(1).text == ":" && peek().kind == Token::Kind::WORD) {
        statement = label();
      } else {
        statement.kind = Statement::Kind::INSTRUCTION;
        statement.instruction = instruction();
      }
      function->body.push_back(std::move(statement));
    }
  }

  /// After ".loc": file, line, column; then what it was inlined into, which is not kept.
  void location() {
    place_.file = first_file_ + positive();
    place_.line = positive();
    if (peek().kind == Token::Kind::NUMBER) skip_line();
  }

  /// After ".file": number, name; then, perhaps, its time and size.
  void source_file() {
    const uint32_t number = first_file_ + positive();
    if (peek().kind != Token::Kind::STRING) fail("expected the name of a file");
    module_.files[number] = peek().text;
    skip_line();
  }

  Statement label() {
    Statement statement{};
    statement.kind = Statement::Kind::LABEL;
    statement.label = word();
    expect(":");
    if (accept(".branchtargets")) {
      statement.kind = Statement::Kind::TARGETS;
      while (!accept(";")) {
        statement.targets.push_back(word());
        accept(",");
      }
    } else if (is(".callprototype") || is(".calltargets")) {
      skip_past(";");  // an indirect call is checked against its callee, not its prototype
    }
    return statement;
  }

  /// Begins an input of the linker, or the only one.
  void version(uint32_t line) {
    // 9.0 is CUDA 13.0's: the release that this driver says it is of.
    const std::string_view version = take().text;
    int major = 0;
    std::from_chars(version.data(), version.data() + version.size(), major);
    if (major > 9 || (major == 9 && version != "9.0" && version != "9"))
      throw NewerVersion(line, "PTX version " + std::string(version) + " is newer than 9.0");
    ++input_;
    if (!module_.files.empty()) first_file_ = module_.files.rbegin()->first;
  }

  void module_item() {
    const Token token = take();
    std::string_view text = token.text;
    Linkage linkage = Linkage::LOCAL;
    for (auto it = LINKAGES.find(text); it != LINKAGES.end(); it = LINKAGES.find(text)) {
      linkage = it->second;
      text = take().text;
    }
    if (text == ".version") {
      version(token.line);
    } else if (text == ".target" || text == ".address_size") {
      skip_line();
    } else if (text == ".file") {
      source_file();
    } else if (text == ".pragma") {
      skip_past(";");
    } else if (text == ".alias") {
      throw Error(token.line, ".alias is not supported by the software GPU");
    } else if (text == ".section") {
      skip_past("{");
      for (int depth = 1; depth > 0;) {
        const Token inner = take();
        if (inner.kind == Token::Kind::END) fail("section without end");
        depth += inner.text == "{" ? 1 : inner.text == "}" ? -1 : 0;
      }
    } else if (text == ".entry" || text == ".func") {
      function(text == ".entry", linkage);
    } else if (text == ".global" || text == ".const" || text == ".shared") {
      variables(text.substr(1), linkage,
                [&](const Variable& v) { module_.variables.push_back(v); });
    } else {
      throw Error(token.line, "unexpected '" + std::string(token.text) + "'");
    }
  }

  Module module_;
  SourcePlace place_;        // of the instructions that follow
  uint32_t input_ = 1;       // that is being read
  uint32_t first_file_ = 0;  // added to its numbers of files
};

}  // namespace

Module parse(std::string_view text) { return Parser(text).module(); }

}  // namespace software_gpu::ptx
