// SPDX-License-Identifier: Apache-2.0
// The JIT linker: inputs go to the worker's driver, the cubin comes back.
#include <cstring>

#include "generated/api.gen.h"
#include "image_load.h"
#include "jit.h"
#include "log.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

// Links belong to the context that was current when they began.
class LinkCall : public Call {
 public:
  explicit LinkCall(CUlinkState state) : LinkCall(tables().links.find(to_wire(state))) {}
  CUresult check() const {
    return status() == CUDA_SUCCESS && link_ == nullptr ? CUDA_ERROR_INVALID_HANDLE : status();
  }
  Link& link() const { return *link_; }

 private:
  explicit LinkCall(Link* link)
      : Call(CaptureRule::ALLOWED, link == nullptr ? nullptr : link->context), link_(link) {}

  Link* link_;
};

CUresult read_cubin(const Call& call, const Link& link, std::string* cubin, uint64_t bytes) {
  cubin->resize(bytes);
  Staging& staging = Staging::get();
  for (uint64_t offset = 0; offset < bytes;) {
    const uint64_t n = std::min<uint64_t>(bytes - offset, Staging::CHUNK_BYTES);
    Staging::Piece piece;
    if (const CUresult bad = staging.allocate(n, &piece)) return bad;
    const wire::LinkRead body{link.handle, offset, piece.off, n};
    const CUresult result = call.sync(wire::Op::LINK_READ, body);
    if (result == CUDA_SUCCESS) std::memcpy(cubin->data() + offset, staging.data(piece), n);
    staging.release(piece);
    if (result != CUDA_SUCCESS) return result;
    offset += n;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult link_create_v2(unsigned int numOptions, CUjit_option* options, void** optionValues,
                        CUlinkState* stateOut) {
  if (stateOut == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  JitOptions jit;
  if (const CUresult bad = jit.read(numOptions, options, optionValues, true)) return bad;
  Link* const link = tables().links.create();
  if (link == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  // CUDA 13.0 cuda.h: the values stay valid as long as the state, where output options are used.
  link->context = &call.context_object();
  link->n_options = numOptions;
  link->values = optionValues;
  if (numOptions != 0) link->options.assign(options, options + numOptions);
  const wire::LinkCreate body{call.context(), link->handle, jit.request()};
  const CUresult result = call.sync(wire::Op::cuLinkCreate_v2, body, jit.options());
  if (result != CUDA_SUCCESS) {
    tables().links.remove(link->handle);
    return result;
  }
  *stateOut = from_wire<CUlinkState>(link->handle);
  return CUDA_SUCCESS;
}
CUresult link_create(unsigned int numOptions, CUjit_option* options, void** optionValues,
                     CUlinkState* stateOut) {
  return link_create_v2(numOptions, options, optionValues, stateOut);
}

namespace {

// The logs of a state so far, to where its creator wants them.
CUresult ask(const Call& call, const Link& link, wire::Op op, const auto& head, Part options,
             Part rest, wire::LinkCompleted* completed) {
  JitOptions logs;
  if (const CUresult bad = logs.read(link.n_options, const_cast<CUjit_option*>(link.options.data()),
                                     link.values, true)) {
    return bad;
  }
  if (const CUresult bad = logs.prepare()) return bad;
  auto body = head;
  const uint32_t n_options = body.jit.n_options;
  body.jit = logs.request();
  body.jit.n_options = n_options;
  struct {
    wire::LinkCompleted completed;
    JitOptions::Reply jit;
  } out{};
  ReplyBuffer buffer{&out, sizeof out};
  const CUresult result =
      Session::get().call(op, call.device(), &buffer, part(body), options, rest);
  logs.finish(out.jit);
  if (result != CUDA_SUCCESS && !logs.error_log().empty()) {
    log(Level::WARNING, "the JIT linker refused its input: %s", logs.error_log().c_str());
  }
  *completed = out.completed;
  return result;
}

}  // namespace

CUresult link_add_data_v2(CUlinkState state, CUjitInputType type, void* data, size_t size,
                          const char* name, unsigned int numOptions, CUjit_option* options,
                          void** optionValues) {
  if (data == nullptr || size == 0 || static_cast<unsigned>(type) >= CU_JIT_NUM_INPUT_TYPES)
    return CUDA_ERROR_INVALID_VALUE;
  const LinkCall call(state);
  if (const CUresult bad = call.check()) return bad;
  JitOptions jit;
  if (const CUresult bad = jit.read(numOptions, options, optionValues, false)) return bad;
  wire::Handle blob;
  const ImageBytes image{static_cast<const std::byte*>(data), size};
  if (const CUresult bad = upload(call, {&image, 1}, &blob)) return bad;
  const auto name_bytes = static_cast<uint32_t>(name == nullptr ? 0 : strnlen(name, 1024));
  wire::LinkAdd body{
      call.context(), call.link().handle, blob, static_cast<uint32_t>(type), name_bytes, {}};
  body.jit.n_options = jit.request().n_options;
  wire::LinkCompleted unused;
  return ask(call, call.link(), wire::Op::cuLinkAddData_v2, body, jit.options(), {name, name_bytes},
             &unused);
}
CUresult link_add_data(CUlinkState state, CUjitInputType type, void* data, size_t size,
                       const char* name, unsigned int numOptions, CUjit_option* options,
                       void** optionValues) {
  return link_add_data_v2(state, type, data, size, name, numOptions, options, optionValues);
}

CUresult link_add_file_v2(CUlinkState state, CUjitInputType type, const char* path,
                          unsigned int numOptions, CUjit_option* options, void** optionValues) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::string file;
  if (const CUresult bad = read_file(path, &file)) return bad;
  // PTX is text and ends with a zero.
  const size_t bytes = file.size() + (type == CU_JIT_INPUT_PTX ? 1 : 0);
  return link_add_data_v2(state, type, file.data(), bytes, path, numOptions, options, optionValues);
}
CUresult link_add_file(CUlinkState state, CUjitInputType type, const char* path,
                       unsigned int numOptions, CUjit_option* options, void** optionValues) {
  return link_add_file_v2(state, type, path, numOptions, options, optionValues);
}

CUresult link_complete(CUlinkState state, void** cubinOut, size_t* sizeOut) {
  if (cubinOut == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const LinkCall call(state);
  if (const CUresult bad = call.check()) return bad;
  wire::LinkCompleted completed;
  Link& link = call.link();
  const wire::LinkComplete body{call.context(), link.handle, {}};
  CUresult result = ask(call, call.link(), wire::Op::cuLinkComplete, body, {nullptr, 0},
                        {nullptr, 0}, &completed);
  if (result == CUDA_SUCCESS) result = read_cubin(call, link, &link.cubin, completed.bytes);
  if (result != CUDA_SUCCESS) return result;
  *cubinOut = link.cubin.data();
  if (sizeOut != nullptr) *sizeOut = link.cubin.size();
  return CUDA_SUCCESS;
}

CUresult link_destroy(CUlinkState state) {
  const LinkCall call(state);
  if (const CUresult bad = call.check()) return bad;
  const wire::LinkRef body{call.context(), call.link().handle};
  const CUresult result = call.sync(wire::Op::cuLinkDestroy, body);
  tables().links.remove(body.link);
  return result;
}

}  // namespace kvgpu::guest
