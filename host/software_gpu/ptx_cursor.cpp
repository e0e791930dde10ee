// SPDX-License-Identifier: Apache-2.0
#include "ptx_cursor.h"

#include <charconv>
#include <cstring>

namespace software_gpu::ptx {

void Cursor::expect(std::string_view text) {
  if (!accept(text))
    fail("expected '" + std::string(text) + "', found '" + std::string(peek().text) + "'");
}

std::string_view Cursor::word() {
  if (peek().kind != Token::Kind::WORD) fail("expected a name");
  return take().text;
}

void Cursor::skip_past(std::string_view text) {
  while (!is(text))
    if (take().kind == Token::Kind::END) fail("expected '" + std::string(text) + "'");
  take();
}

void Cursor::skip_line() {
  const uint32_t line = peek().line;
  while (peek().line == line && peek().kind != Token::Kind::END) take();
}

int64_t Cursor::integer() {
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

uint32_t Cursor::positive() {
  const int64_t value = integer();
  if (value < 0 || value > UINT32_MAX) fail("number out of range");
  return static_cast<uint32_t>(value);
}

Operand Cursor::number() {
  Operand operand;
  const std::string_view text = peek().text;
  const char *const begin = text.data(), *const end = begin + text.size();
  const int tag = text.size() > 1 && text[0] == '0' ? text[1] | 0x20 : 0;
  if ((tag == 'f' && text.size() == 10) || (tag == 'd' && text.size() == 18)) {
    uint64_t bits = 0;
    if (std::from_chars(begin + 2, end, bits, 16).ptr != end) fail("expected a number");
    take();
    operand.kind = tag == 'f' ? Operand::Kind::F32 : Operand::Kind::F64;
    operand.value = static_cast<int64_t>(bits);
  } else if (tag != 'x' && text.find('.') != std::string_view::npos) {
    double value = 0;
    if (std::from_chars(begin, end, value).ptr != end) fail("expected a number");
    take();
    operand.kind = Operand::Kind::F64;
    memcpy(&operand.value, &value, sizeof value);
  } else {
    operand.kind = Operand::Kind::INTEGER;
    operand.value = integer();
  }
  return operand;
}

Operand Cursor::operand() {
  if (is("[")) return address();
  return is("{") || is("(") ? list() : scalar();
}

Operand Cursor::address() {
  Operand result;
  expect("[");
  result.kind = Operand::Kind::ADDRESS;
  if (peek().kind == Token::Kind::WORD) {
    result.name = word();
    if (accept("+") || is("-")) result.value = integer();
  } else {
    result.value = integer();
  }
  if (accept(",")) {
    result.kind = Operand::Kind::TEXEL;
    result.elements = is("{") ? list().elements : std::vector<Operand>{scalar()};
  }
  expect("]");
  return result;
}

Operand Cursor::list() {
  Operand result;
  const bool vector = take().text == "{";
  result.kind = vector ? Operand::Kind::VECTOR : Operand::Kind::LIST;
  while (!accept(vector ? "}" : ")")) {
    result.elements.push_back(scalar());
    accept(",");
  }
  if (vector && accept("|")) result.second_name = word();
  return result;
}

Operand Cursor::scalar() {
  Operand result;
  if (peek().kind == Token::Kind::NUMBER) {
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

}  // namespace software_gpu::ptx
