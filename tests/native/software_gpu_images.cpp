// SPDX-License-Identifier: Apache-2.0
// What the software GPU loads: PTX, fat binaries, several PTX texts linked; and what it refuses.
#include <cstring>
#include <fstream>
#include <iterator>

#include "software_gpu_test.h"

using namespace software_gpu_test;

namespace {

CUresult load(const std::string& text, std::string* log = nullptr) {
  char buffer[256] = {};
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {buffer, reinterpret_cast<void*>(sizeof buffer)};
  CUmodule module;
  const CUresult result = cuModuleLoadDataEx(&module, (HEADER + text).c_str(), 2, options, values);
  if (log) *log = buffer;
  return result;
}

std::string bytes_of_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), "cannot read ", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The result of adding all inputs and completing; loads the image when that went well.
CUresult link(const std::vector<std::string>& inputs, CUmodule* module,
              std::string* log = nullptr) {
  char buffer[256] = {};
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {buffer, reinterpret_cast<void*>(sizeof buffer)};
  CUlinkState state;
  CU(cuLinkCreate(2, options, values, &state));
  void* image = nullptr;
  CUresult result = CUDA_SUCCESS;
  for (const std::string& input : inputs) {
    std::string text = HEADER + input;
    if (result == CUDA_SUCCESS)
      result = cuLinkAddData(state, CU_JIT_INPUT_PTX, text.data(), text.size(), nullptr, 0, nullptr,
                             nullptr);
  }
  if (result == CUDA_SUCCESS) result = cuLinkComplete(state, &image, nullptr);
  if (result == CUDA_SUCCESS) CU(cuModuleLoadData(module, image));
  if (log) *log = buffer;
  CU(cuLinkDestroy(state));
  return result;
}

/// A kernel that stores what `code` leaves in %r1.
std::string storing(const std::string& name, const std::string& code) {
  return "\n.visible .entry " + name +
         "(.param .u64 to) {\n.reg .b64 %rd<3>; .reg .b32 %r<3>;\n"
         "ld.param.u64 %rd1, [to];\n" +
         code + "\nst.global.u32 [%rd1], %r1;\nret;\n}\n";
}

std::string function(const std::string& linkage, const std::string& name, int value) {
  return linkage + " .func (.param .b32 r) " + name + "() {\nst.param.b32 [r], " +
         std::to_string(value) + ";\nret;\n}\n";
}

std::string calling(const std::string& name) {
  return "{ .param .b32 r; call.uni (r), " + name + "; ld.param.b32 %r1, [r]; }";
}

uint32_t result_of(Gpu& gpu, CUmodule module, const char* name) {
  CUfunction kernel;
  CU(cuModuleGetFunction(&kernel, module, name));
  Buffer<uint32_t> out({0});
  CU(gpu.launch(kernel, 1, 1, nullptr, out.pointer));
  return out.read().front();
}

}  // namespace

TEST_CASE("what cannot run is refused with its line") {
  Gpu gpu;
  std::string log;
  const std::string body = ".visible .entry k() {\n.reg .b32 %r<3>;\n";
  CHECK_EQ(load(body + "wmma.load.a.sync %r1;\nret;\n}", &log), CUDA_ERROR_INVALID_PTX);
  CHECK_MESSAGE(log.find("line 6") != std::string::npos, log);
  CHECK_MESSAGE(log.find("wmma.load.a.sync") != std::string::npos, log);
  CHECK_EQ(load(body + "add.u32.wrong %r1, %r1, 1;\nret;\n}", &log), CUDA_ERROR_INVALID_PTX);
  CHECK_MESSAGE(log.find(".wrong") != std::string::npos, log);
  CHECK_EQ(load(body + "add.u32 %r1, %r7, 1;\nret;\n}"), CUDA_ERROR_INVALID_PTX);
  CHECK_EQ(load(body + "bra NOWHERE;\n}"), CUDA_ERROR_INVALID_PTX);
  CHECK_EQ(load(body + "ret;\n"), CUDA_ERROR_INVALID_PTX);
  CHECK_EQ(load("nonsense"), CUDA_ERROR_INVALID_PTX);
  CHECK_EQ(load(body + "call missing;\n}"), CUDA_ERROR_INVALID_PTX);
  CHECK_EQ(load(body + "ret;\n}"), CUDA_SUCCESS);
}

TEST_CASE("PTX that asks for what it does not have is refused") {
  Gpu gpu;
  const std::string entry = ".visible .entry k(.param .u32 a) {\n.reg .b32 %r<3>;\n";
  const std::string bodies[] = {
      "ld.param.u32 %r1, [a-4];",                           // before the parameters
      "ld.param.u32 %r1, [a+4];",                           // behind them
      "{ .param .b32 p; st.param.b32 [p+8], %r1; }",        // another one's rows
      "L: L: bra L;",                                       // one label, two places
      "mov.b32 {}, %r1;",                                   // no parts
      ".local .b8 big[4294967295]; .local .b8 more[9];",    // more than 32 bits count
      ".shared .b8 big[4294967295]; .shared .b8 more[9];",  //
      ".reg .b32 %many<1048577>;",                          //
      ".local .align 3 .b8 odd[4];"};
  for (const std::string& body : bodies)
    CHECK_MESSAGE(load(entry + body + "\nret;\n}") == CUDA_ERROR_INVALID_PTX, body);
  const std::string empty = "() { ret; }\n";
  CHECK_EQ(load(".entry k" + empty + ".entry k" + empty), CUDA_ERROR_INVALID_PTX);
  CHECK_EQ(load(".entry k" + empty + ".global .b32 k = 7;"), CUDA_ERROR_INVALID_PTX);
  CHECK_EQ(load(".extern .entry k" + empty), CUDA_ERROR_INVALID_PTX);
  CHECK_EQ(load(".global .b8 g[4294967295][4294967295][4294967295];"), CUDA_ERROR_INVALID_PTX);
  const std::string deep(200'000, '{');
  CHECK_EQ(load(".global .b32 g[] = " + deep), CUDA_ERROR_INVALID_PTX);
  CHECK_EQ(load(entry + "mov.b32 %r1, " + deep), CUDA_ERROR_INVALID_PTX);
}

TEST_CASE("a label belongs to its scope") {
  Gpu gpu;
  Buffer<uint32_t> out({0});
  const CUfunction k = gpu.kernel(R"(
.visible .entry k(.param .u64 to) {
  .reg .b64 %rd<3>; .reg .b32 %r<3>;
  ld.param.u64 %rd1, [to]; mov.u32 %r1, 0;
  { bra L; add.u32 %r1, %r1, 1; L: add.u32 %r1, %r1, 16; }
  { bra L; add.u32 %r1, %r1, 1; L: add.u32 %r1, %r1, 32; }
  st.global.u32 [%rd1], %r1;
  ret;
})");
  CU(gpu.launch(k, 1, 1, nullptr, out.pointer));
  CU(cuCtxSynchronize());
  CHECK_EQ(out.read().front(), 48);
}

TEST_CASE("images: fat binaries of all kinds, machine code only, damaged ones") {
  Gpu gpu;
  for (const char* path : {KVGPU_FATBIN_PLAIN, KVGPU_FATBIN_ZSTD, KVGPU_FATBIN_LZ4}) {
    CAPTURE(path);
    const std::string image = bytes_of_file(path);
    CUlibrary library;
    CU(cuLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    unsigned n_kernels = 0;
    CU(cuLibraryGetKernelCount(&n_kernels, library));
    CHECK_EQ(n_kernels, 5);
    CUkernel kernel;
    CU(cuLibraryGetKernel(&kernel, library, "_Z3addPKfS0_Pfi"));
    size_t offset = 0, n_bytes = 0;
    CU(cuKernelGetParamInfo(kernel, 3, &offset, &n_bytes));
    CHECK_EQ(offset, 24);
    CHECK_EQ(n_bytes, 4);
    CHECK_EQ(cuKernelGetParamInfo(kernel, 4, &offset, &n_bytes), CUDA_ERROR_INVALID_VALUE);
    Buffer<float> a({1, 2, 3}), b({0.5f, 0.25f, 0.125f}), c({0, 0, 0});
    int n = 3;
    void* arguments[] = {&a.pointer, &b.pointer, &c.pointer, &n};
    CU(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 32, 1, 1, 0, nullptr,
                      arguments, nullptr));
    CHECK_EQ(c.read(), std::vector<float>{1.5f, 2.25f, 3.125f});
    CU(cuLibraryUnload(library));
  }
  CUmodule module;
  const std::string machine_code = bytes_of_file(KVGPU_FATBIN_MACHINE_CODE);
  CHECK_EQ(cuModuleLoadData(&module, machine_code.data()), CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK_EQ(cuModuleLoadData(&module,
                            "\x7f"
                            "ELF\2\1\1"),
           CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK_EQ(cuModuleLoadData(&module, ""), CUDA_ERROR_INVALID_IMAGE);
  std::string damaged = bytes_of_file(KVGPU_FATBIN_ZSTD);
  memset(damaged.data() + 120, 0x55, 40);
  CHECK_NE(cuModuleLoadData(&module, damaged.data()), CUDA_SUCCESS);
}

TEST_CASE("linked inputs: names of their own, weak ones, those of each other") {
  Gpu gpu;
  CUmodule module;
  const std::string load_own = "ld.global.u32 %r1, [$own];", take = calling("helper");
  SUBCASE("each input has its own") {
    CU(link({".global .u32 $own = 1;" + storing("a", load_own) + function("", "helper", 3) +
                 storing("c", take),
             ".global .u32 $own = 2;" + storing("b", load_own) + function("", "helper", 4) +
                 storing("d", take)},
            &module));
    CHECK_EQ(result_of(gpu, module, "a"), 1);
    CHECK_EQ(result_of(gpu, module, "b"), 2);
    CHECK_EQ(result_of(gpu, module, "c"), 3);
    CHECK_EQ(result_of(gpu, module, "d"), 4);
  }
  SUBCASE("the first weak one is everybody's, a strong one comes before it") {
    const std::string load_weak = "ld.global.u32 %r1, [w];";
    CU(link({".weak .global .u32 w = 1;" + function(".weak", "helper", 3) + storing("a", load_weak),
             ".weak .global .u32 w = 2;" + function(".visible", "helper", 4) +
                 storing("b", load_weak) + storing("d", take),
             function(".weak", "helper", 5) + storing("c", take)},
            &module));
    CHECK_EQ(result_of(gpu, module, "a"), 1);
    CHECK_EQ(result_of(gpu, module, "b"), 1);
    CHECK_EQ(result_of(gpu, module, "c"), 4);
    CHECK_EQ(result_of(gpu, module, "d"), 4);
    CUdeviceptr pointer;
    size_t n_bytes = 0;
    CU(cuModuleGetGlobal(&pointer, &n_bytes, module, "w"));
    uint32_t value = 0;
    CU(cuMemcpyDtoH(&value, pointer, sizeof value));
    CHECK_EQ(value, 1);
  }
  SUBCASE("of common ones the largest is everybody's") {
    CU(link({".common .global .u32 c;", ".common .global .u32 c[3];", ".common .global .u32 c[2];"},
            &module));
    CUdeviceptr pointer;
    size_t n_bytes = 0;
    CU(cuModuleGetGlobal(&pointer, &n_bytes, module, "c"));
    CHECK_EQ(n_bytes, 12);
  }
  SUBCASE("an input uses what another defines") {
    CU(link({".extern .func (.param .b32 r) helper();\n.extern .global .u32 g;\n" +
                 storing("a", take) + storing("b", "ld.global.u32 %r1, [g];"),
             function(".visible", "helper", 6) + ".visible .global .u32 g = 7;\n"},
            &module));
    CHECK_EQ(result_of(gpu, module, "a"), 6);
    CHECK_EQ(result_of(gpu, module, "b"), 7);
  }
}

TEST_CASE("linked inputs that do not go together are refused") {
  Gpu gpu;
  CUmodule module;
  std::string log;
  const std::string declaration = ".extern .func (.param .b32 r) helper();\n",
                    caller = declaration + storing("a", calling("helper"));
  CHECK_EQ(link({caller}, &module, &log), CUDA_ERROR_UNKNOWN);
  CHECK_MESSAGE(log.find("'helper'") != std::string::npos, log);
  CHECK_EQ(link({caller, function("", "helper", 1)}, &module), CUDA_ERROR_UNKNOWN);
  const std::string strong = function(".visible", "helper", 1);
  CHECK_EQ(link({strong, strong}, &module, &log), CUDA_ERROR_UNKNOWN);
  CHECK_MESSAGE(log.find("'helper' is defined twice") != std::string::npos, log);
  CHECK_EQ(link({strong, ".visible .global .u32 helper;"}, &module), CUDA_ERROR_UNKNOWN);
  CHECK_EQ(link({".weak .global .u32 w;", ".weak .global .u32 w[2];"}, &module, &log),
           CUDA_ERROR_UNKNOWN);
  CHECK_MESSAGE(log.find("size of 'w'") != std::string::npos, log);
  CHECK_EQ(link({".extern .global .u32 g;" + storing("a", "ld.global.u32 %r1, [g];")}, &module),
           CUDA_ERROR_UNKNOWN);
  CHECK_EQ(link({caller, ".visible .func helper() { ret; }\n"}, &module), CUDA_ERROR_UNKNOWN);
  for (const char* linkage : {"", ".weak", ".visible"}) {
    const std::string one = function(linkage, "helper", 1);
    CHECK_EQ(link({one + one}, &module), CUDA_ERROR_INVALID_PTX);
  }
}
