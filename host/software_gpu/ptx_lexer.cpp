// SPDX-License-Identifier: Apache-2.0
#include "ptx_lexer.h"

#include "ptx_syntax.h"

namespace software_gpu::ptx {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '$' ||
         c == '%' || c == '.';
}

}  // namespace

std::vector<Token> tokenize(std::string_view text) {
  std::vector<Token> tokens;
  tokens.reserve(text.size() / 5);
  uint32_t line = 1;
  size_t at = 0;
  const auto skip_to = [&](std::string_view mark, size_t from, const char* what) {
    const size_t end = text.find(mark, from);
    if (end == std::string_view::npos) throw Error(line, what);
    for (size_t i = at; i < end; ++i) line += text[i] == '\n';
    at = end + mark.size();
  };
  while (at < text.size()) {
    const char c = text[at];
    const size_t start = at;
    const uint32_t start_line = line;
    if (c == '\n') {
      ++line;
      ++at;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      ++at;
    } else if (text.substr(at, 2) == "//") {
      at = std::min(text.find('\n', at), text.size());
    } else if (text.substr(at, 2) == "/*") {
      skip_to("*/", at + 2, "comment without end");
    } else if (c == '"') {
      skip_to("\"", at + 1, "string without end");
      tokens.push_back({Token::Kind::STRING, start_line, text.substr(start + 1, at - start - 2)});
    } else if (is_word(c)) {
      // "::" joins qualified modifiers such as .shared::cta into one word. A directive ends where
      // the next begins: CUDA's headers write ".reg.b32".
      do {
        at += text[at] == ':' ? 2 : 1;
      } while (at < text.size() && (is_word(text[at]) || text.substr(at, 2) == "::") &&
               !(c == '.' && text[at] == '.'));
      const auto kind = is_digit(c) ? Token::Kind::NUMBER : Token::Kind::WORD;
      tokens.push_back({kind, line, text.substr(start, at - start)});
    } else {
      ++at;
      tokens.push_back({Token::Kind::PUNCTUATION, line, text.substr(start, 1)});
    }
  }
  tokens.push_back({Token::Kind::END, line, {}});
  return tokens;
}

}  // namespace software_gpu::ptx
