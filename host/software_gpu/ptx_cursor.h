// SPDX-License-Identifier: Apache-2.0
// A place in the tokens of a PTX text, and the small things that are read there: words, numbers,
// operands. What does not fit is refused by Error with the line.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "ptx_lexer.h"
#include "ptx_syntax.h"

namespace software_gpu::ptx {

class Cursor {
 public:
  explicit Cursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

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
  void expect(std::string_view text);
  std::string_view word();
  void skip_past(std::string_view text);
  void skip_line();

  int64_t integer();
  uint32_t positive();  // or 0
  /// A number operand: hexadecimal float bits (0f…, 0d…), decimal float or integer.
  Operand number();
  Operand operand();

 protected:
  std::string_view opcode_;  // of the instruction whose operands are being read, for messages

 private:
  Operand list();
  Operand scalar();
  Operand address();

  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace software_gpu::ptx
