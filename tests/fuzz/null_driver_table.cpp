// SPDX-License-Identifier: Apache-2.0
// The null driver's functions: by hand where an argument can do harm, else made from the types of
// the arguments.
#include <cstring>

#include "kvgpu/barrier.h"
#include "kvgpu/layout.h"
#include "null_driver_by_type.h"
#include "null_driver_graphs.h"

namespace kvgpu::fuzz {

namespace {

CUresult begin(const char* name) { return null_driver().begin(name); }
#define KVGPU_BEGIN \
  if (const CUresult bad = begin(__func__)) return bad

CUresult device_count(int* n) {
  KVGPU_BEGIN;
  *n = 2;
  return CUDA_SUCCESS;
}

CUresult device_get(CUdevice* device, int ordinal) {
  KVGPU_BEGIN;
  if (ordinal < 0 || ordinal > 1) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult driver_version(int* version) {
  KVGPU_BEGIN;
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult device_attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 1;
  return CUDA_SUCCESS;
}

CUresult error_name(CUresult, const char** name) {
  *name = "an error";
  return CUDA_SUCCESS;
}

CUresult allocate(CUdeviceptr* dptr, size_t bytes) {
  KVGPU_BEGIN;
  uint64_t address = 0;
  const CUresult result = null_driver().allocate(&address, bytes);
  *dptr = address;
  return result;
}

CUresult allocate_pitch(CUdeviceptr* dptr, size_t* pitch, size_t width, size_t height, unsigned) {
  KVGPU_BEGIN;
  size_t bytes;
  if (width > TIB || __builtin_mul_overflow((width + 511) & ~511ull, height, &bytes)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *pitch = (width + 511) & ~511ull;
  uint64_t address = 0;
  const CUresult result = null_driver().allocate(&address, bytes);
  *dptr = address;
  return result;
}

CUresult free_memory(CUdeviceptr dptr) {
  KVGPU_BEGIN;
  return null_driver().free(dptr);
}

CUresult allocate_async(CUdeviceptr* dptr, size_t bytes, CUstream stream) {
  accept(stream);
  return allocate(dptr, bytes);
}

CUresult allocate_from_pool(CUdeviceptr* dptr, size_t bytes, CUmemoryPool pool, CUstream stream) {
  accept(pool);
  return allocate_async(dptr, bytes, stream);
}

CUresult free_async(CUdeviceptr dptr, CUstream stream) {
  accept(stream);
  return free_memory(dptr);
}

CUresult host_register(void* pointer, size_t bytes, unsigned) {
  KVGPU_BEGIN;
  null_driver().check_registrable(reinterpret_cast<uint64_t>(pointer), bytes);
  return CUDA_SUCCESS;
}

CUresult host_device_pointer(CUdeviceptr* dptr, void* pointer, unsigned) {
  KVGPU_BEGIN;
  *dptr = reinterpret_cast<CUdeviceptr>(pointer);
  return CUDA_SUCCESS;
}

CUresult copy(uint64_t dst, uint64_t src, size_t bytes, CUstream stream) {
  accept(stream);
  null_driver().check_memory("copied to", dst, bytes);
  null_driver().check_memory("copied from", src, bytes);
  return CUDA_SUCCESS;
}

CUresult copy_htod(CUdeviceptr dst, const void* src, size_t bytes, CUstream stream) {
  KVGPU_BEGIN;
  return copy(dst, reinterpret_cast<uint64_t>(src), bytes, stream);
}

CUresult copy_dtoh(void* dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  KVGPU_BEGIN;
  return copy(reinterpret_cast<uint64_t>(dst), src, bytes, stream);
}

CUresult copy_any(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  KVGPU_BEGIN;
  return copy(dst, src, bytes, stream);
}

void check_rectangle(const char* what, uint64_t base, uint64_t pitch, uint64_t x, uint64_t y,
                     uint64_t width, uint64_t height) {
  if (width == 0 || height == 0) return;
  uint64_t rows, begin, bytes;
  if (__builtin_mul_overflow(y, pitch, &rows) || __builtin_add_overflow(rows, x, &begin) ||
      __builtin_add_overflow(base, begin, &begin) ||
      __builtin_mul_overflow(height - 1, pitch, &bytes) ||
      __builtin_add_overflow(bytes, width, &bytes)) {
    breach(what, base, pitch);
  }
  null_driver().check_memory(what, begin, bytes);
}

CUresult copy_2d(const CUDA_MEMCPY2D* c, CUstream stream) {
  KVGPU_BEGIN;
  accept(stream);
  const auto address = [](CUmemorytype type, const void* host, CUdeviceptr device) {
    return type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host) : uint64_t{device};
  };
  if (c->srcMemoryType == CU_MEMORYTYPE_ARRAY || c->dstMemoryType == CU_MEMORYTYPE_ARRAY) {
    accept(c->srcArray);
    accept(c->dstArray);
    return CUDA_SUCCESS;
  }
  check_rectangle("copied from", address(c->srcMemoryType, c->srcHost, c->srcDevice), c->srcPitch,
                  c->srcXInBytes, c->srcY, c->WidthInBytes, c->Height);
  check_rectangle("copied to", address(c->dstMemoryType, c->dstHost, c->dstDevice), c->dstPitch,
                  c->dstXInBytes, c->dstY, c->WidthInBytes, c->Height);
  return CUDA_SUCCESS;
}

template <typename Value>
CUresult set(CUdeviceptr dst, Value, size_t n, CUstream stream) {
  KVGPU_BEGIN;
  accept(stream);
  null_driver().check_memory("set", dst, n * sizeof(Value));
  return CUDA_SUCCESS;
}

template <typename Value>
CUresult set_2d(CUdeviceptr dst, size_t pitch, Value, size_t width, size_t height,
                CUstream stream) {
  KVGPU_BEGIN;
  accept(stream);
  check_rectangle("set", dst, pitch, 0, 0, width * sizeof(Value), height);
  return CUDA_SUCCESS;
}

CUresult write_value(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned) {
  KVGPU_BEGIN;
  accept(stream);
  if (null_driver().is_progress_word(address)) {
    store_release(*reinterpret_cast<uint64_t*>(address), value);
  } else {
    null_driver().check_memory("written by a stream", address, sizeof value);
  }
  return CUDA_SUCCESS;
}

template <typename Value>
CUresult stream_value(CUstream stream, CUdeviceptr address, Value, unsigned) {
  KVGPU_BEGIN;
  accept(stream);
  null_driver().check_memory("written or waited for by a stream", address, sizeof(Value));
  return CUDA_SUCCESS;
}

CUresult stream_values(CUstream stream, unsigned n, CUstreamBatchMemOpParams* params, unsigned) {
  KVGPU_BEGIN;
  accept(stream);
  for (unsigned i = 0; i < n; ++i) {
    const CUstreamBatchMemOpType operation = params[i].operation;
    const bool has_address = operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
                             operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
                             operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
                             operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    if (has_address) null_driver().check_memory("in a batch", params[i].waitValue.address, 4);
  }
  return CUDA_SUCCESS;
}

void read_extra(void** extra) {
  if (extra == nullptr) return;
  const void* buffer = nullptr;
  size_t bytes = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[1];
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<size_t*>(extra[1]);
  }
  read_bytes(buffer, bytes);
}

CUresult launch(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                unsigned, CUstream stream, void**, void** extra) {
  KVGPU_BEGIN;
  accept(function);
  accept(stream);
  read_extra(extra);
  return CUDA_SUCCESS;
}

CUresult launch_ex(const CUlaunchConfig* config, CUfunction function, void**, void** extra) {
  KVGPU_BEGIN;
  accept(function);
  accept(config->hStream);
  read_bytes(config->attrs, config->numAttrs * sizeof *config->attrs);
  read_extra(extra);
  return CUDA_SUCCESS;
}

CUresult launch_host_function(CUstream stream, CUhostFn function, void* user) {
  KVGPU_BEGIN;
  accept(stream);
  function(user);
  return CUDA_SUCCESS;
}

CUresult add_callback(CUstream stream, CUstreamCallback function, void* user, unsigned) {
  KVGPU_BEGIN;
  accept(stream);
  function(stream, CUDA_SUCCESS, user);
  return CUDA_SUCCESS;
}

template <typename Function>
CUresult function_name(const char** name, Function function) {
  KVGPU_BEGIN;
  accept(function);
  *name = "kernel";
  return CUDA_SUCCESS;
}

template <typename Function>
CUresult param_info(Function function, size_t index, size_t* offset, size_t* bytes) {
  KVGPU_BEGIN;
  accept(function);
  if (index >= 3) return CUDA_ERROR_INVALID_VALUE;
  *offset = index * 8;
  if (bytes != nullptr) *bytes = 8;
  return CUDA_SUCCESS;
}

// Reads as much of an image as it says it has.
void read_image(const void* image) {
  struct Wrapper {
    uint32_t magic, version;
    const unsigned char* data;
  };
  struct Fatbin {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t entries_bytes;
  };
  constexpr uint32_t WRAPPER_MAGIC = 0x466243b1;
  const auto* const wrapper = static_cast<const Wrapper*>(image);
  uint32_t magic = 0;
  for (size_t i = 0; i < sizeof magic; ++i) {  // text may be shorter
    const unsigned char byte = static_cast<const unsigned char*>(image)[i];
    magic |= uint32_t{byte} << (8 * i);
    if (byte == 0) break;
  }
  if (magic == WRAPPER_MAGIC) {
    Fatbin header;
    std::memcpy(&header, wrapper->data, sizeof header);
    read_bytes(wrapper->data, header.header_bytes + header.entries_bytes);
  } else if (std::memcmp(&magic, "\177ELF", sizeof magic) != 0) {
    read_bytes(image, std::strlen(static_cast<const char*>(image)) + 1);
  }
}

CUresult load_module(CUmodule* module, const void* image) {
  KVGPU_BEGIN;
  read_image(image);
  accept(module);
  return CUDA_SUCCESS;
}

// Fills the buffers that the options name, as a compiler that has much to say.
void write_logs(unsigned n, const CUjit_option* options, void** values) {
  char* buffer = nullptr;
  for (unsigned i = 0; i < n; ++i) {
    const CUjit_option option = options[i];
    if (option == CU_JIT_INFO_LOG_BUFFER || option == CU_JIT_ERROR_LOG_BUFFER) {
      buffer = static_cast<char*>(values[i]);
    } else if (option == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES ||
               option == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
      uint32_t bytes;
      std::memcpy(&bytes, &values[i], sizeof bytes);
      if (buffer != nullptr) std::memset(buffer, 'l', bytes);
    }
  }
}

CUresult load_module_ex(CUmodule* module, const void* image, unsigned n, CUjit_option* options,
                        void** values) {
  write_logs(n, options, values);
  return load_module(module, image);
}

CUresult link_create(unsigned n, CUjit_option* options, void** values, CUlinkState* state) {
  KVGPU_BEGIN;
  write_logs(n, options, values);
  accept(state);
  return CUDA_SUCCESS;
}

CUresult link_add(CUlinkState state, CUjitInputType, void* data, size_t bytes, const char* name,
                  unsigned n, CUjit_option* options, void** values) {
  KVGPU_BEGIN;
  accept(state);
  accept(name);
  read_bytes(data, bytes);
  read_bytes(options, n * sizeof *options);
  read_bytes(values, n * sizeof *values);
  return CUDA_SUCCESS;
}

CUresult link_complete(CUlinkState state, void** cubin, size_t* bytes) {
  KVGPU_BEGIN;
  static char made[100];
  accept(state);
  *cubin = made;
  *bytes = sizeof made;
  return CUDA_SUCCESS;
}

CUresult load_library(CUlibrary* library, const void* image, CUjit_option* options, void** values,
                      unsigned n, CUlibraryOption*, void**, unsigned) {
  KVGPU_BEGIN;
  write_logs(n, options, values);
  read_image(image);
  accept(library);
  return CUDA_SUCCESS;
}

void fill_by_hand(worker::DriverTable* t) {
  t->cuDeviceGetCount = device_count;
  t->cuDeviceGet = device_get;
  t->cuDriverGetVersion = driver_version;
  t->cuDeviceGetAttribute = device_attribute;
  t->cuGetErrorName = error_name;
  t->cuMemAlloc_v2 = allocate;
  t->cuMemAllocPitch_v2 = allocate_pitch;
  t->cuMemFree_v2 = free_memory;
  t->cuMemHostRegister_v2 = host_register;
  t->cuMemHostGetDevicePointer_v2 = host_device_pointer;
  t->cuMemcpyHtoDAsync_v2 = copy_htod;
  t->cuMemcpyDtoHAsync_v2 = copy_dtoh;
  t->cuMemcpyDtoDAsync_v2 = copy_any;
  t->cuMemcpyAsync = copy_any;
  t->cuMemcpy2DAsync_v2 = copy_2d;
  t->cuMemsetD8Async = set<unsigned char>;
  t->cuMemsetD16Async = set<unsigned short>;
  t->cuMemsetD32Async = set<unsigned>;
  t->cuMemsetD2D8Async = set_2d<unsigned char>;
  t->cuMemsetD2D16Async = set_2d<unsigned short>;
  t->cuMemsetD2D32Async = set_2d<unsigned>;
  t->cuMemAllocAsync = allocate_async;
  t->cuMemAllocFromPoolAsync = allocate_from_pool;
  t->cuMemFreeAsync = free_async;
  t->cuStreamWriteValue64_v2 = write_value;
  t->cuStreamWriteValue32_v2 = stream_value<cuuint32_t>;
  t->cuStreamWaitValue32_v2 = stream_value<cuuint32_t>;
  t->cuStreamWaitValue64_v2 = stream_value<cuuint64_t>;
  t->cuStreamBatchMemOp_v2 = stream_values;
  t->cuFuncGetName = function_name<CUfunction>;
  t->cuKernelGetName = function_name<CUkernel>;
  t->cuLinkCreate_v2 = link_create;
  t->cuLinkAddData_v2 = link_add;
  t->cuLinkComplete = link_complete;
  t->cuLaunchKernel = launch;
  t->cuLaunchKernelEx = launch_ex;
  t->cuLaunchHostFunc = launch_host_function;
  t->cuStreamAddCallback = add_callback;
  t->cuFuncGetParamInfo = param_info<CUfunction>;
  t->cuKernelGetParamInfo = param_info<CUkernel>;
  t->cuModuleLoadData = load_module;
  t->cuModuleLoadDataEx = load_module_ex;
  t->cuLibraryLoadData = load_library;
}

}  // namespace

void fill_table(worker::DriverTable* table) {
#define KVGPU_FUNCTION(name) table->name = ByType<#name, decltype(table->name)>::call;
#include "driver_functions.inc"
#undef KVGPU_FUNCTION
  fill_by_hand(table);
  fill_graphs(table);
}

}  // namespace kvgpu::fuzz
