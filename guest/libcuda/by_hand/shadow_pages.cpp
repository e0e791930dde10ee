// SPDX-License-Identifier: Apache-2.0
#include "shadow_pages.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>

namespace kvgpu::guest {

namespace {

constexpr uint64_t MIN_BLOCK_BYTES = 64 * KIB;
constexpr size_t MAX_BLOCKS = 4096;  // of an allocation; each may be a mapping of its own
constexpr uint64_t MAX_AHEAD_BYTES = 8 * MIB;
constexpr uint64_t DROP_BYTES = 2 * MIB;  // less is not worth the faults that bring it back

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// One file for all, so that a program with much managed memory does not run out of descriptors. Its
// offsets are never used again; what is punched out takes no memory.
class BackingFile {
 public:
  static BackingFile& get() {
    static auto& file = *new BackingFile;
    return file;
  }
  int fd() const { return fd_; }
  bool extend(uint64_t bytes, uint64_t* off) {
    const std::lock_guard lock(mutex_);
    if (fd_ < 0) fd_ = static_cast<int>(syscall(SYS_memfd_create, "kvgpu-managed", MFD_CLOEXEC));
    if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(end_ + bytes)) != 0) return false;
    *off = std::exchange(end_, end_ + bytes);
    return true;
  }

 private:
  std::mutex mutex_;
  int fd_ = -1;
  uint64_t end_ = 0;
};

uint64_t block_bytes_for(uint64_t bytes) {
  uint64_t block_bytes = MIN_BLOCK_BYTES;
  while (bytes / block_bytes >= MAX_BLOCKS) block_bytes *= 2;
  return block_bytes;
}

int protection(PageState state) {
  if (state == PageState::ON_GPU) return PROT_NONE;
  return state == PageState::READ ? PROT_READ : PROT_READ | PROT_WRITE;
}

}  // namespace

std::optional<ShadowPages> ShadowPages::map(uint64_t begin, uint64_t bytes, PageState state) {
  BackingFile& file = BackingFile::get();
  uint64_t off = 0;
  if (!file.extend(bytes, &off)) return std::nullopt;
  const auto map_at = [&](void* address, int rights, int flags) {
    void* const got =
        mmap(address, bytes, rights, MAP_SHARED | flags, file.fd(), static_cast<off_t>(off));
    // A forked child has no CUDA: it must not write what the parent reads.
    if (got != MAP_FAILED) (void)madvise(got, bytes, MADV_DONTFORK);
    return got;
  };
  void* const alias = map_at(nullptr, PROT_READ | PROT_WRITE, 0);
  if (alias == MAP_FAILED) return std::nullopt;
  if (map_at(pointer(begin), protection(state), MAP_FIXED) == MAP_FAILED) {
    (void)munmap(alias, bytes);
    return std::nullopt;
  }
  return ShadowPages(begin, bytes, off, static_cast<std::byte*>(alias), state);
}

ShadowPages::ShadowPages(uint64_t begin, uint64_t bytes, uint64_t file_off, std::byte* alias,
                         PageState state)
    : begin_(begin),
      bytes_(bytes),
      file_off_(file_off),
      block_bytes_(block_bytes_for(bytes)),
      alias_(alias),
      states_((bytes + block_bytes_ - 1) / block_bytes_, state) {}

ShadowPages::ShadowPages(ShadowPages&& other) noexcept
    : begin_(other.begin_),
      bytes_(other.bytes_),
      file_off_(other.file_off_),
      block_bytes_(other.block_bytes_),
      alias_(std::exchange(other.alias_, nullptr)),
      states_(std::move(other.states_)) {}

ShadowPages::~ShadowPages() {
  if (alias_ == nullptr) return;
  const void* const reserved = mmap(pointer(begin_), bytes_, PROT_NONE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (reserved == MAP_FAILED) return;  // what is still mapped keeps its file
  (void)munmap(alias_, bytes_);
  (void)fallocate(BackingFile::get().fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(file_off_), static_cast<off_t>(bytes_));
}

uint64_t ShadowPages::address_of(size_t block) const {
  return begin_ + std::min(bytes_, block * block_bytes_);
}

BlockRun ShadowPages::ahead(size_t block, PageState state, PageState wanted) const {
  size_t n_before = 0;
  while (n_before < block && states_[block - n_before - 1] >= wanted) ++n_before;
  const size_t n_most =
      std::clamp<size_t>(n_before, 1, std::max<uint64_t>(MAX_AHEAD_BYTES / block_bytes_, 1));
  BlockRun run{block, 0};
  while (run.n < n_most && block + run.n < states_.size() && states_[block + run.n] == state) {
    ++run.n;
  }
  return run;
}

void ShadowPages::set(const BlockRun& run, PageState state) {
  const uint64_t from = address_of(run.first);
  (void)mprotect(pointer(from), address_of(run.first + run.n) - from, protection(state));
  std::fill_n(states_.begin() + static_cast<ptrdiff_t>(run.first), run.n, state);
}

void ShadowPages::protect(const BlockRun& run) const {
  const uint64_t from = address_of(run.first);
  (void)mprotect(pointer(from), address_of(run.first + run.n) - from, PROT_NONE);
}

void ShadowPages::drop(const BlockRun& run) const {
  const uint64_t from = address_of(run.first);
  const uint64_t bytes = address_of(run.first + run.n) - from;
  if (bytes >= DROP_BYTES) (void)madvise(data(from), bytes, MADV_REMOVE);
}

ShadowPages::Piece ShadowPages::touched(uint64_t address, uint64_t end) const {
  const int fd = BackingFile::get().fd();
  const auto in_file = [&](uint64_t at) { return static_cast<off_t>(file_off_ + (at - begin_)); };
  if (fd < 0) return {address, end - address};
  const off_t from = lseek(fd, in_file(address), SEEK_DATA);
  if (from < 0 && errno == ENXIO) return {};
  // Without an answer: all of it.
  if (from < 0) return {address, end - address};
  if (from >= in_file(end)) return {};
  const off_t to = std::min(lseek(fd, from, SEEK_HOLE), in_file(end));
  const uint64_t first = begin_ + (static_cast<uint64_t>(from) - file_off_);
  return {first, to < from ? end - first : static_cast<uint64_t>(to - from)};
}

}  // namespace kvgpu::guest
