// SPDX-License-Identifier: Apache-2.0
// The null driver's functions: by hand where an argument can do harm, else made from the types of
// the arguments.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <typeinfo>

#include "kvgpu/barrier.h"
#include "kvgpu/layout.h"
#include "null_driver.h"

namespace kvgpu::fuzz {

namespace {

// ---- by type
template <typename T>
concept Handle =
    std::is_same_v<T, CUcontext> || std::is_same_v<T, CUmodule> || std::is_same_v<T, CUlibrary> ||
    std::is_same_v<T, CUfunction> || std::is_same_v<T, CUkernel> || std::is_same_v<T, CUstream> ||
    std::is_same_v<T, CUevent> || std::is_same_v<T, CUgraph> || std::is_same_v<T, CUgraphExec> ||
    std::is_same_v<T, CUgraphNode> || std::is_same_v<T, CUmemoryPool> ||
    std::is_same_v<T, CUarray> || std::is_same_v<T, CUmipmappedArray> ||
    std::is_same_v<T, CUlinkState> || std::is_same_v<T, CUuserObject> ||
    std::is_same_v<T, CUexternalMemory> || std::is_same_v<T, CUexternalSemaphore> ||
    std::is_same_v<T, CUgreenCtx> || std::is_same_v<T, CUtexref> || std::is_same_v<T, CUsurfref> ||
    std::is_same_v<T, CUgraphicsResource> || std::is_same_v<T, CUdevResourceDesc> ||
    std::is_same_v<T, CUasyncCallbackHandle> || std::is_same_v<T, CUlogsCallbackHandle>;

template <typename T>
constexpr const char* type_name() {
  if constexpr (std::is_same_v<T, CUfunction>) return "CUfunc_st";
  if constexpr (std::is_same_v<T, CUkernel>) return "CUkern_st";
  return typeid(T).name();
}

void read_bytes(const void* from, size_t n) {
  const auto* bytes = static_cast<const volatile unsigned char*>(from);
  for (size_t i = 0; i < n; ++i) (void)bytes[i];
}

template <typename T>
void accept(T argument) {
  if constexpr (Handle<T>) {
    null_driver().check_handle(type_name<T>(), argument);
  } else if constexpr (std::is_same_v<T, const char*>) {
    if (argument != nullptr) read_bytes(argument, std::strlen(argument) + 1);
  } else if constexpr (std::is_pointer_v<T>) {
    using To = std::remove_pointer_t<T>;
    if constexpr (!std::is_void_v<To> && !std::is_function_v<To>) {
      if (argument == nullptr) return;
      if constexpr (std::is_const_v<To>) {
        read_bytes(argument, sizeof(To));
      } else if constexpr (Handle<To>) {
        *argument = static_cast<To>(null_driver().make_handle(type_name<To>()));
      } else if constexpr (std::is_same_v<To, CUdeviceptr>) {
        uint64_t address = 0;
        if (null_driver().allocate(&address, PAGE_BYTES) == CUDA_SUCCESS) *argument = address;
      } else if constexpr (std::is_same_v<To, char>) {
        *argument = '\0';
      } else if constexpr (std::is_arithmetic_v<To> || std::is_enum_v<To>) {
        *argument = static_cast<To>(1);
      } else {
        std::memset(static_cast<void*>(argument), 0, sizeof(To));
      }
    }
  }
}

template <typename T>
void forget(T argument) {
  if constexpr (Handle<T>) null_driver().forget_handle(argument);
}

template <size_t N>
struct Text {
  char value[N];
  constexpr Text(const char (&text)[N]) { std::copy_n(text, N, value); }
};

template <Text name, typename Function>
struct ByType;
template <Text name, typename... Arguments>
struct ByType<name, CUresult (*)(Arguments...)> {
  static CUresult call(Arguments... arguments) {
    if (const CUresult bad = null_driver().begin(name.value)) return bad;
    (accept(arguments), ...);
    constexpr std::string_view NAME = name.value;
    if (NAME.find("Destroy") != NAME.npos || NAME.find("Unload") != NAME.npos) {
      (forget(arguments), ...);
    }
    return CUDA_SUCCESS;
  }
};

// ---- by hand
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
  null_driver().check_progress_word(address);
  store_release(*reinterpret_cast<uint64_t*>(address), value);
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

CUresult load_module_ex(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  return load_module(module, image);
}

CUresult load_library(CUlibrary* library, const void* image, CUjit_option*, void**, unsigned,
                      CUlibraryOption*, void**, unsigned) {
  KVGPU_BEGIN;
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
  t->cuStreamWriteValue64_v2 = write_value;
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
}

}  // namespace kvgpu::fuzz
