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

/// A part of a form: one of some alternatives, of one modifier or several.
struct Part {
  std::vector<Words> alternatives;
  bool is_optional = false, is_type = false;
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
        for (const std::string_view each : split(words[i], '|'))
          part.alternatives.push_back(split(each, '.'));
        part.is_type = type_from_name(part.alternatives.front().front()) != Type::NONE;
        form.push_back(std::move(part));
      }
      for (const std::string_view opcode : split(words.front(), '|')) result.emplace(opcode, form);
    }
    return result;
  }();
  return table;
}

/// Take one of the part's alternatives out of `left`, if it is there: of types only the first.
bool take(const Part& part, Words* left) {
  const auto is_type = [](std::string_view name) { return type_from_name(name) != Type::NONE; };
  const auto first_type = std::find_if(left->begin(), left->end(), is_type);
  const auto place = [&](std::string_view name) {
    if (!part.is_type) return std::find(left->begin(), left->end(), name);
    return first_type != left->end() && *first_type == name ? first_type : left->end();
  };
  for (const Words& alternative : part.alternatives) {
    const bool is_there =
        std::all_of(alternative.begin(), alternative.end(),
                    [&](std::string_view name) { return place(name) != left->end(); });
    if (!is_there) continue;
    for (const std::string_view name : alternative) left->erase(place(name));
    return true;
  }
  return false;
}

/// Types count in their order, other modifiers in any.
bool fits(const Form& form, const ptx::Instruction& instruction) {
  Words left(instruction.opcode.begin() + 1, instruction.opcode.end());
  for (const Part& part : form)
    if (!take(part, &left) && !part.is_optional) return false;
  return left.empty();
}

}  // namespace

bool is_listed(const ptx::Instruction& instruction) {
  const auto [begin, end] = forms().equal_range(instruction.opcode.front());
  return std::any_of(begin, end,
                     [&](const auto& entry) { return fits(entry.second, instruction); });
}

}  // namespace software_gpu
