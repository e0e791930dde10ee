// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <array>
#include <cstdio>

namespace kvgpu::smi {

namespace {

// With its unit, where there is a value.
template <typename T>
std::string measured(const std::optional<T>& value, uint64_t unit, const char* name) {
  return value ? std::to_string(*value / unit) + name : "-";
}

template <typename T>
std::string number(const std::optional<T>& value, uint64_t unit, const char* absent) {
  return value ? std::to_string(*value / unit) : absent;
}

// A process chose its name itself: no control characters reach the terminal.
std::string plain(const std::string& text) {
  std::string shown;
  for (const char c : text) shown += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return shown;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (byte < 0x20 || byte >= 0x7f) {
      std::array<char, 8> escape{};
      (void)std::snprintf(escape.data(), escape.size(), "\\u%04x", byte);
      out += escape.data();
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string json_of(const Device& device) {
  std::string processes;
  for (const Process& process : device.processes) {
    processes += (processes.empty() ? "" : ", ") + std::string("{\"pid\": ") +
                 std::to_string(process.pid) + ", \"name\": " + quoted(process.name) +
                 ", \"used_bytes\": " + number(process.used_bytes, 1, "null") + "}";
  }
  return "{\"index\": " + std::to_string(device.index) + ", \"name\": " + quoted(device.name) +
         ", \"uuid\": " + quoted(device.uuid) + ", \"pci_bus_id\": " + quoted(device.pci_bus_id) +
         ", \"total_bytes\": " + number(device.total_bytes, 1, "null") +
         ", \"used_bytes\": " + number(device.used_bytes, 1, "null") +
         ", \"gpu_percent\": " + number(device.gpu_percent, 1, "null") +
         ", \"temperature_c\": " + number(device.temperature_c, 1, "null") +
         ", \"power_mw\": " + number(device.power_mw, 1, "null") + ", \"processes\": [" +
         processes + "]}";
}

}  // namespace

void print_names(const std::vector<Device>& devices) {
  for (const Device& device : devices) {
    std::printf("GPU %u: %s (UUID: %s)\n", device.index, device.name.c_str(), device.uuid.c_str());
  }
}

void print_table(const std::vector<Device>& devices) {
  constexpr uint64_t MIB = 1 << 20;
  std::printf("%-4s %-28s %-17s %17s %6s %6s %7s\n", "GPU", "Name", "PCI bus id", "Memory used/MiB",
              "Load", "Temp", "Power");
  for (const Device& device : devices) {
    const std::string memory =
        number(device.used_bytes, MIB, "-") + " / " + number(device.total_bytes, MIB, "-");
    std::printf("%-4u %-28s %-17s %17s %6s %6s %7s\n", device.index, device.name.c_str(),
                device.pci_bus_id.c_str(), memory.c_str(),
                measured(device.gpu_percent, 1, "%").c_str(),
                measured(device.temperature_c, 1, "C").c_str(),
                measured(device.power_mw, 1000, "W").c_str());
  }
  std::printf("\n%-4s %8s %12s  %s\n", "GPU", "PID", "Memory/MiB", "Process");
  bool any = false;
  for (const Device& device : devices) {
    for (const Process& process : device.processes) {
      any = true;
      std::printf("%-4u %8u %12s  %s\n", device.index, process.pid,
                  number(process.used_bytes, MIB, "-").c_str(), plain(process.name).c_str());
    }
  }
  if (!any) std::printf("(none)\n");
}

void print_json(const std::vector<Device>& devices) {
  std::string text;
  for (const Device& device : devices) text += (text.empty() ? "" : ", ") + json_of(device);
  std::printf("{\"devices\": [%s]}\n", text.c_str());
}

}  // namespace kvgpu::smi
