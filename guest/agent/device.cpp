// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "kvgpu/barrier.h"
#include "kvgpu/control.h"
#include "kvgpu/layout.h"
#include "log.h"
#include "memory_type.h"

namespace kvgpu::agent {

namespace {

namespace fs = std::filesystem;

constexpr char PORTS[] = "/sys/class/virtio-ports";
constexpr char IVSHMEM_VENDOR[] = "0x1af4";
constexpr char IVSHMEM_DEVICE[] = "0x1110";

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

std::optional<Region> open_bar(const std::string& path, std::string* problem) {
  Region region{UniqueFd(open(path.c_str(), O_RDWR | O_CLOEXEC)), UniqueFd(), 0, path};
  struct stat status{};
  if (!region.fd || fstat(region.fd.get(), &status) != 0) {
    *problem = "cannot open the shared region " + path + ": " + std::strerror(errno) +
               "; kvgpu-agentd must run as root, and Secure Boot's lockdown must be off";
    return std::nullopt;
  }
  region.size_bytes = static_cast<uint64_t>(status.st_size);
  if (region.size_bytes < PAGE_BYTES) {
    *problem = "the shared region " + path + " is empty: stop and start this VM";
    return std::nullopt;
  }
  const auto superblock = read_superblock(region.fd.get());
  if (!superblock) {
    *problem = "cannot map the shared region " + path + ": " + std::strerror(errno) +
               "; kvgpu-agentd must run as root, and Secure Boot's lockdown must be off";
    return std::nullopt;
  }
  if (superblock->magic != SUPERBLOCK_MAGIC) {
    *problem = path +
               " is not kvgpu's region: is kvgpud running on the host? "
               "If the device is another program's, give this VM one by `kvgpu vm xml`";
    return std::nullopt;
  }
  if (superblock->region_bytes > region.size_bytes) {
    *problem = path + ": the host says " + std::to_string(superblock->region_bytes) +
               " bytes, the device has " + std::to_string(region.size_bytes) +
               ": make the VM's <shmem> anew with `kvgpu vm xml`";
    return std::nullopt;
  }
  return region;
}

// Under KVM the host may override what the guest asks for: measured, by the superblock's page.
bool is_write_back(const Region& region) {
  const char* const text = std::getenv("KVGPU_MEMORY_TYPE");
  if (const auto told = memory::parse(text == nullptr ? "" : text)) {
    log("%s: %s (told)", region.path.c_str(), std::string(memory::to_string(*told)).c_str());
    return *told == memory::Type::WRITE_BACK;
  }
  void* const page = mmap(nullptr, PAGE_BYTES, PROT_READ, MAP_SHARED, region.fd.get(), 0);
  if (page == MAP_FAILED) return true;
  const double read_mb_per_s = memory::measure_reads(static_cast<const std::byte*>(page));
  munmap(page, PAGE_BYTES);
  const bool cached = memory::is_cached(read_mb_per_s);
  log("%s: %s, reads %.0f MB/s", region.path.c_str(), cached ? "write-back" : "not cached",
      read_mb_per_s);
  return cached;
}

std::vector<fs::path> ivshmem_devices(const std::string& folder) {
  std::vector<fs::path> devices;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (first_line(entry.path() / "vendor") == IVSHMEM_VENDOR &&
        first_line(entry.path() / "device") == IVSHMEM_DEVICE) {
      devices.push_back(entry.path());
    }
  }
  return devices;
}

struct AddressRange {
  uint64_t begin, last;
};

// Its BARs and its ROM, as the kernel has them: a line each, zeroes where there is none.
std::vector<AddressRange> address_ranges(const fs::path& device) {
  std::vector<AddressRange> ranges;
  std::ifstream file(device / "resource");
  std::string begin, last, flags;
  while (file >> begin >> last >> flags) {
    ranges.push_back(
        {std::strtoull(begin.c_str(), nullptr, 16), std::strtoull(last.c_str(), nullptr, 16)});
  }
  return ranges;
}

// A client maps all of the page that BAR 0 lies in.
bool has_page_of_its_own(const fs::path& device) {
  const auto ours = address_ranges(device);
  if (ours.empty() || ours[0].begin == 0 || ours[0].begin % PAGE_BYTES != 0) return false;
  const uint64_t page = ours[0].begin;
  size_t n_there = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(device.parent_path(), error)) {
    n_there += static_cast<size_t>(
        std::ranges::count_if(address_ranges(entry.path()), [page](const AddressRange& range) {
          return range.begin < page + PAGE_BYTES && range.last >= page;
        }));
  }
  return n_there == 1;
}

UniqueFd open_registers(const fs::path& device) {
  if (!has_page_of_its_own(device)) return UniqueFd();
  return UniqueFd(open((device / "resource0").c_str(), O_RDWR | O_CLOEXEC));
}

// The same BAR write-combining, which is better than uncached; the library measures it again.
Region combining(const fs::path& device, Region uncached) {
  std::string problem;
  auto region = open_bar((device / "resource2_wc").string(), &problem);
  return region ? std::move(*region) : std::move(uncached);
}

}  // namespace

std::optional<Region> open_region(const std::string& path, const std::string& devices,
                                  std::string* problem) {
  if (!path.empty()) return open_bar(path, problem);
  *problem = "this VM has no kvgpu device (PCI 1af4:1110): add one with `kvgpu vm xml` on the host";
  for (const fs::path& device : ivshmem_devices(devices)) {
    enable_device(device);
    auto region = open_bar((device / "resource2").string(), problem);
    if (region && !is_write_back(*region)) region = combining(device, std::move(*region));
    if (region) {
      region->registers = open_registers(device);
      return region;
    }
  }
  return std::nullopt;
}

bool is_same_file(int fd, const std::string& path) {
  struct stat ours{}, there{};
  return fstat(fd, &ours) == 0 && stat(path.c_str(), &there) == 0 && ours.st_dev == there.st_dev &&
         ours.st_ino == there.st_ino;
}

bool has_ivshmem_device(const std::string& devices) { return !ivshmem_devices(devices).empty(); }

std::optional<WorkerState> read_worker_state(const Region& region, uint64_t block_offset) {
  if (block_offset > region.size_bytes || region.size_bytes - block_offset < PAGE_BYTES) {
    return std::nullopt;
  }
  void* const mapped = mmap(nullptr, PAGE_BYTES, PROT_READ, MAP_SHARED, region.fd.get(),
                            static_cast<off_t>(block_offset + HOST_PAGE_OFF));
  if (mapped == MAP_FAILED) return std::nullopt;
  auto* const page = static_cast<HostPage*>(mapped);
  // acquire: pairs with the worker's release in Control::beat() and at its end
  const WorkerState state{load_acquire(page->beat), load_acquire(page->ended) != 0};
  munmap(mapped, PAGE_BYTES);
  return state;
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
