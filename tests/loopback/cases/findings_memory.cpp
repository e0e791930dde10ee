// SPDX-License-Identifier: Apache-2.0
// What random programs of calls (tests/differential) have found about memory.
#include "support.h"

TEST_CASE("found: memory where an unloaded module's variable was") {
  const Gpu gpu;
  CUmodule module = nullptr;
  CUdeviceptr variable = 0;
  size_t bytes = 0;
  CU(cuModuleLoadData(&module, kernels_ptx()));
  CU(cuModuleGetGlobal(&variable, &bytes, module, "counter"));
  CU(cuModuleUnload(module));
  constexpr size_t PIECE_BYTES = 1 << 16;
  std::vector<CUdeviceptr> pieces(64);  // the driver may give its address to any of these
  for (CUdeviceptr& piece : pieces) {
    CU(cuMemAlloc(&piece, PIECE_BYTES));
    CU(cuMemsetD8(piece + PIECE_BYTES - 8, 1, 8));
    CU(cuCtxSynchronize());
  }
  for (const CUdeviceptr piece : pieces) CU(cuMemFree(piece));
}

TEST_CASE("found: no pool is trimmed, none destroyed") {
  const Gpu gpu;
  CU_IS(cuMemPoolTrimTo(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemPoolDestroy(nullptr), CUDA_ERROR_INVALID_VALUE);
}
