// SPDX-License-Identifier: Apache-2.0
#include "settings.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "log.h"
#include "settings_file.h"

namespace kvgpu::guest {

namespace {

constexpr char SYSTEM_FILE[] = "/etc/kvgpu/client.toml";
constexpr size_t MAX_FILE_BYTES = 64 << 10;

// A key of the file; KVGPU_ and its name in capitals is the variable.
struct Key {
  const char* name;
  uint64_t Settings::* number;
  uint64_t min, max;  // of a number
  std::string Settings::* text;
};
constexpr Key KEYS[] = {
    {"devices", &Settings::devices, 1, 16, nullptr},
    {"memory_mib", &Settings::memory_mib, 1, 16 << 20, nullptr},
    {"compute_percent", &Settings::compute_percent, 1, 100, nullptr},
    {"sync", &Settings::sync, 0, 1, nullptr},
    {"log", nullptr, 0, 0, &Settings::log},
    {"log_file", nullptr, 0, 0, &Settings::log_file},
    {"trace", nullptr, 0, 0, &Settings::trace},
};

struct Loaded {
  Settings settings;
  std::string error;  // the first one

  void complain(const std::string& message) {
    if (error.empty()) error = message;
  }
};

std::string variable(const Key& key) {
  std::string name = std::string("KVGPU_") + key.name;
  for (char& c : name) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return name;
}

// Levenshtein's distance.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

std::string unknown(const std::string& key) {
  const Key& nearest = *std::ranges::min_element(
      KEYS, {}, [&](const Key& known) { return distance(key, known.name); });
  std::string message = "unknown key " + key + "; did you mean " + nearest.name + "? Known are";
  for (const Key& known : KEYS) message += std::string(" ") + known.name;
  return message;
}

// "" or what is wrong with the value.
std::string set(Settings* settings, const Key& key, const std::string& value) {
  if (key.text != nullptr) {
    if (key.text == &Settings::log && !level_of(value)) {
      return "log is one of off, error, warn, info, debug, trace, not " + value;
    }
    settings->*key.text = value;
    return {};
  }
  uint64_t number = 0;
  const char* const end = value.data() + value.size();
  const auto [last, bad] = std::from_chars(value.data(), end, number);
  if (bad != std::errc() || last != end || number < key.min || number > key.max) {
    return std::string(key.name) + " is a whole number from " + std::to_string(key.min) + " to " +
           std::to_string(key.max) + ", not " + value;
  }
  settings->*key.number = number;
  return {};
}

// Nor is there one in a folder that this user may not enter: HOME may be another user's, after su.
bool is_missing(const std::string& path, int error) {
  if (error == ENOENT || error == ENOTDIR) return true;
  return error == EACCES && access(path.substr(0, path.rfind('/')).c_str(), X_OK) != 0;
}

// False: there is no such file. Other failures are complaints.
bool read_file(const std::string& path, std::string* text, Loaded* loaded) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && is_missing(path, errno)) return false;
  text->resize(MAX_FILE_BYTES + 1);
  const ssize_t n = fd < 0 ? -1 : read(fd, text->data(), text->size());
  if (n < 0) loaded->complain(path + ": cannot be read: " + strerror(errno));
  if (fd >= 0) close(fd);
  if (n > static_cast<ssize_t>(MAX_FILE_BYTES)) loaded->complain(path + ": is above 64 KiB");
  text->resize(n < 0 ? 0 : static_cast<size_t>(n));
  return true;
}

void load_file(const std::string& path, Loaded* loaded) {
  std::string text, error;
  if (!read_file(path, &text, loaded)) return;
  for (const SettingsLine& line : parse_settings(text, &error)) {
    const std::string where = path + ":" + std::to_string(line.number) + ": ";
    const auto* const key =
        std::ranges::find_if(KEYS, [&](const Key& known) { return line.key == known.name; });
    if (key == std::end(KEYS)) {
      loaded->complain(where + unknown(line.key));
    } else if (line.is_string != (key->text != nullptr)) {
      loaded->complain(
          where + key->name +
          (line.is_string ? " is a number, without quotes" : " is a string in quotes"));
    } else if (const auto bad = set(&loaded->settings, *key, line.value); !bad.empty()) {
      loaded->complain(where + bad);
    }
  }
  if (!error.empty()) loaded->complain(path + ":" + error);
}

void load_environment(Loaded* loaded) {
  for (const Key& key : KEYS) {
    const std::string name = variable(key);
    const char* const value = secure_getenv(name.c_str());
    if (value == nullptr || *value == '\0') continue;
    const auto bad = set(&loaded->settings, key, value);
    if (!bad.empty()) loaded->complain((name + " in the environment: ").append(bad));
  }
}

std::string user_file() {
  const char* const config = secure_getenv("XDG_CONFIG_HOME");
  if (config != nullptr && *config == '/') return std::string(config) + "/kvgpu/client.toml";
  const char* const home = secure_getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.config/kvgpu/client.toml" : "";
}

Loaded load() {
  Loaded loaded;
  load_file(SYSTEM_FILE, &loaded);
  if (const std::string path = user_file(); !path.empty()) load_file(path, &loaded);
  load_environment(&loaded);
  const std::string& path = loaded.settings.log_file;
  int fd = STDERR_FILENO;
  if (!path.empty()) {
    fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) {
      loaded.complain("log_file " + path + " cannot be written: " + strerror(errno));
      fd = STDERR_FILENO;
    }
  }
  start_log(*level_of(loaded.settings.log), fd);
  return loaded;
}

const Loaded& loaded() {
  static const auto& once = *new Loaded(load());
  return once;
}

}  // namespace

const Settings& settings() { return loaded().settings; }

bool check_settings() {
  if (!loaded().error.empty()) {
    log(Level::ERROR, "%s. Mend it; CUDA is not started", loaded().error.c_str());
    return false;
  }
  if (settings().compute_percent != 0) {
    static const bool told = (log(Level::WARNING, "compute_percent is not enforced yet"), true);
    (void)told;
  }
  return true;
}

}  // namespace kvgpu::guest
