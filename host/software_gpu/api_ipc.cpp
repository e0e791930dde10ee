// SPDX-License-Identifier: Apache-2.0
// Memory of cuMemAlloc, and events, in other processes of the same user. A handle says which file
// of which process it is; /proc lets the other one open it. Where it does not (kvgpu's workers),
// the file's descriptor is passed beside the handle.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "api.h"
#include "shared_event.h"

using namespace software_gpu;

namespace {

constexpr uint64_t MAGIC = 0x435049757067766b;  // "kvgpuIPC"

/// What is in the bytes of CUipcMemHandle and CUipcEventHandle.
struct Handle {
  uint64_t magic;
  int32_t pid, fd;
  uint64_t file_id, offset_bytes, size_bytes;
  int32_t ordinal, reserved;
};
static_assert(sizeof(Handle) <= CU_IPC_HANDLE_SIZE);

Handle handle_of(const SharedFile& file, uint64_t offset_bytes, uint64_t size_bytes) {
  return {MAGIC, getpid(), file.fd(), file.id(), offset_bytes, size_bytes, file.ordinal(), 0};
}

/// Files that came by descriptor, until their handles are opened.
class Offered {
 public:
  static Offered& instance() {
    static Offered* offered = new Offered;
    return *offered;
  }
  void add(std::shared_ptr<const SharedFile> file) {
    std::lock_guard lock(mutex_);
    const uint64_t id = file->id();
    files_[id] = std::move(file);
  }
  std::shared_ptr<const SharedFile> take(uint64_t id) {
    std::lock_guard lock(mutex_);
    const auto taken = files_.extract(id);
    return taken.empty() ? nullptr : taken.mapped();
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const SharedFile>> files_;
};

/// The file of a handle that another process has made.
CUresult open(const char* bytes, SharedFile::Use use, Handle* handle,
              std::shared_ptr<const SharedFile>* file) {
  memcpy(handle, bytes, sizeof *handle);
  if (handle->magic != MAGIC) return CUDA_ERROR_INVALID_VALUE;
  if ((*file = Offered::instance().take(handle->file_id))) return CUDA_SUCCESS;
  if (handle->pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  *file = SharedFile::open(handle->pid, handle->fd, use, handle->file_id);
  return *file ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/// What has been opened, and how often.
class Opened {
 public:
  using Key = std::tuple<const Context*, uint64_t, uint64_t>;  // file, offset
  static Opened& instance() {
    static Opened* opened = new Opened;
    return *opened;
  }
  std::mutex mutex;  // of what follows
  struct Entry {
    uint64_t address = 0, n_opened = 0;
  };
  std::map<Key, Entry> entries;
};

}  // namespace

#define KVGPU_API extern "C" __attribute__((visibility("default")))

/// A new descriptor of the file that a handle of this process names; negative: there is none.
KVGPU_API int kvgpu_ipc_descriptor_of(const void* bytes) {
  Handle handle;
  memcpy(&handle, bytes, sizeof handle);
  return handle.magic == MAGIC ? fcntl(handle.fd, F_DUPFD_CLOEXEC, 0) : -1;
}

/// What another process's kvgpu_ipc_descriptor_of() has given, before its handle is opened.
KVGPU_API void kvgpu_ipc_offer(int descriptor) {
  for (const auto use : {SharedFile::Use::DEVICE, SharedFile::Use::EVENT})
    if (auto file = SharedFile::open(descriptor, use)) Offered::instance().add(std::move(file));
}

SOFTWARE_GPU_API cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  const auto allocation = Driver::instance().find(pointer);
  if (!allocation || !is_ipc_capable(*allocation)) return CUDA_ERROR_INVALID_VALUE;
  const Backing& backing = *allocation->backing;
  if (!backing.file()) return CUDA_ERROR_NOT_SUPPORTED;  // the process may not make files that long
  const Handle content = handle_of(*backing.file(), backing.offset_bytes(), allocation->size_bytes);
  *handle = {};
  memcpy(handle->reserved, &content, sizeof content);
  return CUDA_SUCCESS;
}

#undef cuIpcOpenMemHandle
SOFTWARE_GPU_API cuIpcOpenMemHandle_v2(CUdeviceptr* pointer, CUipcMemHandle bytes, unsigned flags) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  if (!pointer || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  Handle handle;
  std::shared_ptr<const SharedFile> file;
  RETURN_IF_FAILED(open(bytes.reserved, SharedFile::Use::DEVICE, &handle, &file));
  Opened& opened = Opened::instance();
  std::lock_guard lock(opened.mutex);
  Opened::Entry& entry = opened.entries[{context, handle.file_id, handle.offset_bytes}];
  const auto there = entry.n_opened ? context->device.memory.find(entry.address) : nullptr;
  if (!there || there->kind != MemoryKind::IMPORTED) {  // else the context was reset since
    entry = {};
    RETURN_IF_FAILED(context->device.memory.import_from(std::move(file), handle.offset_bytes,
                                                        handle.size_bytes, &entry.address));
  }
  ++entry.n_opened;
  *pointer = entry.address;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuIpcCloseMemHandle(CUdeviceptr pointer) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  Opened& opened = Opened::instance();
  std::lock_guard lock(opened.mutex);
  const auto found = std::ranges::find_if(opened.entries, [&](const auto& item) {
    return item.second.n_opened != 0 && item.second.address == pointer;
  });
  if (found == opened.entries.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.n_opened != 0) return CUDA_SUCCESS;
  opened.entries.erase(found);
  context->drain();
  return context->device.memory.release(pointer, MemoryKind::IMPORTED, MemoryKind::IMPORTED);
}

SOFTWARE_GPU_API cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event_handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  const auto event = Driver::instance().events.find(event_handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  if (!event->shared) return CUDA_ERROR_INVALID_HANDLE;
  const Handle content = handle_of(event->shared->file(), 0, 0);
  *handle = {};
  memcpy(handle->reserved, &content, sizeof content);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuIpcOpenEventHandle(CUevent* event_handle, CUipcEventHandle bytes) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  if (!event_handle) return CUDA_ERROR_INVALID_VALUE;
  Handle handle;
  std::shared_ptr<const SharedFile> file;
  const CUresult opened = open(bytes.reserved, SharedFile::Use::EVENT, &handle, &file);
  if (opened == CUDA_ERROR_INVALID_VALUE) return CUDA_ERROR_MAP_FAILED;
  RETURN_IF_FAILED(opened);
  auto event = std::make_shared<Event>(*context, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
  event->shared = SharedEvent::open(std::move(file));
  if (!event->shared) return CUDA_ERROR_MAP_FAILED;
  *event_handle = reinterpret_cast<CUevent>(event.get());
  Driver::instance().events.add(std::move(event));
  return CUDA_SUCCESS;
}
