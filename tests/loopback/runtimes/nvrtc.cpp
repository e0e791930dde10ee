// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "runtime_api.h"

namespace {

void must(int nvrtc_result, const char* what) {
  if (nvrtc_result == 0) return;
  std::fprintf(stderr, "%s: NVRTC error %d\n", what, nvrtc_result);
  std::exit(2);
}

}  // namespace

std::string compile_to_ptx(const char* nvrtc_path, const char* source) {
  void* const library = open_library(nvrtc_path);
  using Program = void*;
  const Function<int, Program*, const char*, const char*, int, const char**, const char**> create{
      library, "nvrtcCreateProgram"};
  const Function<int, Program, int, const char* const*> compile{library, "nvrtcCompileProgram"};
  const Function<int, Program, size_t*> ptx_size{library, "nvrtcGetPTXSize"};
  const Function<int, Program, char*> get_ptx{library, "nvrtcGetPTX"};
  const Function<int, Program*> destroy{library, "nvrtcDestroyProgram"};

  Program program;
  must(create(&program, source, "kernels.cu", 0, nullptr, nullptr), "nvrtcCreateProgram");
  const char* const options[] = {"--gpu-architecture=compute_80"};
  must(compile(program, 1, options), "nvrtcCompileProgram");
  size_t n_bytes;
  must(ptx_size(program, &n_bytes), "nvrtcGetPTXSize");
  std::string ptx(n_bytes, '\0');
  must(get_ptx(program, ptx.data()), "nvrtcGetPTX");
  must(destroy(&program), "nvrtcDestroyProgram");
  return ptx;
}
