// SPDX-License-Identifier: Apache-2.0
#include "registrations.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "address_space.h"
#include "kvgpu/layout.h"
#include "log.h"
#include "pinned_heap.h"
#include "session.h"
#include "write_barrier.h"

namespace kvgpu::guest {

namespace {

struct Span {
  uint64_t begin;
  uint64_t bytes;
};
auto& moved = *new std::vector<Span>;  // under registrations_mutex()

struct FileId {
  unsigned major = 0, minor = 0;
  unsigned long inode = 0;
  bool operator==(const FileId&) const = default;
};
FileId region_file;  // set before the first page is moved; a forked child has no descriptor

struct Mapping {
  uint64_t begin, end;
  char rights[5];
  FileId file;
  const char* name;
};

// Visits the mappings of this process that touch the range, in their order.
template <typename Visit>
void each_mapping(uint64_t begin, uint64_t bytes, Visit visit) {
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"),
                                                   &std::fclose);
  char line[4352];
  while (maps != nullptr && std::fgets(line, sizeof line, maps.get()) != nullptr) {
    Mapping m{};
    int name_at = 0;
    if (std::sscanf(line, "%lx-%lx %4s %*x %x:%x %lu %n", &m.begin, &m.end, m.rights, &m.file.major,
                    &m.file.minor, &m.file.inode, &name_at) < 6 ||
        name_at < 0 || static_cast<size_t>(name_at) >= sizeof line) {
      continue;
    }
    m.name = line + name_at;
    if (m.end <= begin) continue;
    if (m.begin >= begin + bytes) return;
    visit(m);
  }
}

bool is_private_memory(const Mapping& m) {
  if (std::strcmp(m.rights, "rw-p") != 0 || m.file != FileId{}) return false;
  return *m.name == '\0' || *m.name == '\n' || std::strncmp(m.name, "[heap]", 6) == 0 ||
         std::strncmp(m.name, "[anon:", 6) == 0;
}

// The parts of the range that still show the region.
std::vector<Span> still_moved(uint64_t begin, uint64_t bytes) {
  std::vector<Span> parts;
  each_mapping(begin, bytes, [&](const Mapping& m) {
    if (m.file != region_file) return;
    const uint64_t from = std::max(begin, m.begin), to = std::min(begin + bytes, m.end);
    parts.push_back({from, to - from});
  });
  return parts;
}

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// Replaces the pages at `begin` by private ones with the contents of `from`, in one step.
bool make_private(uint64_t begin, uint64_t bytes, const void* from) {
  constexpr int FLAGS = MAP_PRIVATE | MAP_ANONYMOUS;
  void* const fresh = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, FLAGS, -1, 0);
  if (fresh == MAP_FAILED) return false;
  std::memcpy(fresh, from, bytes);
  if (mremap(fresh, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, pointer(begin)) != MAP_FAILED) {
    return true;
  }
  (void)munmap(fresh, bytes);
  return false;
}

// ---- fork: the child gets private copies of what it would share, before the parent goes on.
int copied_pipe[2] = {-1, -1};

void before_fork() {
  registrations_mutex().lock();
  if (!moved.empty() && pipe2(copied_pipe, O_CLOEXEC) != 0) copied_pipe[0] = copied_pipe[1] = -1;
}

void after_fork_in_parent() {
  if (copied_pipe[0] >= 0) {
    // A byte: copied. End of file: the child is gone. The limit is for a child that is stopped.
    constexpr int LIMIT_MS = 10'000;
    (void)close(copied_pipe[1]);
    pollfd ready{copied_pipe[0], POLLIN, 0};
    if (poll(&ready, 1, LIMIT_MS) == 0) {
      log(Level::WARNING, "a forked child has not copied the registered memory within %d s",
          LIMIT_MS / 1000);
    }
    (void)close(copied_pipe[0]);
    copied_pipe[0] = copied_pipe[1] = -1;
  }
  registrations_mutex().unlock();
}

void after_fork_in_child() {
  for (const Span& span : moved) {
    for (const Span& part : still_moved(span.begin, span.bytes)) {
      (void)mprotect(pointer(part.begin), part.bytes, PROT_READ | PROT_WRITE);
      // Without memory for a copy the pages go: the parent's must not be written.
      if (!make_private(part.begin, part.bytes, pointer(part.begin))) {
        if (mmap(pointer(part.begin), part.bytes, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
          std::abort();
        }
      }
    }
  }
  moved.clear();
  if (copied_pipe[0] >= 0) {
    (void)!write(copied_pipe[1], "", 1);
    (void)close(copied_pipe[0]);
    (void)close(copied_pipe[1]);
    copied_pipe[0] = copied_pipe[1] = -1;
  }
  registrations_mutex().unlock();
}

void prepare_once() {
  struct stat info;
  if (region_file.inode == 0 && fstat(Session::get().region_fd(), &info) == 0) {
    region_file = {major(info.st_dev), minor(info.st_dev), info.st_ino};
  }
  static const int registered =
      pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  (void)registered;
}

}  // namespace

std::mutex& registrations_mutex() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

Pages pages_of(uint64_t begin, uint64_t bytes) {
  uint64_t covered = begin;
  bool all_private = true, readable = true;
  each_mapping(begin, bytes, [&](const Mapping& m) {
    if (m.begin <= covered) covered = m.end;
    all_private = all_private && is_private_memory(m);
    readable = readable && m.rights[0] == 'r';
  });
  if (covered < begin + bytes || !readable) return Pages::NOT_THERE;
  return all_private ? Pages::PRIVATE : Pages::OTHER;
}

CUresult move_in(uint64_t begin, uint64_t bytes, uint64_t* heap) {
  prepare_once();
  PinnedHeap& pinned = PinnedHeap::get();
  if (const CUresult bad = pinned.allocate(bytes, heap, PAGE_BYTES)) return bad;
  bool done = false;
  {
    const WriteBarrier barrier(begin, bytes);
    if (mprotect(pointer(begin), bytes, PROT_READ) == 0) {
      std::memcpy(pointer(*heap), pointer(begin), bytes);
      done = map_region_at(begin, Session::get().region_fd(), *heap, bytes);
      if (!done) (void)mprotect(pointer(begin), bytes, PROT_READ | PROT_WRITE);
    }
  }
  if (!done) {
    pinned.free(*heap);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  moved.push_back({begin, bytes});
  return CUDA_SUCCESS;
}

void move_back(uint64_t begin, uint64_t bytes, uint64_t heap) {
  bool all_back = true;
  for (const Span& part : still_moved(begin, bytes)) {
    const WriteBarrier barrier(part.begin, part.bytes);
    (void)mprotect(pointer(part.begin), part.bytes, PROT_READ);
    all_back &= make_private(part.begin, part.bytes, pointer(heap + (part.begin - begin)));
    if (!all_back) (void)mprotect(pointer(part.begin), part.bytes, PROT_READ | PROT_WRITE);
  }
  // Where there was no memory for a copy the program goes on using the heap's pages.
  if (!all_back) return;
  std::erase_if(moved, [&](const Span& span) { return span.begin == begin; });
  PinnedHeap::get().free(heap);
}

}  // namespace kvgpu::guest
