// SPDX-License-Identifier: Apache-2.0
// What has been asked of the driver and set about a function, and still holds. Programs do both
// again and again, the same each time, and whoever asks the worker waits for all the launches
// before it. Likewise launches of which only the driver can say whether they are valid.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace kvgpu::guest {

class FunctionMemo {
 public:
  // Opcode, context, its n_changes, arguments.
  using Question = std::array<uint64_t, 6>;
  struct Setting {  // by which call
    uint64_t opcode, context, n_changes;
    int value;
    bool operator==(const Setting&) const = default;
  };

  std::optional<uint64_t> answer_to(const Question& question) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [asked, answer] : answers_) {
      if (asked == question) return answer;
    }
    return std::nullopt;
  }
  // Before the driver is asked.
  uint64_t version() const {
    const std::lock_guard lock(mutex_);
    return version_;
  }
  void keep(const Question& question, uint64_t answer, uint64_t version) {
    const std::lock_guard lock(mutex_);
    if (version != version_) return;  // something was set meanwhile
    if (answers_.size() == MOST_ANSWERS) answers_.clear();
    answers_.emplace_back(question, answer);
  }

  // `launch`: all that makes the driver accept or refuse it, but what is set.
  bool has_accepted(std::string_view launch) const {
    const std::lock_guard lock(mutex_);
    return accepted_.find(launch) != accepted_.end();
  }
  void keep_accepted(std::string_view launch, uint64_t version) {
    const std::lock_guard lock(mutex_);
    if (version != version_) return;
    if (accepted_.size() == MOST_LAUNCHES) accepted_.clear();
    accepted_.emplace(launch);
  }

  bool is_set(int attribute, const Setting& setting) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [set, to] : settings_) {
      if (set == attribute) return to == setting;
    }
    return false;
  }
  // Has the driver ever been told just that, and accepted it?
  bool was_set(int attribute, const Setting& setting) const {
    const std::lock_guard lock(mutex_);
    return std::ranges::find(earlier_, std::pair{attribute, setting}) != earlier_.end();
  }
  // After the driver has been told; without a setting: of what is not remembered.
  void changed(int attribute, const std::optional<Setting>& setting) {
    const std::lock_guard lock(mutex_);
    ++version_;
    answers_.clear();
    accepted_.clear();
    std::erase_if(settings_, [&](const auto& each) { return each.first == attribute; });
    if (!setting) return;
    settings_.emplace_back(attribute, *setting);
    if (std::ranges::find(earlier_, settings_.back()) != earlier_.end()) return;
    if (earlier_.size() == MOST_EARLIER) earlier_.clear();
    earlier_.push_back(settings_.back());
  }

 private:
  static constexpr size_t MOST_ANSWERS = 64, MOST_LAUNCHES = 1024, MOST_EARLIER = 64;
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  mutable std::mutex mutex_;
  uint64_t version_ = 0;
  std::vector<std::pair<Question, uint64_t>> answers_;
  std::vector<std::pair<int, Setting>> settings_, earlier_;
  std::unordered_set<std::string, Hash, std::equal_to<>> accepted_;
};

}  // namespace kvgpu::guest
