// SPDX-License-Identifier: Apache-2.0
// One thread is blocked in a call, another one works: its calls end well before the blocked one.
#include <atomic>
#include <string>
#include <thread>

#include "support.h"

namespace {

using std::chrono::steady_clock;

// Work on a stream of its own. Made before anything is blocked: its set-up waits for the device.
class Work {
 public:
  explicit Work(const Gpu& gpu) : gpu_(gpu), data_(32) {
    CU(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    CU(cuMemHostAlloc(reinterpret_cast<void**>(&pinned_), sizeof(int), 0));
    round();
  }
  ~Work() {
    cuMemFreeHost(pinned_);
    cuStreamDestroy(stream_);
  }

  // Runs `blocked` in a thread while this one launches, copies and waits, and checks that this went
  // on inside of it. `release` lets the blocked call end, where it waits.
  void check_progress(const std::function<void()>& blocked, const std::function<void()>& release) {
    std::atomic<bool> begun{false}, ended{false};
    std::thread thread([&] {
      cuCtxSetCurrent(gpu_.context);
      begun = true;
      blocked();
      ended = true;
    });
    while (!begun) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    int n = 0;
    for (; n < ROUNDS && !ended; ++n) round();
    const bool was_blocked = !ended;
    release();
    thread.join();
    CHECK(was_blocked);
    CHECK(n == ROUNDS);
    CHECK(*pinned_ == n + 1);
  }

  // The same beside calls that are long but end by themselves: one after another, so that there is
  // always one going on. Had each round waited for one, there would be as many of them as rounds.
  void check_progress_beside(const std::function<void()>& call) {
    std::atomic<bool> stop{false};
    std::atomic<int> n_calls{0};
    int n_calls_then = 0;
    check_progress(
        [&] {
          for (; !stop; ++n_calls) call();
        },
        [&] {
          n_calls_then = n_calls;
          stop = true;
        });
    CHECK(n_calls_then < ROUNDS);
  }

 private:
  static constexpr int ROUNDS = 20;

  void round() {
    add_one(gpu_, data_, stream_);
    CU(cuMemcpyDtoHAsync(pinned_, data_.dptr, sizeof(int), stream_));
    CU(cuStreamSynchronize(stream_));
  }

  const Gpu& gpu_;
  const Ints data_;
  CUstream stream_ = nullptr;
  int* pinned_ = nullptr;
};

// PTX that takes a compiler long: one kernel of many dependent operations. No two are alike, so
// that no cache knows it.
std::string long_ptx() {
  const auto now = static_cast<unsigned>(steady_clock::now().time_since_epoch().count());
  std::string text =
      ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry big(.param .u64 out)\n"
      "{\n.reg .u64 %rd<3>;\n.reg .u32 %r<4>;\nld.param.u64 %rd1, [out];\n"
      "cvta.to.global.u64 %rd2, %rd1;\nld.global.u32 %r1, [%rd2];\n";
  for (unsigned i = 0; i < 60'000; ++i) {
    text += "mad.lo.u32 %r1, %r1, " + std::to_string((now + i) % 65521 + 3) + ", %r1;\n";
    if (i % 8 == 0) text += "xor.b32 %r1, %r1, " + std::to_string(i + 1) + ";\n";
  }
  return text + "st.global.u32 [%rd2], %r1;\nret;\n}\n";
}

}  // namespace

TEST_CASE("blocking: progress beside a thread in cuStreamSynchronize") {
  const Gpu gpu;
  Work work(gpu);
  CUstream stuck;
  CU(cuStreamCreate(&stuck, CU_STREAM_NON_BLOCKING));
  Gate gate(gpu, stuck);
  work.check_progress([&] { CU(cuStreamSynchronize(stuck)); }, [&] { gate.open(); });
}

TEST_CASE("blocking: progress beside a thread in cuCtxSynchronize") {
  const Gpu gpu;
  Work work(gpu);
  CUstream stuck;
  CU(cuStreamCreate(&stuck, CU_STREAM_NON_BLOCKING));
  Gate gate(gpu, stuck);
  work.check_progress([&] { CU(cuCtxSynchronize()); }, [&] { gate.open(); });
}

TEST_CASE("blocking: progress beside a thread in cuEventSynchronize") {
  const Gpu gpu;
  Work work(gpu);
  CUstream stuck;
  CU(cuStreamCreate(&stuck, CU_STREAM_NON_BLOCKING));
  CUevent event;
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  Gate gate(gpu, stuck);
  CU(cuEventRecord(event, stuck));
  work.check_progress([&] { CU(cuEventSynchronize(event)); }, [&] { gate.open(); });
}

TEST_CASE("blocking, beyond native: progress beside a thread in the JIT compiler") {
  const Gpu gpu;
  Work work(gpu);
  const std::string ptx = long_ptx();
  work.check_progress_beside([&] {
    CUmodule module;
    CU(cuModuleLoadData(&module, ptx.c_str()));
  });
}

TEST_CASE("blocking: progress beside a thread that instantiates a graph") {
  const Gpu gpu;
  Work work(gpu);
  const Ints data(1);
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  for (int i = 0; i < 5000; ++i) add_one(gpu, data, stream);
  CUgraph graph;
  CU(cuStreamEndCapture(stream, &graph));
  work.check_progress_beside([&] {
    for (int i = 0; i < 20; ++i) {
      CUgraphExec exec;
      CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
      CU(cuGraphExecDestroy(exec));
    }
  });
  CU(cuGraphDestroy(graph));
  CU(cuStreamDestroy(stream));
}

TEST_CASE("blocking, beyond native: progress beside a thread in cuMemFree") {
  const Gpu gpu;
  Work work(gpu);
  CUstream stuck;
  CU(cuStreamCreate(&stuck, CU_STREAM_NON_BLOCKING));
  CUdeviceptr dptr = 0;
  CU(cuMemAlloc(&dptr, 1 << 20));
  Gate gate(gpu, stuck);
  // Should the others wait for it after all, the case ends nevertheless, and fails.
  std::atomic<bool> done{false};
  std::thread guard([&] {
    for (int i = 0; i < 600 && !done; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.open();
  });
  work.check_progress([&] { CU(cuMemFree(dptr)); }, [&] { done = true; });
  guard.join();
}
