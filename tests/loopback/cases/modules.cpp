// SPDX-License-Identifier: Apache-2.0
// Images: from files, with JIT options and logs, through the JIT linker; what can be asked of them.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "../runtimes/fatbin.h"
#include "support.h"

// What CUDA 13.0 calls deprecated is still called by programs.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

constexpr char OTHER_PTX[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry other()\n{\n  ret;\n}\n";
constexpr char BROKEN_PTX[] = ".version 8.0\n.target sm_80\n.address_size 64\nnonsense\n";

// A file that holds the PTX of the cases, for the time of a case.
class PtxFile {
 public:
  PtxFile() {
    const int fd = mkstemp(path_);
    REQUIRE(fd >= 0);
    const char* ptx = kernels_ptx();
    REQUIRE(write(fd, ptx, std::strlen(ptx)) == static_cast<ssize_t>(std::strlen(ptx)));
    close(fd);
  }
  ~PtxFile() { unlink(path_); }
  const char* path() const { return path_; }

 private:
  char path_[32] = "/tmp/kvgpu-case-XXXXXX";
};

void check_runs(CUfunction function, int expected) {
  const Ints out(1);
  CUdeviceptr dptr = out.dptr;
  launch(function, nullptr, {&dptr});
  CHECK(out.read()[0] == expected);
}

void* number(size_t value) { return reinterpret_cast<void*>(value); }

}  // namespace

TEST_CASE("module: from a file, and a library from a file") {
  const Gpu gpu;
  const PtxFile file;
  CUmodule module;
  CU(cuModuleLoad(&module, file.path()));
  CUfunction function;
  CU(cuModuleGetFunction(&function, module, "read_counter"));
  check_runs(function, 7);
  CU(cuModuleUnload(module));
  CU_IS(cuModuleLoad(&module, "/nonexistent/kernels.cubin"), CUDA_ERROR_FILE_NOT_FOUND);
  CUlibrary library;
  CU(cuLibraryLoadFromFile(&library, file.path(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel;
  CU(cuLibraryGetKernel(&kernel, library, "read_counter"));
  CUlibrary owner = nullptr;
  CU(cuKernelGetLibrary(&owner, kernel));
  CHECK(owner == library);
  check_runs(reinterpret_cast<CUfunction>(kernel), 7);
  CU(cuLibraryUnload(library));
}

TEST_CASE("module: JIT options, logs and the time it took") {
  const Gpu gpu;
  char info[2048] = "", error[2048] = "";
  CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER,  CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_LOG_VERBOSE,      CU_JIT_OPTIMIZATION_LEVEL,
                            CU_JIT_WALL_TIME};
  const auto values = [&] {
    return std::vector<void*>{info,      number(sizeof info), error,  number(sizeof error),
                              number(1), number(2),           nullptr};
  };
  CUmodule module;
  auto good = values();
  CU(cuModuleLoadDataEx(&module, kernels_ptx(), 7, options, good.data()));
  CHECK(reinterpret_cast<size_t>(good[1]) <= sizeof info);
  CHECK(reinterpret_cast<size_t>(good[3]) <= sizeof error);
  CUfunction function;
  CU(cuModuleGetFunction(&function, module, "read_counter"));
  check_runs(function, 7);
  CU(cuModuleUnload(module));
  auto bad = values();
  CU_IS(cuModuleLoadDataEx(&module, BROKEN_PTX, 7, options, bad.data()), CUDA_ERROR_INVALID_PTX);
  CHECK(std::strlen(error) > 0);
  CHECK(std::strstr(error, "nonsense") != nullptr);
}

// What nvcc leaves in a program names its fat binary; driver 580 loads libraries from it alone.
TEST_CASE("module: a fat binary, and what names one in a program") {
  const Gpu gpu;
  const std::string fatbin = make_fatbin(kernels_ptx());
  const FatbinWrapper wrapper{0x466243b1, 1, fatbin.data(), nullptr};
  CUmodule module;
  CUfunction function;
  CU(cuModuleLoadData(&module, fatbin.data()));
  CU(cuModuleGetFunction(&function, module, "read_counter"));
  check_runs(function, 7);
  CU(cuModuleUnload(module));
  CU(cuModuleLoadFatBinary(&module, fatbin.data()));
  CU(cuModuleUnload(module));
  CU_IS(cuModuleLoadData(&module, &wrapper), CUDA_ERROR_INVALID_IMAGE);
  CU_IS(cuModuleLoadFatBinary(&module, &wrapper), CUDA_ERROR_INVALID_IMAGE);
  const std::string unlinked = make_fatbin(OTHER_PTX);
  const void* prelinked[] = {unlinked.data(), nullptr};
  const FatbinWrapper linked{0x466243b1, 2, fatbin.data(), prelinked};
  for (const void* image :
       {static_cast<const void*>(fatbin.data()), static_cast<const void*>(&wrapper),
        static_cast<const void*>(&linked)}) {
    CUlibrary library;
    CUkernel kernel;
    CU(cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CU(cuLibraryGetKernel(&kernel, library, "read_counter"));
    check_runs(reinterpret_cast<CUfunction>(kernel), 7);
    CU(cuLibraryUnload(library));
  }
}

// What nvcc -rdc=true leaves for a GPU that is newer than what nvlink was told of.
TEST_CASE("module: without linked code for this GPU, its parts are linked") {
  const Gpu gpu;
  constexpr size_t ARCHITECTURE = 44;
  std::string for_others = make_fatbin(OTHER_PTX);
  for_others[ARCHITECTURE] = 121;
  const std::string part = make_fatbin(kernels_ptx()), other = make_fatbin(OTHER_PTX);
  const void* prelinked[] = {part.data(), other.data(), nullptr};
  const FatbinWrapper wrapper{0x466243b1, 2, for_others.data(), prelinked};
  CUlibrary library;
  CUkernel kernel;
  CU(cuLibraryLoadData(&library, &wrapper, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CU(cuLibraryGetKernel(&kernel, library, "other"));
  CU(cuLibraryGetKernel(&kernel, library, "read_counter"));
  check_runs(reinterpret_cast<CUfunction>(kernel), 7);
  CU(cuLibraryUnload(library));
}

TEST_CASE("module: newer PTX, no image at all") {
  const Gpu gpu;
  CUmodule module;
  CU_IS(cuModuleLoadData(&module, ".version 99.0\n.target sm_80\n.address_size 64\n"),
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
  CU_IS(cuModuleLoadData(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuModuleLoadDataEx(nullptr, kernels_ptx(), 0, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("module: its functions are listed; a library's kernels, too") {
  const Gpu gpu;
  unsigned n = 0;
  CU(cuModuleGetFunctionCount(&n, gpu.module));
  REQUIRE(n >= 6);
  std::vector<CUfunction> functions(n);
  CU(cuModuleEnumerateFunctions(functions.data(), n, gpu.module));
  std::vector<std::string> names;
  for (CUfunction function : functions) {
    const char* name = nullptr;
    CU(cuFuncGetName(&name, function));
    names.emplace_back(name);
  }
  CHECK(std::count(names.begin(), names.end(), "add_one") == 1);
  CHECK(std::count(names.begin(), names.end(), "read_counter") == 1);
  CUlibrary library;
  CU(cuLibraryLoadData(&library, kernels_ptx(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  unsigned n_kernels = 0;
  CU(cuLibraryGetKernelCount(&n_kernels, library));
  CHECK(n_kernels == n);
  std::vector<CUkernel> kernels(n_kernels);
  CU(cuLibraryEnumerateKernels(kernels.data(), n_kernels, library));
  const char* name = nullptr;
  CU(cuKernelGetName(&name, kernels[0]));
  CHECK(std::count(names.begin(), names.end(), name) == 1);
  CU(cuLibraryUnload(library));
}

TEST_CASE("module: the JIT linker makes an image of two inputs") {
  const Gpu gpu;
  constexpr char SECOND[] =
      ".version 8.0\n.target sm_80\n.address_size 64\n"
      ".visible .entry write_nine(.param .u64 out)\n"
      "{\n.reg .u64 %rd<3>;\n.reg .u32 %r<2>;\n"
      "ld.param.u64 %rd1, [out];\ncvta.to.global.u64 %rd2, %rd1;\nmov.u32 %r1, 9;\n"
      "st.global.u32 [%rd2], %r1;\nret;\n}\n";
  const PtxFile file;
  char error[1024] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {error, number(sizeof error)};
  CUlinkState state;
  CU(cuLinkCreate(2, options, values, &state));
  CU(cuLinkAddFile(state, CU_JIT_INPUT_PTX, file.path(), 0, nullptr, nullptr));
  CU(cuLinkAddData(state, CU_JIT_INPUT_PTX, const_cast<char*>(SECOND), sizeof SECOND, "second", 0,
                   nullptr, nullptr));
  void* image = nullptr;
  size_t bytes = 0;
  CU(cuLinkComplete(state, &image, &bytes));
  CHECK(bytes > 0);
  CUmodule module;
  CU(cuModuleLoadData(&module, image));
  CUfunction function;
  CU(cuModuleGetFunction(&function, module, "write_nine"));
  check_runs(function, 9);
  CU(cuModuleGetFunction(&function, module, "read_counter"));
  check_runs(function, 7);
  CU(cuLinkDestroy(state));
  CU(cuModuleUnload(module));

  void* again[] = {error, number(sizeof error)};
  CU(cuLinkCreate(2, options, again, &state));
  CHECK(cuLinkAddData(state, CU_JIT_INPUT_PTX, const_cast<char*>(BROKEN_PTX), sizeof BROKEN_PTX,
                      "broken", 0, nullptr, nullptr) == CUDA_ERROR_INVALID_PTX);
  CHECK(std::strlen(error) > 0);
  CU(cuLinkDestroy(state));
}

TEST_CASE("module: linked inputs have names of their own, and use each other's") {
  const Gpu gpu;
  const std::string header = ".version 8.0\n.target sm_80\n.address_size 64\n";
  const auto entry = [](const std::string& name, const std::string& code) {
    return ".visible .entry " + name +
           "(.param .u64 out)\n{\n.reg .u64 %rd<3>;\n.reg .u32 %r<4>;\n"
           "ld.param.u64 %rd1, [out];\ncvta.to.global.u64 %rd2, %rd1;\n"
           "ld.global.u32 %r1, [own];\nld.global.u32 %r2, [both];\nadd.u32 %r1, %r1, %r2;\n" +
           code + "st.global.u32 [%rd2], %r1;\nret;\n}\n";
  };
  std::string inputs[] = {
      header +
          ".extern .func (.param .b32 result) from_second();\n"
          ".weak .global .align 4 .u32 both = 40;\n.global .align 4 .u32 own = 1;\n" +
          entry("first",
                "{\n.param .b32 result;\ncall.uni (result), from_second, ();\n"
                "ld.param.b32 %r3, [result];\n}\nadd.u32 %r1, %r1, %r3;\n"),
      header +
          ".weak .global .align 4 .u32 both = 40;\n.global .align 4 .u32 own = 2;\n"
          ".visible .func (.param .b32 result) from_second()\n{\n.reg .u32 %r<3>;\n"
          "ld.global.u32 %r1, [own];\nmul.lo.u32 %r2, %r1, 100;\n"
          "st.param.b32 [result], %r2;\nret;\n}\n" +
          entry("second", "")};
  CUlinkState state;
  CU(cuLinkCreate(0, nullptr, nullptr, &state));
  for (std::string& input : inputs)
    CU(cuLinkAddData(state, CU_JIT_INPUT_PTX, input.data(), input.size() + 1, nullptr, 0, nullptr,
                     nullptr));
  void* image = nullptr;
  size_t bytes = 0;
  CU(cuLinkComplete(state, &image, &bytes));
  CUmodule module;
  CU(cuModuleLoadData(&module, image));
  CUfunction function;
  CU(cuModuleGetFunction(&function, module, "first"));
  check_runs(function, 241);
  CU(cuModuleGetFunction(&function, module, "second"));
  check_runs(function, 42);
  CU(cuModuleUnload(module));
  CU(cuLinkDestroy(state));
}

TEST_CASE("attribute: of functions and kernels, set and read back; configuration, loading") {
  const Gpu gpu;
  const CUfunction function = gpu.function("add_one");
  int value = 0;
  CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
  CHECK(value == 48 << 10);
  CU(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 64 << 10));
  CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
  CHECK(value == 64 << 10);
  CU_IS(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 30),
        CUDA_ERROR_INVALID_VALUE);
  CU(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50));
  CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
  CHECK(value > 0);
  CU_IS(cuFuncGetAttribute(&value, static_cast<CUfunction_attribute>(999), function),
        CUDA_ERROR_INVALID_VALUE);
  CU(cuFuncSetCacheConfig(function, CU_FUNC_CACHE_PREFER_SHARED));
  CU(cuFuncSetSharedMemConfig(function, CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE));
  CU(cuFuncLoad(function));
  CUfunctionLoadingState state{};
  CU(cuFuncIsLoaded(&state, function));
  CHECK(state == CU_FUNCTION_LOADING_STATE_LOADED);
  CUmodule owner = nullptr;
  CU(cuFuncGetModule(&owner, function));
  CHECK(owner == gpu.module);

  CUlibrary library;
  CU(cuLibraryLoadData(&library, kernels_ptx(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel;
  CU(cuLibraryGetKernel(&kernel, library, "add_one"));
  CU(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 64 << 10, kernel,
                          gpu.device));
  CU(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel,
                          gpu.device));
  CHECK(value == 64 << 10);
  CU(cuKernelSetCacheConfig(kernel, CU_FUNC_CACHE_PREFER_L1, gpu.device));
  CU(cuLibraryUnload(library));
}
