// SPDX-License-Identifier: Apache-2.0
#include "modifiers.h"

#include <algorithm>

namespace software_gpu {

Modifiers::Modifiers(const ptx::Instruction& source)
    : source_(source), left_(source.opcode.begin() + 1, source.opcode.end()) {}

bool Modifiers::take(std::string_view name) {
  const auto found = std::find(left_.begin(), left_.end(), name);
  if (found == left_.end()) return false;
  left_.erase(found);
  return true;
}

int Modifiers::take_one(std::initializer_list<std::string_view> names, int otherwise) {
  int index = 0;
  for (const std::string_view name : names) {
    if (take(name)) return index;
    ++index;
  }
  return otherwise;
}

Type Modifiers::take_type() {
  for (auto it = left_.begin(); it != left_.end(); ++it) {
    if (const Type type = type_from_name(*it); type != Type::NONE) {
      left_.erase(it);
      return type;
    }
  }
  fail("no type");
}

uint8_t Modifiers::take_vector() { return take("v2") ? 2 : take("v4") ? 4 : 1; }

void Modifiers::ignore(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) take(name);
}

void Modifiers::require_all_taken() const {
  if (!left_.empty()) fail("modifier ." + std::string(left_.front()) + " is not supported");
}

void Modifiers::fail(const std::string& why) const {
  throw ptx::Error(source_.line, "instruction '" + std::string(source_.opcode_text) + "': " + why);
}

}  // namespace software_gpu
