// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <cstring>
#include <utility>

#include "ptx_lexer.h"
#include "ptx_syntax.h"

namespace software_gpu {
namespace {
constexpr std::pair<std::string_view, Type> TYPE_NAMES[] = {
    {"pred", Type::PRED},     {"b8", Type::B8},   {"b16", Type::B16},     {"b32", Type::B32},
    {"b64", Type::B64},       {"u8", Type::U8},   {"u16", Type::U16},     {"u32", Type::U32},
    {"u64", Type::U64},       {"s8", Type::S8},   {"s16", Type::S16},     {"s32", Type::S32},
    {"s64", Type::S64},       {"f16", Type::F16}, {"f16x2", Type::F16X2}, {"bf16", Type::BF16},
    {"bf16x2", Type::BF16X2}, {"f32", Type::F32}, {"f64", Type::F64}};
}

Type type_from_name(std::string_view name) {
  for (const auto& [text, type] : TYPE_NAMES)
    if (text == name) return type;
  return Type::NONE;
}

std::string_view type_name(Type type) {
  for (const auto& [text, t] : TYPE_NAMES)
    if (t == type) return text;
  return "none";
}

namespace ptx {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : tokens_(tokenize(text)) {}

  Module module() {
    while (peek().kind != Token::Kind::END) module_item();
    return std::move(module_);
  }

 private:
  const Token& peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  bool is(std::string_view text) const {
    return peek().kind != Token::Kind::STRING && peek().text == text;
  }
  Token take() {
    const Token token = peek();
    if (token.kind != Token::Kind::END) ++at_;
    return token;
  }
  bool accept(std::string_view text) {
    if (!is(text)) return false;
    ++at_;
    return true;
  }
  [[noreturn]] void fail(const std::string& message) const {
    const std::string where = opcode_.empty() ? "" : "instruction '" + std::string(opcode_) + "': ";
    throw Error(peek().line, where + message);
  }
  void expect(std::string_view text) {
    if (!accept(text))
      fail("expected '" + std::string(text) + "', found '" + std::string(peek().text) + "'");
  }
  std::string_view word() {
    if (peek().kind != Token::Kind::WORD) fail("expected a name");
    return take().text;
  }
  void skip_past(std::string_view text) {
    while (!is(text))
      if (take().kind == Token::Kind::END) fail("expected '" + std::string(text) + "'");
    take();
  }
  void skip_line() {
    const uint32_t line = peek().line;
    while (peek().line == line && peek().kind != Token::Kind::END) take();
  }

  int64_t integer() {
    const bool negative = accept("-");
    accept("+");
    std::string_view text = take().text;
    while (!text.empty() && text.back() == 'U') text.remove_suffix(1);
    int base = 10;
    if (text.size() > 1 && text[0] == '0') {
      base = text[1] == 'x' || text[1] == 'X' ? 16 : text[1] == 'b' || text[1] == 'B' ? 2 : 8;
      text.remove_prefix(base == 8 ? 1 : 2);
    }
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (error != std::errc() || end != text.data() + text.size()) fail("expected an integer");
    return static_cast<int64_t>(negative ? 0 - value : value);
  }

  /// A number operand: hexadecimal float bits (0f…, 0d…), decimal float or integer.
  Operand number() {
    Operand operand;
    const std::string_view text = peek().text;
    const int tag = text.size() > 1 && text[0] == '0' ? text[1] | 0x20 : 0;
    if ((tag == 'f' && text.size() == 10) || (tag == 'd' && text.size() == 18)) {
      uint64_t bits = 0;
      std::from_chars(text.data() + 2, text.data() + text.size(), bits, 16);
      take();
      operand.kind = tag == 'f' ? Operand::Kind::F32 : Operand::Kind::F64;
      operand.value = static_cast<int64_t>(bits);
    } else if (tag != 'x' && text.find('.') != std::string_view::npos) {
      double value = 0;
      std::from_chars(text.data(), text.data() + text.size(), value);
      take();
      operand.kind = Operand::Kind::F64;
      memcpy(&operand.value, &value, sizeof value);
    } else {
      operand.kind = Operand::Kind::INTEGER;
      operand.value = integer();
    }
    return operand;
  }

  Operand operand() {
    Operand result;
    if (accept("[")) {
      result.kind = Operand::Kind::ADDRESS;
      if (peek().kind == Token::Kind::WORD) {
        result.name = word();
        if (accept("+") || is("-")) result.value = integer();
      } else {
        result.value = integer();
      }
      expect("]");
    } else if (is("{") || is("(")) {
      const bool vector = is("{");
      result.kind = vector ? Operand::Kind::VECTOR : Operand::Kind::LIST;
      take();
      const std::string_view close = vector ? "}" : ")";
      while (!accept(close)) {
        result.elements.push_back(operand());
        accept(",");
      }
    } else if (peek().kind == Token::Kind::NUMBER) {
      result = number();
    } else if (accept("-")) {
      result = number();
      if (result.kind == Operand::Kind::F32)
        result.value ^= 1ll << 31;
      else if (result.kind == Operand::Kind::F64)
        result.value ^= INT64_MIN;
      else
        result.value = static_cast<int64_t>(0 - static_cast<uint64_t>(result.value));
    } else {
      result.negated = accept("!");
      result.name = word();
      if (accept("|")) result.second_name = word();
      // "symbol+4" as a plain operand
      if (is("+") && peek(1).kind == Token::Kind::NUMBER) result.value = (take(), integer());
    }
    return result;
  }

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

  uint32_t positive() {
    const int64_t value = integer();
    if (value < 0 || value > UINT32_MAX) fail("number out of range");
    return static_cast<uint32_t>(value);
  }

  void initialiser_list(Variable* variable) {
    if (accept("{")) {
      while (!accept("}")) {
        initialiser_list(variable);
        accept(",");
      }
      return;
    }
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
        number_operand.value = -number_operand.value;
      }
      value.value = number_operand.value;
    }
    variable->initialisers.push_back(value);
  }

  /// After the space word: ".align 4 .b8 name[16] = {...}".
  Variable variable(std::string_view space) {
    Variable result;
    result.space = space;
    result.line = peek().line;
    while (peek().text.size() > 1 && peek().text[0] == '.') {
      const std::string_view text = word().substr(1);
      if (text == "align")
        result.align_bytes = positive();
      else if (text == "v2")
        result.n_vector = 2;
      else if (text == "v4")
        result.n_vector = 4;
      else if (text == "attribute")
        skip_past(")");
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

  void declarator(Variable* variable) {
    if (accept("<")) {
      variable->n_registers = positive();
      expect(">");
    }
    while (accept("[")) {
      variable->is_array = true;
      variable->n_elements *= is("]") ? 0 : positive();
      expect("]");
    }
    if (accept("=")) {
      initialiser_list(variable);
      if (variable->is_array && variable->n_elements == 0)
        variable->n_elements = variable->initialisers.size();
    }
  }

  template <class Add>
  void variables(std::string_view space, bool is_extern, Add add) {
    Variable first = variable(space);
    first.is_extern = is_extern;
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

  void function(bool is_entry) {
    Function result;
    result.is_entry = is_entry;
    result.line = peek().line;
    if (!is_entry && is("(")) result.results = parameter_list();
    result.name = word();
    if (is("(")) result.parameters = parameter_list();
    while (!is("{") && !is(";")) function_directive(&result);
    if (accept(";")) {
      module_.functions.push_back(std::move(result));
      return;
    }
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
      } else if (is(".loc")) {
        skip_line();
        continue;
      } else if (is(".pragma")) {
        skip_past(";");
        continue;
      } else if (peek().kind == Token::Kind::WORD && peek().text[0] == '.') {
        const std::string_view space = word().substr(1);
        variables(space, false, [&](const Variable& variable) {
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

  void module_item() {
    const Token token = take();
    std::string_view text = token.text;
    bool is_extern = false;
    while (text == ".extern" || text == ".visible" || text == ".weak" || text == ".common") {
      is_extern |= text == ".extern";
      text = take().text;
    }
    if (text == ".version") {
      // 9.0 is CUDA 13.0's: the release that this driver says it is of.
      const std::string_view version = take().text;
      int major = 0;
      std::from_chars(version.data(), version.data() + version.size(), major);
      if (major > 9 || (major == 9 && version != "9.0" && version != "9"))
        throw NewerVersion(token.line,
                           "PTX version " + std::string(version) + " is newer than 9.0");
    } else if (text == ".target" || text == ".address_size" || text == ".file") {
      skip_line();
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
      function(text == ".entry");
    } else if (text == ".global" || text == ".const" || text == ".shared") {
      variables(text.substr(1), is_extern,
                [&](const Variable& v) { module_.variables.push_back(v); });
    } else {
      throw Error(token.line, "unexpected '" + std::string(token.text) + "'");
    }
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  std::string_view opcode_;  // of the instruction whose operands are being read, for messages
  Module module_;
};

}  // namespace

Module parse(std::string_view text) { return Parser(text).module(); }

}  // namespace ptx
}  // namespace software_gpu
