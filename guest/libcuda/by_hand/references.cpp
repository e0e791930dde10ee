// SPDX-License-Identifier: Apache-2.0
// Texture and surface references, the images of the old API: those that a module names, and those
// that a program makes. What they are bound to the driver knows. As on driver 580 calls on one are
// made in the context that it is of.
#include <cstring>

#include "call.h"
#include "generated/api.gen.h"
#include "kvgpu/plain_calls.gen.h"

namespace kvgpu::guest {

namespace {

// One that a module names: the same each time.
CUresult get(wire::Op op, Module* module, const char* name,
             std::map<std::string, wire::Handle> Module::* names, wire::Handle* handle) {
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Call call(CaptureRule::ALLOWED, module->context);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const std::lock_guard lock(module->mutex);
  auto& known = module->*names;
  const auto found = known.find(name);
  // It may have been destroyed.
  if (found != known.end() && tables().references.find(found->second) != nullptr) {
    *handle = found->second;
    return CUDA_SUCCESS;
  }
  Reference* const reference = tables().references.create();
  if (reference == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  reference->context = &call.context_object();
  reference->is_surface = op == wire::Op::cuModuleGetSurfRef;
  const auto name_bytes = static_cast<uint32_t>(std::strlen(name));
  const wire::GetReference body{call.context(), module->handle, reference->handle, name_bytes, 0};
  if (const CUresult bad = call.sync(op, body, Part{name, name_bytes})) {
    forget(reference->handle);
    return bad;
  }
  known[name] = reference->handle;
  *handle = reference->handle;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult module_get_tex_ref(CUtexref* pTexRef, CUmodule hmod, const char* name) {
  if (pTexRef == nullptr) return CUDA_ERROR_INVALID_VALUE;
  wire::Handle handle;
  const CUresult result =
      get(wire::Op::cuModuleGetTexRef, find(hmod), name, &Module::textures, &handle);
  if (result == CUDA_SUCCESS) *pTexRef = from_wire<CUtexref>(handle);
  return result;
}

CUresult module_get_surf_ref(CUsurfref* pSurfRef, CUmodule hmod, const char* name) {
  if (pSurfRef == nullptr) return CUDA_ERROR_INVALID_VALUE;
  wire::Handle handle;
  const CUresult result =
      get(wire::Op::cuModuleGetSurfRef, find(hmod), name, &Module::surfaces, &handle);
  if (result == CUDA_SUCCESS) *pSurfRef = from_wire<CUsurfref>(handle);
  return result;
}

CUresult tex_ref_create(CUtexref* pTexRef) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (pTexRef == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Reference* const reference = tables().references.create();
  if (reference == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  reference->context = &call.context_object();
  const wire::ReferenceRef body{call.context(), reference->handle};
  if (const CUresult bad = call.sync(wire::Op::cuTexRefCreate, body)) {
    forget(reference->handle);
    return bad;
  }
  *pTexRef = from_wire<CUtexref>(reference->handle);
  return CUDA_SUCCESS;
}

CUresult tex_ref_set_address_v2(size_t* ByteOffset, CUtexref hTexRef, CUdeviceptr dptr,
                                size_t bytes) {
  const Reference* const reference = find(hTexRef);
  if (reference == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Call call(CaptureRule::ALLOWED, reference->context);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const wire::ReferenceAddress body{call.context(), to_wire(hTexRef),      dptr,
                                    bytes,          ByteOffset != nullptr, 0};
  wire::Value64 out;
  const CUresult result = call.sync(wire::Op::cuTexRefSetAddress_v2, body, &out);
  if (result == CUDA_SUCCESS && ByteOffset != nullptr) *ByteOffset = out.value;
  return result;
}

CUresult tex_ref_set_address_2d_v3(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR* desc,
                                   CUdeviceptr dptr, size_t Pitch) {
  const Reference* const reference = find(hTexRef);
  if (reference == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Call call(CaptureRule::ALLOWED, reference->context);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (desc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const wire::ReferenceAddress2D body{call.context(),
                                      to_wire(hTexRef),
                                      dptr,
                                      desc->Width,
                                      desc->Height,
                                      Pitch,
                                      static_cast<uint32_t>(desc->Format),
                                      desc->NumChannels};
  return call.sync(wire::Op::cuTexRefSetAddress2D_v3, body);
}
CUresult tex_ref_set_address_2d_v2(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR* desc,
                                   CUdeviceptr dptr, size_t Pitch) {
  return tex_ref_set_address_2d_v3(hTexRef, desc, dptr, Pitch);
}

CUresult tex_ref_get_address_v2(CUdeviceptr* pdptr, CUtexref hTexRef) {
  const Reference* const reference = find(hTexRef);
  if (reference == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Call call(CaptureRule::ALLOWED, reference->context);
  if (call.status() != CUDA_SUCCESS) return call.status();
  wire::cuTexRefGetAddress_v2_out out;
  const wire::cuTexRefGetAddress_v2_in body{call.context(), to_wire(hTexRef)};
  const CUresult result = call.sync(wire::Op::cuTexRefGetAddress_v2, body, &out);
  if (result == CUDA_SUCCESS && pdptr != nullptr) *pdptr = out.pdptr;
  return result;
}

CUresult tex_ref_get_format(CUarray_format* pFormat, int* pNumChannels, CUtexref hTexRef) {
  const Reference* const reference = find(hTexRef);
  if (reference == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Call call(CaptureRule::ALLOWED, reference->context);
  if (call.status() != CUDA_SUCCESS) return call.status();
  wire::cuTexRefGetFormat_out out;
  const wire::cuTexRefGetFormat_in body{call.context(), to_wire(hTexRef)};
  const CUresult result = call.sync(wire::Op::cuTexRefGetFormat, body, &out);
  if (result != CUDA_SUCCESS) return result;
  if (pFormat != nullptr) *pFormat = static_cast<CUarray_format>(out.pFormat);
  if (pNumChannels != nullptr) *pNumChannels = static_cast<int>(out.pNumChannels);
  return CUDA_SUCCESS;
}

CUresult tex_ref_set_border_color(CUtexref hTexRef, float* pBorderColor) {
  const Reference* const reference = find(hTexRef);
  if (reference == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Call call(CaptureRule::ALLOWED, reference->context);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (pBorderColor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  wire::ReferenceColor body{call.context(), to_wire(hTexRef), {}};
  std::memcpy(&body.color, pBorderColor, sizeof body.color);
  return call.sync(wire::Op::cuTexRefSetBorderColor, body);
}

CUresult tex_ref_get_border_color(float* pBorderColor, CUtexref hTexRef) {
  const Reference* const reference = find(hTexRef);
  if (reference == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Call call(CaptureRule::ALLOWED, reference->context);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (pBorderColor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const wire::ReferenceRef body{call.context(), to_wire(hTexRef)};
  wire::BorderColor out;
  const CUresult result = call.sync(wire::Op::cuTexRefGetBorderColor, body, &out);
  if (result == CUDA_SUCCESS) std::memcpy(pBorderColor, &out, sizeof out);
  return result;
}

}  // namespace kvgpu::guest
