// SPDX-License-Identifier: Apache-2.0
// The JIT linker.
#include <mutex>
#include <string>

#include "generated/handlers.gen.h"
#include "image.h"
#include "jit.h"

namespace kvgpu::worker {

// The driver keeps the addresses of the logs as long as the state lives.
struct Link {
  Jit jit;
  CUlinkState raw = nullptr;
  std::vector<std::byte> cubin;
  std::mutex mutex;  // one call at a time
};

CUresult link_create_v2(Session& session, const Task& task, ReplyWriter&) {
  wire::LinkCreate body;
  auto link = std::make_shared<Link>();
  if (!task.read(&body) || !link->jit.read(body.jit, task.after<wire::LinkCreate>())) {
    session.violation(task);
  }
  const CUresult result = session.link([&] {
    if (const CUresult bad = session.enter(body.context)) return bad;
    return session.driver->cuLinkCreate_v2(link->jit.n(), link->jit.options(), link->jit.values(),
                                           &link->raw);
  });
  if (result == CUDA_SUCCESS && !session.links.add(body.link, link)) session.violation(task);
  return result;
}

CUresult link_add_data_v2(Session& session, const Task& task, ReplyWriter& reply) {
  wire::LinkAdd body;
  Jit own;
  if (!task.read(&body) || !Jit::fits(body.jit)) session.violation(task);
  wire::JitRequest no_logs{};
  no_logs.n_options = body.jit.n_options;
  const auto rest = task.after<wire::LinkAdd>();
  if (!own.read(no_logs, rest)) session.violation(task);
  const auto after_options = rest.subspan(body.jit.n_options * sizeof(wire::JitOption));
  if (body.name_bytes > after_options.size()) session.violation(task);
  const std::string name(reinterpret_cast<const char*>(after_options.data()), body.name_bytes);
  auto blob = session.blobs.take(body.blob);
  if (blob.empty()) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto link = session.links.find(body.link);
  if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!is_whole(blob)) return CUDA_ERROR_INVALID_IMAGE;
  const std::lock_guard lock(link->mutex);
  const CUresult result = session.link([&] {
    if (const CUresult bad = session.enter(body.context)) return bad;
    return session.driver->cuLinkAddData_v2(link->raw, static_cast<CUjitInputType>(body.type),
                                            blob.data(), blob.size() - 1, name.c_str(), own.n(),
                                            own.options(), own.values());
  });
  reply.put(wire::LinkCompleted{0});
  link->jit.answer(session, body.jit, reply);
  return result;
}

CUresult link_complete(Session& session, const Task& task, ReplyWriter& reply) {
  wire::LinkComplete body;
  if (!task.read(&body) || !Jit::fits(body.jit)) session.violation(task);
  const auto link = session.links.find(body.link);
  if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::lock_guard lock(link->mutex);
  void* cubin = nullptr;
  size_t bytes = 0;
  const CUresult result = session.link([&] {
    if (const CUresult bad = session.enter(body.context)) return bad;
    return session.driver->cuLinkComplete(link->raw, &cubin, &bytes);
  });
  if (result == CUDA_SUCCESS) {
    const auto* first = static_cast<const std::byte*>(cubin);
    link->cubin.assign(first, first + bytes);
  }
  reply.put(wire::LinkCompleted{link->cubin.size()});
  link->jit.answer(session, body.jit, reply);
  return result;
}

CUresult link_read(Session& session, const Task& task, ReplyWriter&) {
  wire::LinkRead body;
  if (!task.read(&body)) session.violation(task);
  if (body.slab_off > SLAB_BYTES || body.len_bytes > SLAB_BYTES - body.slab_off) {
    session.violation(task);
  }
  const auto link = session.links.find(body.link);
  if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::lock_guard lock(link->mutex);
  if (body.offset > link->cubin.size() || body.len_bytes > link->cubin.size() - body.offset) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::memcpy(session.slab() + body.slab_off, link->cubin.data() + body.offset, body.len_bytes);
  return CUDA_SUCCESS;
}

CUresult link_destroy(Session& session, const Task& task, ReplyWriter&) {
  wire::LinkRef body;
  if (!task.read(&body)) session.violation(task);
  const auto link = session.links.find(body.link);
  if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  session.links.remove(body.link);
  const std::lock_guard lock(link->mutex);
  return session.link([&] {
    if (const CUresult bad = session.enter(body.context)) return bad;
    return session.driver->cuLinkDestroy(link->raw);
  });
}

}  // namespace kvgpu::worker
