// SPDX-License-Identifier: Apache-2.0
// cuGetExportTable: the private tables that a cudart asks for. Re-implemented for interoperability
// from the descriptions of open projects (vosen/ZLUDA) and from watching which slots libraries
// call; docs/architecture.md lists what is served.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "call.h"
#include "context_storage.h"
#include "floor_plan.h"
#include "generated/api.gen.h"
#include "image_load.h"
#include "integrity.h"
#include "log.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

using Slot = void (*)();

template <typename Function>
Slot slot(Function function) {
  return reinterpret_cast<Slot>(function);
}

// A table's name where a template can have it.
template <size_t N>
struct Name {
  char text[N];
  constexpr Name(const char (&literal)[N]) { std::copy_n(literal, N, text); }
};

template <Name NAME, size_t INDEX>
int unused_slot() {
  static const std::string what =
      "slot " + std::to_string(INDEX) + " of the private table " + NAME.text;
  return refuse_part(what.c_str());
}

// Slot 0 is the size in bytes; an unused slot refuses loudly, none is null.
template <size_t N>
using Table = std::array<Slot, N>;
template <size_t N, Name NAME>
Table<N> make_table(std::initializer_list<std::pair<size_t, Slot>> used) {
  Table<N> table = []<size_t... INDEX>(std::index_sequence<INDEX...>) {
    return Table<N>{slot(&unused_slot<NAME, INDEX>)...};
  }(std::make_index_sequence<N>());
  table[0] = reinterpret_cast<Slot>(N * sizeof(Slot));
  for (const auto& [index, function] : used) table[index] = function;
  return table;
}

// ---- CUDART_INTERFACE
CUresult primary_context_handle(CUcontext* context, CUdevice device) {
  Session& session = Session::get();
  if (!session.is_open()) return CUDA_ERROR_NOT_INITIALIZED;
  const DeviceState* const state = session.find_device(device);
  if (state == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *context = from_wire<CUcontext>(state->primary->handle);
  return CUDA_SUCCESS;
}
// How a cudart before 12 loads what nvcc registered; three ways to pass the same wrapper. What the
// others of its arguments say is unknown: only zeros were seen.
CUresult module_of_wrapper(CUmodule* module, const void* wrapper) {
  return module_load_wrapper(module, wrapper);
}
CUresult module_of_wrapper_extended(CUmodule* module, const void* wrapper, uint64_t a, uint64_t b,
                                    uint64_t c) {
  if (a != 0 || b != 0 || c != 0) {
    return static_cast<CUresult>(refuse_part("a module with unknown arguments from a cudart"));
  }
  return module_load_wrapper(module, wrapper);
}
CUresult module_of_header(const void* header, CUmodule* module, uint64_t a, uint64_t b,
                          uint64_t c) {
  return module_of_wrapper_extended(module, header, a, b, c);
}
CUresult compilers_ready() { return CUDA_SUCCESS; }  // they are the host's
CUresult nothing_to_do(uint64_t) { return CUDA_SUCCESS; }
const auto cudart_interface =
    make_table<13, "CUDART_INTERFACE">({{1, slot(&module_of_wrapper)},
                                        {2, slot(&primary_context_handle)},
                                        {6, slot(&module_of_wrapper_extended)},
                                        {7, slot(&nothing_to_do)},
                                        {8, slot(&module_of_header)},
                                        {12, slot(&compilers_ready)}});

// ---- TOOLS_TLS
CUresult tools_none(...) { return CUDA_SUCCESS; }
CUresult tools_current_context(CUcontext* context) {
  const Context* const current = current_itself();
  *context = current == nullptr ? nullptr : from_wire<CUcontext>(current->handle);
  return current == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
const auto tools_tls =
    make_table<3, "TOOLS_TLS">({{1, slot(&tools_none)}, {2, slot(&tools_current_context)}});

// ---- TOOLS_RUNTIME_CALLBACK_HOOKS: flags by callback id; all zero means that no tool listens
CUresult hooks_first(void** flags, size_t* n) {
  static uint8_t none[4096];
  *flags = none;
  *n = 1024;
  return CUDA_SUCCESS;
}
CUresult hooks_second(void** flags, size_t* n) {
  static uint8_t none[64];
  *flags = none;
  *n = 14;
  return CUDA_SUCCESS;
}
CUresult hooks_enter(uint64_t, uint64_t* out) {
  if (out != nullptr) *out = 0;
  return CUDA_SUCCESS;
}
const auto hooks = make_table<7, "TOOLS_RUNTIME_CALLBACK_HOOKS">({{1, slot(&tools_none)},
                                                                  {2, slot(&hooks_first)},
                                                                  {3, slot(&tools_none)},
                                                                  {4, slot(&hooks_enter)},
                                                                  {5, slot(&tools_none)},
                                                                  {6, slot(&hooks_second)}});

// ---- CONTEXT_LOCAL_STORAGE: the one table without a size
const Table<4> context_storage = {slot(&storage_put), slot(&storage_delete), slot(&storage_get),
                                  nullptr};

// ---- CONTEXT_CHECKS
CUresult context_is_plain(CUcontext, uint32_t* kind, void**) {
  if (kind != nullptr) *kind = 0;  // no green context
  return CUDA_SUCCESS;
}
const auto context_checks =
    make_table<15, "CONTEXT_CHECKS">({{2, slot(&context_is_plain)}, {3, slot(&tools_none)}});

// ---- CONTEXT_STREAM: cuBLASLt keys its workspaces by the numbers of context and stream
CUresult device_of_context(CUcontext context, CUdevice* device) {
  return ctx_get_device_v2(device, context);
}
// The driver's own object of a stream: the program only gives it back.
CUresult private_stream(CUcontext, CUstream stream, Stream** found, int default_is_per_thread) {
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (stream == nullptr && default_is_per_thread != 0) stream = CU_STREAM_PER_THREAD;
  CUresult error = CUDA_SUCCESS;
  Stream* const known = find_stream(stream, &error);
  if (known != nullptr) *found = known;
  return error;
}
CUresult private_stream_id(CUcontext, const Stream* stream, uint64_t* id) {
  if (stream == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = stream->id;
  return CUDA_SUCCESS;
}
const auto context_stream = make_table<93, "CONTEXT_STREAM">({{3, slot(&device_of_context)},
                                                              {4, slot(&ctx_get_id)},
                                                              {39, slot(&private_stream_id)},
                                                              {51, slot(&private_stream)}});

// ---- FUNCTION
using FunctionVisitor = int (*)(void* user, CUfunction function, const char* name, void*);
// Driver 580 shows all kernels, whatever the visitor answers, and returns how many there were.
int visit_functions(CUcontext, CUmodule module, FunctionVisitor visitor, void* user) {
  unsigned n = 0;
  if (module_get_function_count(&n, module) != CUDA_SUCCESS) return 0;
  std::vector<CUfunction> functions(n);
  if (module_enumerate_functions(functions.data(), n, module) != CUDA_SUCCESS) return 0;
  for (const CUfunction function : functions) {
    const char* name;
    if (func_get_name(&name, function) == CUDA_SUCCESS) visitor(user, function, name, nullptr);
  }
  return static_cast<int>(n);
}
const auto function_table = make_table<99, "FUNCTION">({{7, slot(&visit_functions)}});

// ---- FLOOR_PLAN
const auto floor_plan =
    make_table<17, "FLOOR_PLAN">({{4, slot(&floor_plan_get)}, {13, slot(&floor_plan_free)}});

// ---- INTEGRITY_CHECK
CUresult integrity_check(uint32_t version, uint64_t unix_seconds, uint8_t* out);
CUresult integrity_other(int) { return CUDA_SUCCESS; }
const auto integrity =
    make_table<3, "INTEGRITY_CHECK">({{1, slot(&integrity_check)}, {2, slot(&integrity_other)}});
CUresult integrity_check(uint32_t version, uint64_t unix_seconds, uint8_t* out) {
  int driver_version;
  if (const CUresult bad = driver_get_version(&driver_version)) return bad;
  const Md2Digest digest = integrity_digest(
      {static_cast<uint32_t>(driver_version), version, unix_seconds, cudart_interface.data(),
       integrity.data(), reinterpret_cast<const void*>(&integrity_check)});
  std::memcpy(out, digest.data(), digest.size());
  return CUDA_SUCCESS;
}

// ---- ERROR_LOG
CUresult error_log(const char* source, int, const char* format, va_list args) {
  char line[512];
  std::vsnprintf(line, sizeof line, format, args);
  log(Level::DEBUG, "%s: %s", source, line);
  return CUDA_SUCCESS;
}
const auto error_logs = make_table<3, "ERROR_LOG">({{1, slot(&error_log)}});

struct Known {
  uint8_t uuid[16];
  const void* table;
};
const Known KNOWN[] = {
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d,
      0xf9},
     cudart_interface.data()},
    {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec,
      0xdc},
     tools_tls.data()},
    {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a,
      0x66},
     hooks.data()},
    {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95,
      0x93},
     context_storage.data()},
    {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1,
      0xf2},
     integrity.data()},
    {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa,
      0x7e},
     context_checks.data()},
    {{0xf8, 0xcf, 0xf9, 0x51, 0x21, 0x46, 0x8b, 0x4e, 0xb9, 0xe2, 0xfb, 0x46, 0x9e, 0x7c, 0x0d,
      0xd9},
     error_logs.data()},
    {{0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8,
      0xf2},
     context_stream.data()},
    {{0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99,
      0x1e},
     function_table.data()},
    {{0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b,
      0xca},
     floor_plan.data()},
};

}  // namespace

CUresult get_export_table(const void** ppExportTable, const CUuuid* pExportTableId) {
  if (ppExportTable == nullptr || pExportTableId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *ppExportTable = nullptr;
  for (const Known& known : KNOWN) {
    if (std::memcmp(known.uuid, pExportTableId->bytes, sizeof known.uuid) == 0) {
      if (known.table == floor_plan.data() && !has_floor_plan()) break;
      *ppExportTable = known.table;
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_VALUE;  // what the driver answers to an unknown table
}

}  // namespace kvgpu::guest
