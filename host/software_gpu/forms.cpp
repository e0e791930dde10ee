// SPDX-License-Identifier: Apache-2.0
#include "forms.h"

#include <algorithm>
#include <unordered_map>

namespace software_gpu {
namespace {

constexpr std::string_view FORMS[] = {
#include "ptx_forms.inc"
};

using Words = std::vector<std::string_view>;

Words split(std::string_view text, char separator) {
  Words words;
  for (size_t end; (end = text.find(separator)) != text.npos; text.remove_prefix(end + 1))
    words.push_back(text.substr(0, end));
  words.push_back(text);
  return words;
}

/// A part of a form: one of `names`.
struct Part {
  Words names;
  bool is_optional = false, is_type = false;
  bool has(std::string_view name) const {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
};
using Form = std::vector<Part>;  // without the opcode

const std::unordered_multimap<std::string_view, Form>& forms() {
  static const auto table = [] {
    std::unordered_multimap<std::string_view, Form> result;
    for (const std::string_view text : FORMS) {
      Form form;
      Words words = split(text, ' ');
      for (size_t i = 1; i < words.size(); ++i) {
        Part part;
        part.is_optional = words[i].ends_with('?') || words[i].ends_with('~');
        if (part.is_optional) words[i].remove_suffix(1);
        part.names = split(words[i], '|');
        part.is_type = type_from_name(part.names.front()) != Type::NONE;
        form.push_back(std::move(part));
      }
      for (const std::string_view opcode : split(words.front(), '|')) result.emplace(opcode, form);
    }
    return result;
  }();
  return table;
}

/// Types count in their order, other modifiers in any.
bool fits(const Form& form, const ptx::Instruction& instruction) {
  Words left(instruction.opcode.begin() + 1, instruction.opcode.end());
  for (const Part& part : form) {
    const auto found = std::find_if(left.begin(), left.end(), [&](std::string_view name) {
      return part.is_type ? type_from_name(name) != Type::NONE : part.has(name);
    });
    if (found != left.end() && part.has(*found))
      left.erase(found);
    else if (!part.is_optional)
      return false;
  }
  return left.empty();
}

}  // namespace

bool is_listed(const ptx::Instruction& instruction) {
  const auto [begin, end] = forms().equal_range(instruction.opcode.front());
  return std::any_of(begin, end,
                     [&](const auto& entry) { return fits(entry.second, instruction); });
}

}  // namespace software_gpu
