// SPDX-License-Identifier: Apache-2.0
// The software GPU with launches that do nothing: what is measured with it is kvgpu's own.
// What is not defined here the worker's dlsym finds in the software GPU, which this library needs.
#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>

namespace {

template <typename Function>
Function* real(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void* const function = library != nullptr ? dlsym(library, name) : nullptr;
  if (function == nullptr) std::abort();
  return reinterpret_cast<Function*>(function);
}

bool is_idle(CUstream stream) {
  static auto* const query = real<decltype(cuStreamQuery)>("cuStreamQuery");
  return query(stream) == CUDA_SUCCESS;
}

}  // namespace

extern "C" CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                   unsigned, unsigned, CUstream, void**, void**) {
  return CUDA_SUCCESS;
}

extern "C" CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec, CUgraphNode,
                                                      const CUDA_KERNEL_NODE_PARAMS*) {
  return CUDA_SUCCESS;
}

extern "C" CUresult cuGraphLaunch(CUgraphExec, CUstream) { return CUDA_SUCCESS; }

// Nothing that is measured with this driver captures.
extern "C" CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

// What stands behind launches only is done at once, too.
extern "C" CUresult cuEventRecord(CUevent event, CUstream stream) {
  static auto* const record = real<decltype(cuEventRecord)>("cuEventRecord");
  return is_idle(stream) ? CUDA_SUCCESS : record(event, stream);
}

extern "C" CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr to, cuuint64_t value,
                                            unsigned flags) {
  static auto* const write = real<decltype(cuStreamWriteValue64_v2)>("cuStreamWriteValue64_v2");
  if (!is_idle(stream)) return write(stream, to, value, flags);
  std::atomic_ref(*reinterpret_cast<cuuint64_t*>(to)).store(value, std::memory_order_release);
  return CUDA_SUCCESS;
}
