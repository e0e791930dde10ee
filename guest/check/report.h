// SPDX-License-Identifier: Apache-2.0
// What kvgpu-check has found: one line per check, or one JSON object.
#pragma once

#include <string>
#include <vector>

namespace kvgpu::check {

enum class State { OK, FAILED, SKIPPED };

struct Result {
  State state;
  std::string found;   // one line
  std::string advice;  // what to do; empty where all is as it should be
};

inline Result ok(std::string found, std::string advice = {}) {
  return {State::OK, std::move(found), std::move(advice)};
}
inline Result failed(std::string found, std::string advice) {
  return {State::FAILED, std::move(found), std::move(advice)};
}
inline Result skipped(std::string why) { return {State::SKIPPED, std::move(why), {}}; }

class Report {
 public:
  explicit Report(bool json) : json_(json) {}

  // Prints the line at once: a check that hangs is seen to.
  void add(const std::string& check, const Result& result);
  // Prints what is left; the exit status: 0 if no check has failed.
  int end();

 private:
  const bool json_;
  std::string objects_;
  bool any_failed_ = false;
};

}  // namespace kvgpu::check
