// SPDX-License-Identifier: Apache-2.0
// A libcuda that is the software GPU with planted failures: a call that fails does nothing else.
//   KVGPU_FAULT=cuLaunchKernel:N:ERROR    the N-th launch returns ERROR
//   KVGPU_FAULT=cuLaunchKernel:N:ERROR:MS the same, after so long
//   KVGPU_SLOW=cuLaunchKernel:US          each launch takes so long, so that others come meanwhile
//   KVGPU_FAULTS=NAME:ERROR,NAME:ERROR... a program chooses when: cuMemsetD32Async with the value
//                                         FAULT_SEED + n plants up to three of them at calls that
//                                         the seed chooses; FAULT_SEED + 0xffff plants none any
//                                         more
// What is not defined here the worker's dlsym finds in the software GPU, which this library needs.
#include <cuda.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "faults/fault_seed.h"

namespace {

struct Fault {
  std::string function;
  int error;
  int calls_to_go;
  int delay_ms = 0;
};

class Plan {
 public:
  Plan() {
    char function[64];
    int at = 0, error = 0, delay_ms = 0;
    const char* one = std::getenv("KVGPU_FAULT");
    if (one != nullptr &&
        std::sscanf(one, "%63[^:]:%d:%d:%d", function, &at, &error, &delay_ms) >= 3) {
      planted_.push_back({function, error, at, delay_ms});
    }
    const char* slow = std::getenv("KVGPU_SLOW");
    if (slow != nullptr && std::sscanf(slow, "%63[^:]:%d", function, &slow_us_) == 2) {
      slow_ = function;
    }
    const char* rest = std::getenv("KVGPU_FAULTS");
    for (int n = 0; rest != nullptr && std::sscanf(rest, "%63[^:]:%d%n", function, &error, &n) == 2;
         rest += n + (rest[n] == ',')) {
      known_.push_back({function, error, 0, 0});
    }
  }

  // What this call returns in place of its work; CUDA_SUCCESS: it works.
  CUresult of(const char* function) {
    if (slow_ == function) std::this_thread::sleep_for(std::chrono::microseconds(slow_us_));
    const std::lock_guard lock(mutex_);
    for (Fault& fault : planted_) {
      if (fault.function == function && --fault.calls_to_go == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(fault.delay_ms));
        std::fprintf(stderr, "fault_driver: %s fails\n", function);
        return static_cast<CUresult>(fault.error);
      }
    }
    return CUDA_SUCCESS;
  }

  void plant(unsigned seed) {
    const std::lock_guard lock(mutex_);
    planted_.clear();
    if (seed == fault::NONE || known_.empty()) return;
    std::mt19937 random(seed);
    for (unsigned i = 0; i <= seed % 3; ++i) {
      // Each in turn, so that a few seeds see all.
      planted_.push_back(known_[(seed + i * 7) % known_.size()]);
      planted_.back().calls_to_go = 1 + static_cast<int>(random() % 12);
    }
  }

 private:
  std::mutex mutex_;
  std::vector<Fault> planted_, known_;
  std::string slow_;
  int slow_us_ = 0;
};

Plan& plan() {
  static auto& the_plan = *new Plan;
  return the_plan;
}

void* real(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void* const function = library != nullptr ? dlsym(library, name) : nullptr;
  if (function == nullptr) std::abort();
  return function;
}

// NOLINTBEGIN(bugprone-macro-parentheses): lists of parameters
#define MAY_FAIL(name, parameters, arguments)                                \
  extern "C" CUresult name parameters {                                      \
    static const auto work = reinterpret_cast<decltype(&name)>(real(#name)); \
    const CUresult planted = plan().of(#name);                               \
    return planted != CUDA_SUCCESS ? planted : work arguments;               \
  }
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace

MAY_FAIL(cuLaunchKernel,
         (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
          unsigned bz, unsigned shared, CUstream stream, void** params, void** extra),
         (f, gx, gy, gz, bx, by, bz, shared, stream, params, extra))
MAY_FAIL(cuLaunchKernelEx,
         (const CUlaunchConfig* config, CUfunction f, void** params, void** extra),
         (config, f, params, extra))
MAY_FAIL(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void* user),
         (stream, function, user))
MAY_FAIL(cuStreamAddCallback,
         (CUstream stream, CUstreamCallback callback, void* user, unsigned flags),
         (stream, callback, user, flags))
MAY_FAIL(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void* from, size_t n, CUstream stream),
         (to, from, n, stream))
MAY_FAIL(cuMemcpyDtoHAsync_v2, (void* to, CUdeviceptr from, size_t n, CUstream stream),
         (to, from, n, stream))
MAY_FAIL(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D* copy, CUstream stream), (copy, stream))
MAY_FAIL(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D* copy, CUstream stream), (copy, stream))
MAY_FAIL(cuMemcpyPeerAsync,
         (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t n,
          CUstream stream),
         (to, to_context, from, from_context, n, stream))
MAY_FAIL(cuMemMapArrayAsync, (CUarrayMapInfo * list, unsigned n, CUstream stream),
         (list, n, stream))
MAY_FAIL(cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream), (pointer, stream))
MAY_FAIL(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream),
         (to, from, n, stream))
MAY_FAIL(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t n, CUstream stream),
         (to, value, n, stream))
MAY_FAIL(cuMemsetD16Async, (CUdeviceptr to, unsigned short value, size_t n, CUstream stream),
         (to, value, n, stream))
MAY_FAIL(cuMemsetD2D8Async,
         (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
          CUstream stream),
         (to, pitch, value, width, height, stream))
MAY_FAIL(cuMemsetD2D16Async,
         (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
          CUstream stream),
         (to, pitch, value, width, height, stream))
MAY_FAIL(cuMemsetD2D32Async,
         (CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height,
          CUstream stream),
         (to, pitch, value, width, height, stream))
MAY_FAIL(cuStreamWriteValue32_v2,
         (CUstream stream, CUdeviceptr to, cuuint32_t value, unsigned flags),
         (stream, to, value, flags))
MAY_FAIL(cuStreamWriteValue64_v2,
         (CUstream stream, CUdeviceptr to, cuuint64_t value, unsigned flags),
         (stream, to, value, flags))
MAY_FAIL(cuStreamWaitValue32_v2,
         (CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags),
         (stream, at, value, flags))
MAY_FAIL(cuStreamWaitValue64_v2,
         (CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags),
         (stream, at, value, flags))
MAY_FAIL(cuStreamBatchMemOp_v2,
         (CUstream stream, unsigned n, CUstreamBatchMemOpParams* operations, unsigned flags),
         (stream, n, operations, flags))
MAY_FAIL(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), (context, device))
MAY_FAIL(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned flags), (device, flags))
MAY_FAIL(cuStreamCreate, (CUstream * stream, unsigned flags), (stream, flags))
MAY_FAIL(cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority),
         (stream, flags, priority))
MAY_FAIL(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags),
         (stream, event, flags))
MAY_FAIL(cuEventCreate, (CUevent * event, unsigned flags), (event, flags))
MAY_FAIL(cuEventRecord, (CUevent event, CUstream stream), (event, stream))
MAY_FAIL(cuGraphUpload, (CUgraphExec exec, CUstream stream), (exec, stream))
MAY_FAIL(cuGraphLaunch, (CUgraphExec exec, CUstream stream), (exec, stream))
MAY_FAIL(cuGraphAddKernelNode_v2,
         (CUgraphNode * node, CUgraph graph, const CUgraphNode* after, size_t n_after,
          const CUDA_KERNEL_NODE_PARAMS* params),
         (node, graph, after, n_after, params))
MAY_FAIL(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags),
         (exec, graph, flags))
MAY_FAIL(cuGraphExecKernelNodeSetParams_v2,
         (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params),
         (exec, node, params))

extern "C" CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t n, CUstream stream) {
  static const auto work = reinterpret_cast<decltype(&cuMemsetD32Async)>(real("cuMemsetD32Async"));
  if ((value & ~0xffffu) == fault::SEED) {
    plan().plant(value & 0xffffu);
    return work(to, value, n, stream);
  }
  const CUresult planted = plan().of("cuMemsetD32Async");
  return planted != CUDA_SUCCESS ? planted : work(to, value, n, stream);
}
