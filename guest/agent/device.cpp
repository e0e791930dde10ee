// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "kvgpu/control.h"
#include "log.h"

namespace kvgpu::agent {

namespace {

namespace fs = std::filesystem;

constexpr char PCI_DEVICES[] = "/sys/bus/pci/devices";
constexpr char PORTS[] = "/sys/class/virtio-ports";
constexpr char IVSHMEM_VENDOR[] = "0x1af4";
constexpr char IVSHMEM_DEVICE[] = "0x1110";
constexpr uint64_t SUPERBLOCK_MAGIC = 0x5550475651564b00;  // PROTOCOL.md §2.1
constexpr size_t PAGE_BYTES = 4096;

struct Superblock {
  uint64_t magic;
  uint16_t major, minor;
  uint32_t features;
  uint64_t region_bytes;
};

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// A BAR can be mapped only while the device decodes memory, which nobody but a driver switches on.
void enable_device(const fs::path& device) {
  if (first_line(device / "enable") != "0") return;
  std::ofstream file(device / "enable");
  file << "1" << std::flush;
  if (!file) log("cannot enable %s", device.c_str());
}

std::optional<Superblock> read_superblock(int fd) {
  // Mapped, not read: sysfs has no read() for a memory BAR.
  void* page = mmap(nullptr, PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) return std::nullopt;
  Superblock superblock;
  std::memcpy(&superblock, page, sizeof superblock);
  munmap(page, PAGE_BYTES);
  return superblock;
}

std::optional<Region> open_bar(const std::string& path) {
  Region region{UniqueFd(open(path.c_str(), O_RDWR | O_CLOEXEC)), 0, path};
  struct stat status{};
  if (!region.fd || fstat(region.fd.get(), &status) != 0) {
    log("cannot open %s: %s", path.c_str(), std::strerror(errno));
    return std::nullopt;
  }
  if (status.st_size < static_cast<off_t>(PAGE_BYTES)) return std::nullopt;
  const auto superblock = read_superblock(region.fd.get());
  if (!superblock || superblock->magic != SUPERBLOCK_MAGIC) return std::nullopt;
  region.size_bytes = static_cast<uint64_t>(status.st_size);
  if (superblock->region_bytes > region.size_bytes) {
    log("%s: the host says %llu bytes, the device has %llu", path.c_str(),
        static_cast<unsigned long long>(superblock->region_bytes),
        static_cast<unsigned long long>(region.size_bytes));
    return std::nullopt;
  }
  return region;
}

}  // namespace

std::optional<Region> open_region(const std::string& path) {
  if (!path.empty()) return open_bar(path);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(PCI_DEVICES, error)) {
    const fs::path& device = entry.path();
    if (first_line(device / "vendor") != IVSHMEM_VENDOR) continue;
    if (first_line(device / "device") != IVSHMEM_DEVICE) continue;
    enable_device(device);
    if (auto region = open_bar((device / "resource2").string())) return region;
  }
  return std::nullopt;
}

std::string find_port() {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(PORTS, error)) {
    if (first_line(entry.path() / "name") == control::VIRTIO_PORT) {
      return "/dev/" + entry.path().filename().string();
    }
  }
  return {};
}

}  // namespace kvgpu::agent
