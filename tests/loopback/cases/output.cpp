// SPDX-License-Identifier: Apache-2.0
// What kernels print is the program's once it has waited.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>

#include "support.h"

namespace {

constexpr char PRINTS[] = R"(.version 7.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) vprintf(.param .b64 format, .param .b64 arguments);
.global .align 1 .b8 text[8] = {112, 114, 105, 110, 116, 101, 100, 0};
.visible .entry quiet() { ret; }
.visible .entry prints() {
  .reg .u64 %a<3>;
  .reg .b32 %r;
  mov.u64 %a1, text;
  cvta.global.u64 %a1, %a1;
  mov.u64 %a2, 0;
  {
    .param .b64 format;
    .param .b64 arguments;
    .param .b32 r;
    st.param.b64 [format], %a1;
    st.param.b64 [arguments], %a2;
    call.uni (r), vprintf, (format, arguments);
    ld.param.b32 %r, [r];
  }
  ret;
}
)";

// What comes on standard output while `run` runs.
std::string output_of(const std::function<void()>& run) {
  std::fflush(stdout);
  const int file = memfd_create("output", 0), before = dup(STDOUT_FILENO);
  dup2(file, STDOUT_FILENO);
  run();
  std::fflush(stdout);
  dup2(before, STDOUT_FILENO);
  std::string text(static_cast<size_t>(lseek(file, 0, SEEK_END)), '\0');
  CHECK(pread(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  close(before);
  close(file);
  return text;
}

struct Printer {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  Printer() {
    CU(cuModuleLoadData(&module, PRINTS));
    CU(cuModuleGetFunction(&function, module, "prints"));
  }
  ~Printer() { CU(cuModuleUnload(module)); }
};

void launch(CUfunction function, CUstream stream) {
  CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr));
}

}  // namespace

TEST_CASE("output: of a kernel, after each kind of wait") {
  const Gpu gpu;
  const Printer printer;
  CUstream stream, other;
  CUevent event;
  CUdeviceptr memory;
  char host[8];
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CU(cuMemAlloc(&memory, sizeof host));
  const std::function<void()> waits[] = {
      [&] { CU(cuStreamSynchronize(stream)); },
      [&] {
        CU(cuEventRecord(event, stream));
        CU(cuEventSynchronize(event));
      },
      [&] { CU(cuCtxSynchronize()); },
      [&] {
        CU(cuMemcpyDtoHAsync(host, memory, sizeof host, stream));
        CU(cuStreamSynchronize(stream));
      },
  };
  for (const auto& wait : waits) {
    const std::string text = output_of([&] {
      launch(printer.function, stream);
      launch(printer.function, stream);
      wait();
    });
    CHECK(text == "printedprinted");
    CHECK(output_of([&] { CU(cuStreamSynchronize(other)); }).empty());
  }
  CHECK(output_of([&] {
          launch(printer.function, nullptr);
          CU(cuMemcpyDtoH(host, memory, sizeof host));
        }) == "printed");
  CU(cuMemFree(memory));
  CU(cuEventDestroy(event));
  CU(cuStreamDestroy(other));
  CU(cuStreamDestroy(stream));
}

TEST_CASE("output: of a stream that has gone, of a graph, of a library's module") {
  const Gpu gpu;
  const Printer printer;
  CHECK(output_of([&] {
          CUstream stream;
          CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
          launch(printer.function, stream);
          CU(cuStreamDestroy(stream));
          CU(cuCtxSynchronize());
        }) == "printed");
  CUstream stream;
  CUgraph graph;
  CUgraphExec exec;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  launch(printer.function, stream);
  CU(cuStreamEndCapture(stream, &graph));
  CU(cuGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 2; ++i) {
    CHECK(output_of([&] {
            CU(cuGraphLaunch(exec, stream));
            CU(cuStreamSynchronize(stream));
          }) == "printed");
  }
  CUlibrary library;
  CUmodule module;
  CUfunction function;
  CU(cuLibraryLoadData(&library, PRINTS, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CU(cuLibraryGetModule(&module, library));
  CU(cuModuleGetFunction(&function, module, "prints"));
  CHECK(output_of([&] {
          launch(function, stream);
          CU(cuStreamSynchronize(stream));
        }) == "printed");
  CU(cuLibraryUnload(library));
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphDestroy(graph));
  CU(cuStreamDestroy(stream));
}

// On a GPU that is a cubin, of which the kernels are told apart.
TEST_CASE("output: of a kernel beside one that prints nothing, in a linked image") {
  const Gpu gpu;
  CUlinkState link;
  void* image;
  CUmodule module;
  CUfunction prints, quiet;
  CU(cuLinkCreate(0, nullptr, nullptr, &link));
  CU(cuLinkAddData(link, CU_JIT_INPUT_PTX, const_cast<char*>(PRINTS), sizeof PRINTS, "prints", 0,
                   nullptr, nullptr));
  CU(cuLinkComplete(link, &image, nullptr));
  CU(cuModuleLoadData(&module, image));
  CU(cuLinkDestroy(link));
  CU(cuModuleGetFunction(&prints, module, "prints"));
  CU(cuModuleGetFunction(&quiet, module, "quiet"));
  for (const bool is_printing : {false, true, false}) {
    const std::string text = output_of([&] {
      launch(is_printing ? prints : quiet, nullptr);
      CU(cuStreamSynchronize(nullptr));
    });
    CHECK(text == (is_printing ? "printed" : ""));
  }
  CU(cuModuleUnload(module));
}

namespace {

CUgraph captured(const std::function<void(CUstream)>& work) {
  CUstream stream;
  CUgraph graph;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  work(stream);
  CU(cuStreamEndCapture(stream, &graph));
  CU(cuStreamDestroy(stream));
  return graph;
}

CUDA_KERNEL_NODE_PARAMS one_thread(CUfunction function) {
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = function;
  params.gridDimX = params.gridDimY = params.gridDimZ = 1;
  params.blockDimX = params.blockDimY = params.blockDimZ = 1;
  return params;
}

std::string output_of_launch(CUgraphExec exec) {
  return output_of([&] {
    CU(cuGraphLaunch(exec, nullptr));
    CU(cuStreamSynchronize(nullptr));
  });
}

std::string output_of_launch(CUgraph graph) {
  CUgraphExec exec;
  CU(cuGraphInstantiate(&exec, graph, 0));
  const std::string text = output_of_launch(exec);
  CU(cuGraphExecDestroy(exec));
  return text;
}

}  // namespace

TEST_CASE("output: of a graph, however the kernel came into it") {
  const Gpu gpu;
  const Printer printer;
  const CUgraph from_stream = captured([&](CUstream stream) { launch(printer.function, stream); });
  CHECK(output_of_launch(from_stream) == "printed");
  CUgraph clone, by_nodes, of_child;
  CUgraphNode node;
  CU(cuGraphClone(&clone, from_stream));
  CHECK(output_of_launch(clone) == "printed");
  const CUDA_KERNEL_NODE_PARAMS prints = one_thread(printer.function);
  CU(cuGraphCreate(&by_nodes, 0));
  CU(cuGraphAddKernelNode(&node, by_nodes, nullptr, 0, &prints));
  CHECK(output_of_launch(by_nodes) == "printed");
  CU(cuGraphCreate(&of_child, 0));
  CU(cuGraphAddChildGraphNode(&node, of_child, nullptr, 0, by_nodes));
  CHECK(output_of_launch(of_child) == "printed");
  for (const CUgraph graph : {from_stream, clone, by_nodes, of_child}) CU(cuGraphDestroy(graph));
}

TEST_CASE("output: of a graph that is changed to a kernel that prints") {
  const Gpu gpu;
  const Printer printer;
  const char* const quiet_image =
      ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry quiet() { ret; }\n";
  CUmodule module;
  CUfunction function;
  CU(cuModuleLoadData(&module, quiet_image));
  CU(cuModuleGetFunction(&function, module, "quiet"));
  const CUDA_KERNEL_NODE_PARAMS quiet = one_thread(function), prints = one_thread(printer.function);
  CUgraph graph;
  CUgraphNode node;
  CUgraphExec exec;
  CU(cuGraphCreate(&graph, 0));
  CU(cuGraphAddKernelNode(&node, graph, nullptr, 0, &quiet));
  CU(cuGraphInstantiate(&exec, graph, 0));
  CHECK(output_of_launch(exec).empty());
  CU(cuGraphExecKernelNodeSetParams(exec, node, &prints));
  CHECK(output_of_launch(exec) == "printed");
  CU(cuGraphExecKernelNodeSetParams(exec, node, &quiet));
  CHECK(output_of_launch(exec).empty());
  CU(cuGraphKernelNodeSetParams(node, &prints));
  CUgraphExecUpdateResultInfo info;
  CU(cuGraphExecUpdate(exec, graph, &info));
  CHECK(output_of_launch(exec) == "printed");
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphDestroy(graph));
  CU(cuModuleUnload(module));
}
