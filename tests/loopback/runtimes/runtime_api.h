// SPDX-License-Identifier: Apache-2.0
// The part of a CUDA runtime that runtime_program.cpp calls, by name from a shared library, and
// NVRTC. Declared here: one program for the runtimes of 11.8, 12 and 13, whose headers differ.
// Values and layouts are those that all three document.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

// `as_returned` or the end of the program with the loader's message.
inline void* open_library(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(2);
  }
  return library;
}

// One function of a library; calls end the program if there is none of that name.
template <typename Result, typename... Arguments>
class Function {
 public:
  Function(void* library, const char* name)
      : function_(reinterpret_cast<Result (*)(Arguments...)>(dlsym(library, name))) {
    if (function_ == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::exit(2);
    }
  }
  Result operator()(Arguments... arguments) const { return function_(arguments...); }

 private:
  Result (*function_)(Arguments...);
};

using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;
using Graph = struct CUgraph_st*;
using GraphExec = struct CUgraphExec_st*;

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct PointerAttributes {  // since 11.0; 13.0 has reserved words behind it
  int type;
  int device;
  void* device_pointer;
  void* host_pointer;
  long reserved[8];
};
enum : int { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, DEVICE_TO_DEVICE = 3 };
enum : int { MEMORY_HOST = 1, MEMORY_DEVICE = 2 };
enum : int { SUCCESS = 0, INVALID_VALUE = 1, NOT_READY = 600 };
enum : unsigned { NON_BLOCKING = 1 };
enum : int { ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75 };

struct Runtime {
  explicit Runtime(void* l) : library(l) {}

#define RUNTIME_FUNCTION(member, name, ...) \
  Function<__VA_ARGS__> member { library, #name }

  void* library;
  RUNTIME_FUNCTION(runtime_version, cudaRuntimeGetVersion, int, int*);
  RUNTIME_FUNCTION(error_name, cudaGetErrorName, const char*, int);
  RUNTIME_FUNCTION(last_error, cudaGetLastError, int);
  RUNTIME_FUNCTION(device_count, cudaGetDeviceCount, int, int*);
  RUNTIME_FUNCTION(device_attribute, cudaDeviceGetAttribute, int, int*, int, int);
  RUNTIME_FUNCTION(device_synchronize, cudaDeviceSynchronize, int);
  RUNTIME_FUNCTION(device_reset, cudaDeviceReset, int);
  RUNTIME_FUNCTION(memory_info, cudaMemGetInfo, int, size_t*, size_t*);
  RUNTIME_FUNCTION(allocate, cudaMalloc, int, void**, size_t);
  RUNTIME_FUNCTION(free, cudaFree, int, void*);
  RUNTIME_FUNCTION(allocate_async, cudaMallocAsync, int, void**, size_t, Stream);
  RUNTIME_FUNCTION(free_async, cudaFreeAsync, int, void*, Stream);
  RUNTIME_FUNCTION(host_allocate, cudaHostAlloc, int, void**, size_t, unsigned);
  RUNTIME_FUNCTION(host_free, cudaFreeHost, int, void*);
  RUNTIME_FUNCTION(pointer_attributes, cudaPointerGetAttributes, int, PointerAttributes*,
                   const void*);
  RUNTIME_FUNCTION(copy, cudaMemcpy, int, void*, const void*, size_t, int);
  RUNTIME_FUNCTION(copy_async, cudaMemcpyAsync, int, void*, const void*, size_t, int, Stream);
  RUNTIME_FUNCTION(copy_2d, cudaMemcpy2D, int, void*, size_t, const void*, size_t, size_t, size_t,
                   int);
  RUNTIME_FUNCTION(set_async, cudaMemsetAsync, int, void*, int, size_t, Stream);
  RUNTIME_FUNCTION(stream_create, cudaStreamCreateWithFlags, int, Stream*, unsigned);
  RUNTIME_FUNCTION(stream_synchronize, cudaStreamSynchronize, int, Stream);
  RUNTIME_FUNCTION(stream_wait, cudaStreamWaitEvent, int, Stream, Event, unsigned);
  RUNTIME_FUNCTION(stream_destroy, cudaStreamDestroy, int, Stream);
  RUNTIME_FUNCTION(begin_capture, cudaStreamBeginCapture, int, Stream, int);
  RUNTIME_FUNCTION(end_capture, cudaStreamEndCapture, int, Stream, Graph*);
  RUNTIME_FUNCTION(instantiate, cudaGraphInstantiateWithFlags, int, GraphExec*, Graph,
                   unsigned long long);
  RUNTIME_FUNCTION(graph_launch, cudaGraphLaunch, int, GraphExec, Stream);
  RUNTIME_FUNCTION(graph_exec_destroy, cudaGraphExecDestroy, int, GraphExec);
  RUNTIME_FUNCTION(graph_destroy, cudaGraphDestroy, int, Graph);
  RUNTIME_FUNCTION(event_create, cudaEventCreate, int, Event*);
  RUNTIME_FUNCTION(event_record, cudaEventRecord, int, Event, Stream);
  RUNTIME_FUNCTION(event_query, cudaEventQuery, int, Event);
  RUNTIME_FUNCTION(event_synchronize, cudaEventSynchronize, int, Event);
  RUNTIME_FUNCTION(event_elapsed, cudaEventElapsedTime, int, float*, Event, Event);
  RUNTIME_FUNCTION(event_destroy, cudaEventDestroy, int, Event);
  RUNTIME_FUNCTION(host_function, cudaLaunchHostFunc, int, Stream, void (*)(void*), void*);
  RUNTIME_FUNCTION(launch, cudaLaunchKernel, int, const void*, Dim3, Dim3, void**, size_t, Stream);
  RUNTIME_FUNCTION(occupancy, cudaOccupancyMaxActiveBlocksPerMultiprocessor, int, int*, const void*,
                   int, size_t);
  // What nvcc's output calls before main().
  RUNTIME_FUNCTION(register_fatbin, __cudaRegisterFatBinary, void**, const void*);
  RUNTIME_FUNCTION(register_function, __cudaRegisterFunction, void, void**, const char*, char*,
                   const char*, int, void*, void*, Dim3*, Dim3*, int*);
  RUNTIME_FUNCTION(register_end, __cudaRegisterFatBinaryEnd, void, void**);
  RUNTIME_FUNCTION(unregister_fatbin, __cudaUnregisterFatBinary, void, void**);
#undef RUNTIME_FUNCTION
};

// The PTX of a source for compute_80.
std::string compile_to_ptx(const char* nvrtc_path, const char* source);
