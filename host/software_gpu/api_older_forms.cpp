// SPDX-License-Identifier: Apache-2.0
// The forms of CUDA before 3.2, whose addresses and sizes have 32 bits: every context here is of
// today, and to those they answer all the same, whatever they are given. No cuda.h here, which
// declares them with their parameters.
extern "C" int cuCtxGetDevice(int* device);
extern "C" int cuModuleGetFunctionCount(unsigned* count, void* module);

namespace {

int wrong_context() {
  int device;
  const int bad = cuCtxGetDevice(&device);
  return bad != 0 ? bad : 201;  // CUDA_ERROR_INVALID_CONTEXT
}

}  // namespace

#define OLDER_FORM(name) \
  extern "C" __attribute__((visibility("default"))) int name() { return wrong_context(); }

OLDER_FORM(cuMemAlloc)
OLDER_FORM(cuMemAllocHost)
OLDER_FORM(cuMemAllocPitch)
OLDER_FORM(cuMemFree)
OLDER_FORM(cuMemGetInfo)
OLDER_FORM(cuMemGetAddressRange)
OLDER_FORM(cuMemHostGetDevicePointer)
OLDER_FORM(cuMemcpyHtoD)
OLDER_FORM(cuMemcpyDtoH)
OLDER_FORM(cuMemcpyDtoD)
OLDER_FORM(cuMemcpyHtoDAsync)
OLDER_FORM(cuMemcpyDtoHAsync)
OLDER_FORM(cuMemcpyDtoDAsync)
OLDER_FORM(cuMemcpyDtoA)
OLDER_FORM(cuMemcpyAtoD)
OLDER_FORM(cuMemcpyHtoA)
OLDER_FORM(cuMemcpyAtoH)
OLDER_FORM(cuMemcpyAtoA)
OLDER_FORM(cuMemcpyHtoAAsync)
OLDER_FORM(cuMemcpyAtoHAsync)
OLDER_FORM(cuMemcpy2D)
OLDER_FORM(cuMemcpy2DUnaligned)
OLDER_FORM(cuMemcpy2DAsync)
OLDER_FORM(cuMemcpy3D)
OLDER_FORM(cuMemcpy3DAsync)
OLDER_FORM(cuMemsetD8)
OLDER_FORM(cuMemsetD16)
OLDER_FORM(cuMemsetD32)
OLDER_FORM(cuMemsetD2D8)
OLDER_FORM(cuMemsetD2D16)
OLDER_FORM(cuMemsetD2D32)
OLDER_FORM(cuArrayCreate)
OLDER_FORM(cuArray3DCreate)
OLDER_FORM(cuArrayGetDescriptor)
OLDER_FORM(cuArray3DGetDescriptor)
OLDER_FORM(cuTexRefSetAddress)
OLDER_FORM(cuTexRefSetAddress2D)
OLDER_FORM(cuTexRefGetAddress)

// The module is looked at first.
extern "C" __attribute__((visibility("default"))) int cuModuleGetGlobal(void*, void*, void* module,
                                                                        const char*) {
  unsigned count;
  const int bad = cuModuleGetFunctionCount(&count, module);
  return bad != 0 ? bad : wrong_context();
}

// Of contexts of that time only, too.
extern "C" __attribute__((visibility("default"))) int cuCtxPushCurrent(const void* context) {
  return context ? 201 : 1;  // CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE
}
