// SPDX-License-Identifier: Apache-2.0
// The same launches again and again, more than anybody waits for: what a worker may give to the
// driver together (host/worker/launch_graph.h), and must not mix up.
#include <cstddef>
#include <memory>

#include "support.h"

namespace {

constexpr int IN_A_ROW = 400, N_NUMBERS = 24;

// A word that each launch changes by one of so many numbers: which launches ran, in which order.
class Chain {
 public:
  explicit Chain(CUfunction mix) : mix_(mix), memory_(1 + N_NUMBERS) {
    for (int i = 0; i < N_NUMBERS; ++i) CU(cuMemsetD32(at(1 + i), static_cast<unsigned>(i), 1));
    CU(cuCtxSynchronize());
  }
  void change(CUstream stream, unsigned threads = 1) {
    const int number = ++n_ % N_NUMBERS;
    CUdeviceptr to = at(0), from = at(1 + number);
    launch(mix_, stream, {&to, &from}, threads);
    expected_ = expected_ * 31 + static_cast<unsigned>(number);
  }
  void change_often(CUstream stream) {
    for (int i = 0; i < IN_A_ROW; ++i) change(stream);
  }
  void use(CUfunction mix) { mix_ = mix; }
  bool is_right() const { return static_cast<unsigned>(memory_.read()[0]) == expected_; }

 private:
  CUdeviceptr at(int i) const { return memory_.dptr + sizeof(int) * static_cast<size_t>(i); }

  CUfunction mix_;
  Ints memory_;
  int n_ = 0;
  unsigned expected_ = 0;
};

// A worker is not behind when the next launch comes.
void let_it_come() {
  size_t free = 0, total = 0;
  CU(cuMemGetInfo(&free, &total));
}

class OwnStream {
 public:
  explicit OwnStream(unsigned flags = CU_STREAM_NON_BLOCKING, int priority = 0) {
    CU(cuStreamCreateWithPriority(&stream_, flags, priority));
  }
  ~OwnStream() { (void)cuStreamDestroy(stream_); }
  operator CUstream() const { return stream_; }  // NOLINT(google-explicit-constructor)

 private:
  CUstream stream_ = nullptr;
};

// The `n` launches of `change` before, in and after a capture, and what was captured after those.
template <typename Change>
void check_capture(const Gpu& gpu, CUstream stream, size_t n, const Change& change) {
  Chain chain(gpu.function("mix")), captured(gpu.function("mix"));
  change(chain);
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  change(captured);
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(stream, &graph));
  size_t n_nodes = 0;
  CU(cuGraphGetNodes(graph, nullptr, &n_nodes));
  CHECK(n_nodes == n);
  change(chain);
  CUgraphExec exec = nullptr;
  CU(cuGraphInstantiate(&exec, graph, 0));
  CU(cuGraphLaunch(exec, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(chain.is_right());
  CHECK(captured.is_right());
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphDestroy(graph));
}

}  // namespace

TEST_CASE("launches in a row: each has its own parameters") {
  const Gpu gpu;
  const OwnStream stream;
  Chain chain(gpu.function("mix"));
  for (int round = 0; round < 4; ++round) {
    chain.change_often(stream);
    for (int i = 0; i < round; ++i) chain.change(stream);
    CU(cuStreamSynchronize(stream));
    CHECK(chain.is_right());
  }
}

TEST_CASE("launches in a row: behind a stream that waits") {
  const Gpu gpu;
  const OwnStream stream;
  Chain chain(gpu.function("mix"));
  chain.change_often(stream);
  Gate gate(gpu, stream);
  chain.change_often(stream);
  CU_IS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  gate.open();
  CU(cuStreamSynchronize(stream));
  CHECK(chain.is_right());
}

// What a worker makes and ends for them must wait for nothing, and not keep others waiting.
TEST_CASE("launches in a row: the first ones, other ones and the stream's end behind a wait") {
  const Gpu gpu;
  const OwnStream stream, free;
  CUstream ending = nullptr;
  CU(cuStreamCreate(&ending, CU_STREAM_NON_BLOCKING));
  const CUfunction mix = gpu.function("mix");
  Chain chain(mix), last(mix), other(mix);
  const Ints data(64);
  Gate gate(gpu, stream), other_gate(gpu, ending);
  chain.change_often(stream);
  for (int i = 0; i < 80; ++i) add_one(gpu, data, stream);
  last.change_often(ending);
  CU(cuStreamDestroy(ending));
  other.change_often(free);
  CU(cuStreamSynchronize(free));
  CU_IS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  gate.open();
  other_gate.open();
  CU(cuCtxSynchronize());
  CHECK(chain.is_right());
  CHECK(last.is_right());
  CHECK(other.is_right());
  CHECK(data.read() == std::vector<int>(64, 80));
}

TEST_CASE("launches in a row: many behind each of several streams that wait") {
  constexpr int N_STREAMS = 8;
  const Gpu gpu;
  std::vector<std::unique_ptr<OwnStream>> streams;
  std::vector<std::unique_ptr<Chain>> chains;
  for (int i = 0; i < N_STREAMS; ++i) {
    streams.push_back(std::make_unique<OwnStream>());
    chains.push_back(std::make_unique<Chain>(gpu.function("mix")));
    chains.back()->change_often(*streams.back());
  }
  CU(cuCtxSynchronize());
  std::vector<std::unique_ptr<Gate>> gates;
  for (const auto& stream : streams) gates.push_back(std::make_unique<Gate>(gpu, *stream));
  for (int i = 0; i < N_STREAMS; ++i) {
    for (int n = 0; n < 2; ++n) chains[i]->change_often(*streams[i]);
  }
  for (const auto& gate : gates) gate->open();
  CU(cuCtxSynchronize());
  for (const auto& chain : chains) CHECK(chain->is_right());
}

TEST_CASE("launches in a row: other kernels and shapes come between") {
  const Gpu gpu;
  const OwnStream stream;
  Chain chain(gpu.function("mix")), other(gpu.function("mix"));
  const Ints data(64);
  for (int i = 0; i < IN_A_ROW; ++i) {
    chain.change(stream);
    if (i / 100 % 2 == 1) add_one(gpu, data, stream);
    if (i > 300) other.change(stream, 1 + static_cast<unsigned>(i % 2));
  }
  CU(cuStreamSynchronize(stream));
  CHECK(chain.is_right());
  CHECK(data.read() == std::vector<int>(64, IN_A_ROW / 2));
}

TEST_CASE("launches in a row: two kinds take turns") {
  const Gpu gpu;
  const OwnStream stream;
  Chain chain(gpu.function("mix"));
  const Ints data(64);
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 100; ++i) chain.change(stream);
    for (int i = 0; i < 100; ++i) add_one(gpu, data, stream);
  }
  CU(cuStreamSynchronize(stream));
  CHECK(chain.is_right());
  CHECK(data.read() == std::vector<int>(64, 2000));
}

TEST_CASE("launches in a row: while the stream captures") {
  const Gpu gpu;
  const OwnStream stream;
  check_capture(gpu, stream, IN_A_ROW, [&](Chain& chain) { chain.change_often(stream); });
}

TEST_CASE("launches in a row: the module goes and comes again") {
  const Gpu gpu;
  const OwnStream stream;
  Chain chain(gpu.function("mix"));
  for (int round = 0; round < 3; ++round) {
    CUmodule module = nullptr;
    CUfunction mix = nullptr;
    CU(cuModuleLoadData(&module, kernels_ptx()));
    CU(cuModuleGetFunction(&mix, module, "mix"));
    chain.use(mix);
    chain.change_often(stream);
    CU(cuStreamSynchronize(stream));
    CHECK(chain.is_right());
    CU(cuModuleUnload(module));
  }
}

TEST_CASE("launches in a row: what is set of the kernel and of its stacks between") {
  const Gpu gpu;
  const OwnStream stream;
  const CUfunction function = gpu.function("shared_bytes");
  const Ints data(2);
  CUdeviceptr dptr = data.dptr;
  void* params[] = {&dptr};
  const auto launch_often = [&](unsigned bytes) {
    for (int i = 0; i < IN_A_ROW; ++i) {
      CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, bytes, stream, params, nullptr));
    }
    CU(cuStreamSynchronize(stream));
    CHECK(data.read()[0] == static_cast<int>(bytes));
  };
  const auto set_most = [&](int bytes) {
    CU(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes));
  };
  launch_often(1024);
  set_most(64 << 10);
  launch_often(64 << 10);
  set_most(32 << 10);
  CU_IS(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 64 << 10, stream, params, nullptr),
        CUDA_ERROR_INVALID_VALUE);
  launch_often(32 << 10);
  set_most(64 << 10);  // again
  launch_often(64 << 10);
  size_t stack_bytes = 0;
  CU(cuCtxGetLimit(&stack_bytes, CU_LIMIT_STACK_SIZE));
  CU(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 16 << 10));
  launch_often(64 << 10);
  CU(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, stack_bytes));
  launch_often(512);
  CHECK(data.read()[1] == 6 * IN_A_ROW);
}

TEST_CASE("launches in a row: their context goes, and another one comes") {
  const Gpu gpu;
  for (int round = 0; round < 3; ++round) {
    CUcontext context = nullptr;
    CU(cuCtxCreate(&context, nullptr, 0, gpu.device));
    CUmodule module = nullptr;
    CUfunction mix = nullptr;
    CU(cuModuleLoadData(&module, kernels_ptx()));
    CU(cuModuleGetFunction(&mix, module, "mix"));
    {
      CUstream stream = nullptr;  // goes with its context
      CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      Chain chain(mix);
      chain.change_often(stream);
      CU(cuStreamSynchronize(stream));
      CHECK(chain.is_right());
      chain.change_often(stream);
    }
    CU(cuCtxDestroy(context));
    CU(cuCtxSetCurrent(gpu.context));
  }
}

TEST_CASE("launches in a row: the legacy stream and one that waits for it") {
  const Gpu gpu;
  const OwnStream blocking(CU_STREAM_DEFAULT), urgent(CU_STREAM_NON_BLOCKING, -1);
  Chain chain(gpu.function("mix")), alone(gpu.function("mix"));
  for (int round = 0; round < 3; ++round) {
    chain.change_often(nullptr);
    chain.change_often(blocking);
    alone.change_often(urgent);
  }
  CU(cuCtxSynchronize());
  CHECK(chain.is_right());
  CHECK(alone.is_right());
}

TEST_CASE("launches one by one: each has its own parameters") {
  const Gpu gpu;
  const OwnStream stream;
  Chain chain(gpu.function("mix"));
  for (int i = 0; i < IN_A_ROW; ++i) {
    chain.change(stream);
    CU(cuStreamSynchronize(stream));
    if (i % 20 == 0) CHECK(chain.is_right());
  }
  CHECK(chain.is_right());
}

TEST_CASE("launches one by one: kernels and shapes by turns") {
  constexpr int N_SHAPES = 6;
  const Gpu gpu;
  const OwnStream stream, other_stream;
  Chain chain(gpu.function("mix")), other(gpu.function("mix"));
  const Ints data(64);
  for (int i = 0; i < IN_A_ROW; ++i) {
    chain.change(stream, 1 + static_cast<unsigned>(i % N_SHAPES));
    let_it_come();
    if (i % 3 == 0) add_one(gpu, data, stream);
    other.change(other_stream);
    let_it_come();
  }
  CU(cuCtxSynchronize());
  CHECK(chain.is_right());
  CHECK(other.is_right());
  CHECK(data.read() == std::vector<int>(64, (IN_A_ROW + 2) / 3));
}

// More than a worker gives to the driver, fewer than natively block the caller.
TEST_CASE("launches one by one: behind a stream that waits") {
  constexpr int MANY = 700;
  const Gpu gpu;
  const OwnStream stream, free;
  Chain chain(gpu.function("mix")), other(gpu.function("mix"));
  for (int i = 0; i < 40; ++i) {
    chain.change(stream);
    let_it_come();
  }
  Gate gate(gpu, stream);
  for (int i = 0; i < MANY; ++i) {
    chain.change(stream);
    let_it_come();
    if (i % 50 == 0) {
      other.change(free);
      CU(cuStreamSynchronize(free));
    }
  }
  CU_IS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  CHECK(other.is_right());
  gate.open();
  CU(cuStreamSynchronize(stream));
  CHECK(chain.is_right());
}

TEST_CASE("launches one by one: while the stream captures") {
  constexpr int N = 30;
  const Gpu gpu;
  const OwnStream stream;
  check_capture(gpu, stream, N, [&](Chain& chain) {
    for (int i = 0; i < N; ++i) {
      chain.change(stream);
      let_it_come();
    }
  });
}

TEST_CASE("launches one by one: what is set of the kernel between, and its module goes") {
  constexpr int N = 30;
  const Gpu gpu;
  const OwnStream stream;
  const Ints data(2);
  CUdeviceptr dptr = data.dptr;
  void* params[] = {&dptr};
  for (int round = 0; round < 3; ++round) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    CU(cuModuleLoadData(&module, kernels_ptx()));
    CU(cuModuleGetFunction(&function, module, "shared_bytes"));
    for (const unsigned bytes : {1024U, 64U << 10, 32U << 10, 64U << 10}) {
      CU(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                            static_cast<int>(bytes)));
      for (int i = 0; i < N; ++i) {
        CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, bytes, stream, params, nullptr));
        CU(cuStreamSynchronize(stream));
      }
      CHECK(data.read()[0] == static_cast<int>(bytes));
      CU_IS(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, bytes + (64 << 10), stream, params, nullptr),
            CUDA_ERROR_INVALID_VALUE);
    }
    CU(cuModuleUnload(module));
  }
  CHECK(data.read()[1] == 3 * 4 * N);
}
