// SPDX-License-Identifier: Apache-2.0
#include "state.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>

namespace kvgpu::agent {

namespace {

constexpr char KERNEL_BOOT_ID[] = "/proc/sys/kernel/random/boot_id";
constexpr char HEADER[] = "kvgpu-agent-2";

std::string to_hex(const BootId& boot_id) {
  std::string text;
  for (const uint8_t byte : boot_id) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

}  // namespace

bool read_boot_id(const std::string& text, BootId& boot_id) {
  std::string digits = text;
  if (digits.empty()) {
    std::ifstream file(KERNEL_BOOT_ID);
    std::getline(file, digits);
  }
  std::erase(digits, '-');
  const auto is_hex = [](unsigned char c) { return std::isxdigit(c) != 0; };
  if (digits.size() != 2 * boot_id.size() || !std::ranges::all_of(digits, is_hex)) return false;
  for (size_t i = 0; i < boot_id.size(); ++i) {
    boot_id[i] = static_cast<uint8_t>(std::stoul(digits.substr(2 * i, 2), nullptr, 16));
  }
  return true;
}

bool save_sessions(const std::string& path, const BootId& boot_id,
                   const std::vector<SavedSession>& sessions) {
  const std::string temporary = path + ".new";
  {
    std::ofstream file(temporary, std::ios::trunc);
    file << HEADER << ' ' << to_hex(boot_id) << '\n';
    for (const auto& saved : sessions) {
      file << saved.session << ' ' << saved.pid << ' ' << saved.start_ticks << ' '
           << saved.block_offset << '\n';
    }
    file.flush();
    if (!file) return false;
  }
  return std::rename(temporary.c_str(), path.c_str()) == 0;  // whole or not at all
}

std::vector<SavedSession> load_sessions(const std::string& path, const BootId& boot_id) {
  std::ifstream file(path);
  std::string header;
  std::string saved_boot_id;
  if (!(file >> header >> saved_boot_id)) return {};
  if (header != HEADER || saved_boot_id != to_hex(boot_id)) return {};
  std::vector<SavedSession> sessions;
  SavedSession saved;
  while (file >> saved.session >> saved.pid >> saved.start_ticks >> saved.block_offset) {
    sessions.push_back(saved);
  }
  return sessions;
}

}  // namespace kvgpu::agent
