// SPDX-License-Identifier: Apache-2.0
// The software GPU's reading of fat binaries: nothing beyond the image is read, and what comes out
// is a text without a NUL.
#include "fatbin.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace software_gpu;
  // A copy without anything behind it: reading on is seen. The wrapper holds a pointer, which a
  // file cannot, and so is no input here.
  const std::unique_ptr<char[]> image(new char[size]);
  std::copy(data, data + size, image.get());
  std::string ptx;
  const CUresult result = fatbin::extract_ptx(image.get(), size, false, &ptx);
  if (result == CUDA_SUCCESS && ptx.find('\0') != std::string::npos) std::abort();
  return 0;
}
