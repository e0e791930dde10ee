// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "checks.h"

namespace kvgpu::check {

namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// By the names that QEMU gave the virtio-serial ports of this VM.
bool has_port() {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/sys/class/virtio-ports", error)) {
    if (first_line(entry.path() / "name") == control::VIRTIO_PORT) return true;
  }
  return false;
}

bool is_ivshmem(const fs::path& device) {
  return first_line(device / "vendor") == "0x1af4" && first_line(device / "device") == "0x1110";
}

}  // namespace

Result check_device() {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/sys/bus/pci/devices", error)) {
    if (!is_ivshmem(entry.path())) continue;
    const std::string address = entry.path().filename().string();
    const auto bytes = fs::file_size(entry.path() / "resource2", error);
    if (error) {
      return failed("PCI device " + address + " (1af4:1110) has no BAR 2",
                    "it is not kvgpu's: the host's administrator runs `kvgpu check`");
    }
    return ok("PCI device " + address + " (1af4:1110), " + std::to_string(bytes >> 20) + " MiB");
  }
  if (std::getenv(control::SOCKET_ENV) != nullptr) {
    return ok("none: a process of the host (kvgpu run)");
  }
  if (has_port()) {
    return ok(
        "no shared memory device: slow byte-stream form over virtio-serial",
        "for full speed the host's administrator shuts the VM off and adds the <shmem> element "
        "that kvgpu vm xml --from shows");
  }
  return failed(
      "neither PCI device 1af4:1110 nor port " + std::string(control::VIRTIO_PORT) + " in this VM",
      "the host's administrator adds them: kvgpu vm xml shows the <shmem> and <channel> "
      "elements");
}

}  // namespace kvgpu::check
