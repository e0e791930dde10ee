// SPDX-License-Identifier: Apache-2.0
#include "backing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace software_gpu {
namespace {

// More than a device ever gives, and far less than the kernel's limit of a file.
constexpr uint64_t MAX_FILE_BYTES = 1ull << 50;

// What /proc says of a memfd: its name tells everything that an importer needs to know.
constexpr char LINK_FORMAT[] = "/memfd:kvgpu-software-gpu:%c:%d:%" SCNx64;

}  // namespace

uint64_t max_file_bytes() {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return MAX_FILE_BYTES;
  return std::min<uint64_t>(limit.rlim_cur, MAX_FILE_BYTES);
}

std::shared_ptr<const SharedFile> SharedFile::create(Use use, int ordinal, uint64_t size_bytes) {
  uint64_t id = 0;
  char name[64];
  // A length beyond the limit would also raise SIGXFSZ.
  if (size_bytes > max_file_bytes() || getrandom(&id, sizeof id, 0) != sizeof id) return nullptr;
  snprintf(name, sizeof name, "kvgpu-software-gpu:%c:%d:%" PRIx64, static_cast<char>(use), ordinal,
           id);
  const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return nullptr;
  // Sealed: whoever maps it cannot be made to fault by another process that shortens it.
  if (ftruncate(fd, static_cast<off_t>(size_bytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    close(fd);
    return nullptr;
  }
  return std::shared_ptr<const SharedFile>(new SharedFile(fd, ordinal, id, size_bytes));
}

std::shared_ptr<const SharedFile> SharedFile::adopt(int fd, Use use) {
  if (fd < 0) return nullptr;
  char path[64], link[128] = {}, its_use = 0;
  int ordinal = -1;
  uint64_t id = 0;
  struct stat about{};
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const int seals = fcntl(fd, F_GET_SEALS);
  if (readlink(path, link, sizeof link - 1) <= 0 ||
      sscanf(link, LINK_FORMAT, &its_use, &ordinal, &id) != 3 ||
      its_use != static_cast<char>(use) || seals < 0 || !(seals & F_SEAL_SHRINK) ||
      fstat(fd, &about) != 0) {
    close(fd);
    return nullptr;
  }
  return std::shared_ptr<const SharedFile>(
      new SharedFile(fd, ordinal, id, static_cast<uint64_t>(about.st_size)));
}

std::shared_ptr<const SharedFile> SharedFile::open(int fd, Use use) {
  return adopt(fcntl(fd, F_DUPFD_CLOEXEC, 0), use);
}

std::shared_ptr<const SharedFile> SharedFile::open(int pid, int fd, Use use, uint64_t id) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
  auto file = adopt(::open(path, O_RDWR | O_CLOEXEC), use);
  return file && file->id() == id ? file : nullptr;
}

SharedFile::~SharedFile() { close(fd_); }

std::shared_ptr<const Backing> Backing::without_file(uint64_t size_bytes) {
  void* home = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (home == MAP_FAILED) return nullptr;
  auto backing = std::make_shared<Backing>(nullptr, 0, size_bytes, Origin::OWN);
  backing->home_ = home;
  return backing;
}

Backing::~Backing() {
  if (home_)
    munmap(home_, size_bytes_);
  else if (origin_ == Origin::OWN)
    fallocate(file_->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(offset_bytes_), static_cast<off_t>(size_bytes_));
}

void* Backing::map(void* at, uint64_t first_byte, uint64_t n_bytes) const {
  void* mapped;
  if (home_) {  // of nothing to n bytes: a second mapping of the same pages
    void* const from = static_cast<char*>(home_) + first_byte;
    mapped = at ? mremap(from, 0, n_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at)
                : mremap(from, 0, n_bytes, MREMAP_MAYMOVE);
  } else {
    // The system call itself: to ThreadSanitizer libc's function writes every byte, and a kernel
    // may be reading what was mapped here before.
    const long protection = PROT_READ | PROT_WRITE;
    const long flags = MAP_SHARED | MAP_NORESERVE | (at ? MAP_FIXED : 0);
    const long address = syscall(SYS_mmap, at, n_bytes, protection, flags, long{file_->fd()},
                                 offset_bytes_ + first_byte);
    mapped = reinterpret_cast<void*>(address);
  }
  return mapped == MAP_FAILED ? nullptr : mapped;
}

std::shared_ptr<const Backing> FileMemory::take(uint64_t size_bytes) {
  std::lock_guard lock(mutex_);
  if (!file_ || size_bytes > file_->size_bytes() - next_bytes_) {
    if (use_ == SharedFile::Use::POOL) return nullptr;  // importers know one file
    const uint64_t max_bytes = max_file_bytes() & ~uint64_t{4095};
    auto fresh = size_bytes > max_bytes ? nullptr : SharedFile::create(use_, ordinal_, max_bytes);
    if (!fresh) return Backing::without_file(size_bytes);
    file_ = std::move(fresh);
    next_bytes_ = 0;
  }
  auto backing = std::make_shared<Backing>(file_, next_bytes_, size_bytes, Backing::Origin::OWN);
  next_bytes_ += size_bytes;
  return backing;
}

}  // namespace software_gpu
