// SPDX-License-Identifier: Apache-2.0
// Tokens of PTX. A word keeps its dots ("ld.global.u32", "%tid.x", ".reg").
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace software_gpu::ptx {

struct Token {
  enum class Kind : uint8_t { WORD, NUMBER, STRING, PUNCTUATION, END };
  Kind kind;
  uint32_t line;
  std::string_view text;
};

/// Throws Error for an unterminated comment or string.
std::vector<Token> tokenize(std::string_view text);

}  // namespace software_gpu::ptx
