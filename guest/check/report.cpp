// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <cstdio>

namespace kvgpu::check {

namespace {

const char* to_string(State state) {
  switch (state) {
    case State::OK:
      return "ok";
    case State::FAILED:
      return "FAILED";
    case State::SKIPPED:
      return "skipped";
  }
  return "?";
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < ' ') {
      char escape[8];
      (void)std::snprintf(escape, sizeof escape, "\\u%04x", c);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

void Report::add(const std::string& check, const Result& result) {
  any_failed_ |= result.state == State::FAILED;
  if (json_) {
    objects_ += objects_.empty() ? "" : ", ";
    objects_ += "{\"check\": " + quoted(check) + ", \"state\": " + quoted(to_string(result.state)) +
                ", \"found\": " + quoted(result.found) + ", \"advice\": " + quoted(result.advice) +
                "}";
    return;
  }
  std::printf("%-8s %-8s %s\n", to_string(result.state), check.c_str(), result.found.c_str());
  if (!result.advice.empty()) std::printf("%-17s -> %s\n", "", result.advice.c_str());
  (void)std::fflush(stdout);
}

int Report::end() {
  if (json_) {
    std::printf("{\"ok\": %s, \"checks\": [%s]}\n", any_failed_ ? "false" : "true",
                objects_.c_str());
  }
  return any_failed_ ? 1 : 0;
}

}  // namespace kvgpu::check
