// SPDX-License-Identifier: Apache-2.0
#include "settings_file.h"

#include <algorithm>

namespace kvgpu::guest {

namespace {

constexpr std::string_view BLANKS = " \t\r";

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(BLANKS);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(BLANKS) - begin + 1);
}

bool is_key_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

// A string from its first quote on; what follows the last one goes into `rest`.
const char* read_string(std::string_view text, std::string* value, std::string_view* rest) {
  const char quote = text.front();
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == quote) {
      *rest = text.substr(i + 1);
      return nullptr;
    }
    if (quote == '"' && text[i] == '\\') {
      ++i;
      if (i == text.size() || (text[i] != '\\' && text[i] != '"')) {
        return "only \\\\ and \\\" may follow a backslash";
      }
    }
    *value += text[i];
  }
  return "the string has no end";
}

const char* read_value(std::string_view text, SettingsLine* line) {
  std::string_view rest;
  line->is_string = !text.empty() && (text.front() == '"' || text.front() == '\'');
  if (line->is_string) {
    if (const char* bad = read_string(text, &line->value, &rest)) return bad;
  } else {
    const size_t end = std::min(text.find('#'), text.size());
    line->value = trim(text.substr(0, end));
    if (line->value.empty()) return "no value";
    if (line->value.find_first_not_of("0123456789") != line->value.npos) {
      return "a value is a whole number, or a string in quotes";
    }
  }
  rest = trim(rest);
  return rest.empty() || rest.front() == '#' ? nullptr : "something follows the value";
}

const char* read_line(std::string_view text, SettingsLine* line) {
  if (text.front() == '[') return "tables are not known here, only lines of key = value";
  const size_t equals = text.find('=');
  if (equals == text.npos) return "no `key = value`";
  line->key = trim(text.substr(0, equals));
  if (line->key.empty() || !std::ranges::all_of(line->key, is_key_character)) {
    return "a key has letters, digits and _ only";
  }
  return read_value(trim(text.substr(equals + 1)), line);
}

}  // namespace

std::vector<SettingsLine> parse_settings(std::string_view text, std::string* error) {
  std::vector<SettingsLine> lines;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const std::string_view content = trim(text.substr(0, end));
    text = end == text.npos ? std::string_view() : text.substr(end + 1);
    if (content.empty() || content.front() == '#') continue;
    SettingsLine line{number, {}, {}, false};
    const char* bad = read_line(content, &line);
    const auto same = [&](const SettingsLine& other) { return other.key == line.key; };
    if (bad == nullptr && std::ranges::any_of(lines, same)) bad = "this key stands there already";
    if (bad != nullptr) {
      *error = std::to_string(number) + ": " + bad;
      break;
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace kvgpu::guest
