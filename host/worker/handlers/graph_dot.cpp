// SPDX-License-Identifier: Apache-2.0
// The driver writes a file: here one without a name, which nobody else sees.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "generated/handlers.gen.h"
#include "kvgpu/graph_calls.h"

namespace kvgpu::worker {

namespace {

class NamelessFile {
 public:
  NamelessFile() : fd_(memfd_create("kvgpu-dot", MFD_CLOEXEC)) {}
  ~NamelessFile() {
    if (fd_ >= 0) close(fd_);
  }
  NamelessFile(const NamelessFile&) = delete;
  NamelessFile& operator=(const NamelessFile&) = delete;

  bool is_open() const { return fd_ >= 0; }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  uint64_t size_bytes() const {
    struct stat info{};
    return fstat(fd_, &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
  }
  // Returns how many bytes there were.
  uint64_t read(uint64_t first, void* to, uint64_t n_bytes) const {
    uint64_t n_read = 0;
    while (n_read < n_bytes) {
      const ssize_t n = pread(fd_, static_cast<std::byte*>(to) + n_read, n_bytes - n_read,
                              static_cast<off_t>(first + n_read));
      if (n <= 0) break;
      n_read += static_cast<uint64_t>(n);
    }
    return n_read;
  }

 private:
  const int fd_;
};

}  // namespace

CUresult graph_debug_dot_print(Session& session, const Task& task, ReplyWriter& reply) {
  wire::GraphDotPrint body;
  if (!task.read(&body)) session.violation(task);
  if (body.slab_off > SLAB_BYTES || body.slab_bytes > SLAB_BYTES - body.slab_off) {
    session.violation(task);
  }
  if (const CUresult bad = session.enter(body.context)) return bad;
  CUgraph graph;
  if (!session.handles.get(body.graph, &graph)) return CUDA_ERROR_INVALID_VALUE;
  const NamelessFile file;
  if (!file.is_open()) return CUDA_ERROR_OPERATING_SYSTEM;
  const CUresult result =
      session.driver->cuGraphDebugDotPrint(graph, file.path().c_str(), body.flags);
  if (result != CUDA_SUCCESS) return result;
  const uint64_t n_all = file.size_bytes();
  if (n_all == 0) return CUDA_ERROR_OPERATING_SYSTEM;  // not where it was told to
  uint64_t n = 0;
  if (body.first < n_all) {
    n = file.read(body.first, session.slab() + body.slab_off,
                  std::min(body.slab_bytes, n_all - body.first));
  }
  reply.put(wire::GraphDotPrinted{n_all, n});
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::worker
