// SPDX-License-Identifier: Apache-2.0
// The part of TOML that client.toml needs: lines of `key = value`, where a value is a whole number
// or a string in quotes, and comments. No tables, no escapes other than \\ and \".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvgpu::guest {

struct SettingsLine {
  int number;
  std::string key;
  std::string value;
  bool is_string;
};

// What `text` says, up to its first error; that goes into `error` with its line: "3: no value".
std::vector<SettingsLine> parse_settings(std::string_view text, std::string* error);

}  // namespace kvgpu::guest
