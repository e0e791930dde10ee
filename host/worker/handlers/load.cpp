// SPDX-License-Identifier: Apache-2.0
// Images that the guest has sent are loaded here.
#include "generated/handlers.gen.h"
#include "image.h"
#include "jit.h"
#include "loaded.h"

namespace kvgpu::worker {

namespace {

template <typename Module, typename Load>
CUresult load_image(Session& session, const Task& task, ReplyWriter& reply, Load load) {
  wire::LoadImage body;
  wire::JitRequest request{};
  auto jit = std::make_shared<Jit>();
  if (!task.read(&body)) session.violation(task);
  auto rest = task.after<wire::LoadImage>();
  if (rest.size() >= sizeof request) {
    std::memcpy(&request, rest.data(), sizeof request);
    rest = rest.subspan(sizeof request);
  }
  if (!jit->read(request, rest)) session.violation(task);
  const auto image = session.blobs.take(body.blob);
  if (const CUresult bad = session.enter(body.context)) return bad;
  if (image.empty()) return CUDA_ERROR_OUT_OF_MEMORY;
  // The driver takes no length: what an image says of its own size must lie inside of it.
  CUresult result = is_whole(image) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
  Module module = nullptr;
  if (result == CUDA_SUCCESS) result = load(&module, image.data(), *jit);
  auto loaded = std::make_shared<Loaded>();
  if (result == CUDA_SUCCESS) loaded->printers = printers_of(image);
  reply.put(wire::LoadedImage{loaded->printers.any(), 0});
  jit->answer(session, request, reply);
  if (result != CUDA_SUCCESS) return result;
  constexpr bool IS_LIBRARY = std::is_same_v<Module, CUlibrary>;
  // A library is compiled when a kernel of it is first needed: the driver may write its logs then.
  if (IS_LIBRARY && jit->n() > 0) loaded->logs = std::move(jit);
  const wire::Handle owner = IS_LIBRARY ? 0 : body.context;
  if (!session.handles.add(body.module, module, owner, std::move(loaded))) session.violation(task);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult library_load_data(Session& session, const Task& task, ReplyWriter& reply) {
  return load_image<CUlibrary>(
      session, task, reply, [&](CUlibrary* library, const void* image, Jit& jit) {
        return session.driver->cuLibraryLoadData(library, image, jit.options(), jit.values(),
                                                 jit.n(), nullptr, nullptr, 0);
      });
}

CUresult module_load_data_ex(Session& session, const Task& task, ReplyWriter& reply) {
  return load_image<CUmodule>(session, task, reply,
                              [&](CUmodule* module, const void* image, Jit& jit) {
                                return session.driver->cuModuleLoadDataEx(
                                    module, image, jit.n(), jit.options(), jit.values());
                              });
}

CUresult module_load_data(Session& session, const Task& task, ReplyWriter& reply) {
  return module_load_data_ex(session, task, reply);
}

}  // namespace kvgpu::worker
