// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "ptx_syntax.h"

namespace software_gpu {

/// The dotted parts after an operation's name. Every one must be asked for, or decoding fails.
class Modifiers {
 public:
  explicit Modifiers(const ptx::Instruction& source);
  bool take(std::string_view name);
  /// Index of the one of `names` that is present, or `otherwise`.
  int take_one(std::initializer_list<std::string_view> names, int otherwise = -1);
  Type take_type();  // the next type, left to right; throws when there is none
  uint8_t take_vector();
  void ignore(std::initializer_list<std::string_view> names);
  void require_all_taken() const;
  [[noreturn]] void fail(const std::string& why) const;

 private:
  const ptx::Instruction& source_;
  std::vector<std::string_view> left_;
};

}  // namespace software_gpu
