// SPDX-License-Identifier: Apache-2.0
// What memory consists of: parts of nameless files of the kernel's (memfd), so that the same bytes
// can be mapped at several addresses and in several processes. Pages come when they are touched.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace software_gpu {

constexpr uint64_t PAGE_BYTES = 4096;

/// A file that other processes can get hold of: by descriptor, or in /proc/PID/fd by number and id.
class SharedFile {
 public:
  enum class Use : char { DEVICE = 'd', ALLOCATION = 'a', POOL = 'p', EVENT = 'e' };
  /// Null where the kernel does not give one that long (RLIMIT_FSIZE).
  static std::shared_ptr<const SharedFile> create(Use use, int ordinal, uint64_t size_bytes);
  /// The file behind a descriptor, which is duplicated; null where it is none of `use`.
  static std::shared_ptr<const SharedFile> open(int fd, Use use);
  /// The file that another process holds as `fd`; null where it is gone, or another one.
  static std::shared_ptr<const SharedFile> open(int pid, int fd, Use use, uint64_t id);
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;
  ~SharedFile();
  int fd() const { return fd_; }
  int ordinal() const { return ordinal_; }  // of the device
  uint64_t id() const { return id_; }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  SharedFile(int fd, int ordinal, uint64_t id, uint64_t size_bytes)
      : fd_(fd), ordinal_(ordinal), id_(id), size_bytes_(size_bytes) {}
  static std::shared_ptr<const SharedFile> adopt(int fd, Use use);
  const int fd_, ordinal_;
  const uint64_t id_, size_bytes_;
};

/// Some bytes of a file, or, where there is no file that long, of shared memory without one.
class Backing {
 public:
  /// OWN: its bytes of the file go with it. SHARED: other processes may use them still.
  enum class Origin { OWN, SHARED };
  Backing(std::shared_ptr<const SharedFile> file, uint64_t offset_bytes, uint64_t size_bytes,
          Origin origin)
      : file_(std::move(file)),
        offset_bytes_(offset_bytes),
        size_bytes_(size_bytes),
        origin_(origin) {}
  /// Null: the process has no more address space.
  static std::shared_ptr<const Backing> without_file(uint64_t size_bytes);
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;
  ~Backing();
  /// The address of a new mapping of some bytes: in place of what is at `at`, or, for null,
  /// anywhere. Null: refused.
  void* map(void* at, uint64_t first_byte, uint64_t n_bytes) const;
  const SharedFile* file() const { return file_.get(); }  // null: other processes cannot have it
  uint64_t offset_bytes() const { return offset_bytes_; }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  const std::shared_ptr<const SharedFile> file_;
  const uint64_t offset_bytes_, size_bytes_;
  const Origin origin_;
  void* home_ = nullptr;  // the mapping that others are made of, without a file
};

/// Hands out parts of files. No byte of a file is given twice: what was freed stays a hole.
class FileMemory {
 public:
  FileMemory(SharedFile::Use use, int ordinal) : use_(use), ordinal_(ordinal) {}
  /// All from this file.
  explicit FileMemory(std::shared_ptr<const SharedFile> file)
      : use_(SharedFile::Use::POOL), ordinal_(file->ordinal()), file_(std::move(file)) {}
  std::shared_ptr<const Backing> take(uint64_t size_bytes);

 private:
  std::mutex mutex_;
  const SharedFile::Use use_;
  const int ordinal_;
  std::shared_ptr<const SharedFile> file_;
  uint64_t next_bytes_ = 0;
};

/// The longest file that this process may make.
uint64_t max_file_bytes();

}  // namespace software_gpu
