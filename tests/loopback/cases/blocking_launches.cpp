// SPDX-License-Identifier: Apache-2.0
// More work than the driver takes behind a stream that waits: natively the caller of about the
// 1,021st launch blocks, so a thread of its own does the launching.
#include <atomic>
#include <random>
#include <thread>

#include "support.h"

namespace {

constexpr unsigned MORE_THAN_THE_DRIVER_TAKES = 2000;

CUstream make_stream(unsigned flags) {
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, flags));
  return stream;
}

// Opens the gate after a while, come what may: a failure is no hang.
class Watchdog {
 public:
  Watchdog(Gate* gate, int after_ms)
      : thread_([this, gate, after_ms] {
          for (int ms = 0; ms < after_ms && !done_; ms += 10) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
          }
          late_ = !done_;
          gate->open();
        }) {}
  ~Watchdog() {
    done_ = true;
    thread_.join();
  }
  bool late() const { return late_; }
  void done() { done_ = true; }

 private:
  std::atomic<bool> done_{false}, late_{false};
  std::thread thread_;
};

}  // namespace

TEST_CASE(
    "blocking, beyond native: 4096 launches behind a waiting stream while another stream goes on") {
  const Gpu gpu;
  const Ints behind(1), beside(1);
  const CUstream waiting = make_stream(CU_STREAM_NON_BLOCKING);
  const CUstream other = make_stream(CU_STREAM_NON_BLOCKING);
  Gate gate(gpu, waiting);
  std::atomic<int> n_launched{0};
  std::thread launching([&] {
    cuCtxSetCurrent(gpu.context);
    for (int i = 0; i < 4096; ++i) {
      add_one(gpu, behind, waiting);
      ++n_launched;
    }
  });
  int n_beside = 0;
  {
    Watchdog watchdog(&gate, 30'000);
    while (n_launched < 1000 && !watchdog.late()) std::this_thread::yield();
    // Until the launching thread is stuck, or through.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    for (; n_beside < 100; ++n_beside) {
      add_one(gpu, beside, other);
      CU(cuStreamSynchronize(other));
    }
    CU_IS(cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);
    CHECK_FALSE(watchdog.late());
  }
  gate.open();
  launching.join();
  CU(cuStreamSynchronize(waiting));
  CHECK(behind.read()[0] == 4096);
  CHECK(beside.read()[0] == 100);
  CU(cuStreamDestroy(waiting));
  CU(cuStreamDestroy(other));
}

TEST_CASE("blocking: what depends on launches behind a waiting stream comes after them") {
  const Gpu gpu;
  const Ints data(1), by_event(1), by_legacy(1);
  const CUfunction copy_int = gpu.function("copy_int");
  const CUstream waiting = make_stream(CU_STREAM_DEFAULT),
                 after = make_stream(CU_STREAM_NON_BLOCKING);
  const CUstream blocking = make_stream(CU_STREAM_DEFAULT);
  CUdeviceptr from = data.dptr, event_out = by_event.dptr, legacy_out = by_legacy.dptr;
  launch(copy_int, after, {&from, &event_out});
  CU(cuCtxSynchronize());
  Gate gate(gpu, waiting);
  std::thread launching([&] {
    cuCtxSetCurrent(gpu.context);
    for (unsigned i = 0; i < MORE_THAN_THE_DRIVER_TAKES; ++i) add_one(gpu, data, waiting);
    CUevent event;
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuEventRecord(event, waiting));
    CU(cuStreamWaitEvent(after, event, 0));
    CU(cuEventDestroy(event));
    launch(copy_int, after, {&from, &event_out});
    launch(copy_int, CU_STREAM_LEGACY, {&from, &legacy_out});
    add_one(gpu, by_legacy, blocking);
    CU(cuStreamDestroy(waiting));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  gate.open();
  launching.join();
  CU(cuCtxSynchronize());
  CHECK(data.read()[0] == MORE_THAN_THE_DRIVER_TAKES);
  CHECK(by_event.read()[0] == MORE_THAN_THE_DRIVER_TAKES);
  CHECK(by_legacy.read()[0] == MORE_THAN_THE_DRIVER_TAKES + 1);
  CU(cuStreamDestroy(after));
  CU(cuStreamDestroy(blocking));
}

namespace {

// Streams of each kind that change words of their own, and read those of others in ways that CUDA
// orders. A word shows whether the order was kept.
struct RandomWork {
  static constexpr unsigned N_STREAMS = 6, N_EVENTS = 4, N_STEPS = 5000;
  const Gpu& gpu;
  const CUfunction mix;
  CUdeviceptr words;  // of the streams, then of the records
  CUstream streams[N_STREAMS];
  CUevent events[N_EVENTS];
  int recorded_as[N_EVENTS];  // index of the word, -1: never recorded
  std::vector<unsigned> model;
  std::mt19937 random;

  RandomWork(const Gpu& gpu_, const Ints& memory, unsigned seed)
      : gpu(gpu_), mix(gpu.function("mix")), words(memory.dptr), random(seed) {
    for (unsigned i = 0; i < N_STREAMS; ++i) {
      streams[i] = make_stream(i % 2 == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT);
    }
    CU(cuStreamDestroy(streams[N_STREAMS - 1]));
    streams[N_STREAMS - 1] = CU_STREAM_LEGACY;
    for (unsigned i = 0; i < N_EVENTS; ++i) {
      CU(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
      recorded_as[i] = -1;
    }
    model.assign(static_cast<size_t>(memory.n), 1);
  }

  void mix_words(unsigned stream, unsigned to, unsigned from) {
    CUdeviceptr to_word = words + to * sizeof(int), from_word = words + from * sizeof(int);
    launch(mix, streams[stream], {&to_word, &from_word});
    model[to] = model[to] * 31 + model[from];
  }

  void step(unsigned* next_word) {
    // Most work goes to the stream behind the gate.
    const unsigned stream = random() % 3 != 0 ? 0 : random() % N_STREAMS;
    const unsigned event = random() % N_EVENTS;
    const bool legacy = streams[stream] == CU_STREAM_LEGACY;
    switch (random() % 16) {
      case 0:
        mix_words(stream, *next_word, stream);
        CU(cuEventRecord(events[event], streams[stream]));
        recorded_as[event] = static_cast<int>((*next_word)++);
        break;
      case 1:
        if (recorded_as[event] < 0) break;
        CU(cuStreamWaitEvent(streams[stream], events[event], 0));
        mix_words(stream, stream, static_cast<unsigned>(recorded_as[event]));
        break;
      case 2:
        CU(cuEventDestroy(events[event]));
        CU(cuEventCreate(&events[event], CU_EVENT_DISABLE_TIMING));
        recorded_as[event] = -1;
        break;
      case 3:
        // Blocking streams have the odd numbers.
        mix_words(stream, stream, legacy ? 1 + 2 * (random() % 2) : stream);
        if (stream % 2 == 1 && !legacy) mix_words(stream, stream, N_STREAMS - 1);
        break;
      default:
        mix_words(stream, stream, stream);
    }
  }

  ~RandomWork() {
    for (unsigned i = 0; i + 1 < N_STREAMS; ++i) cuStreamDestroy(streams[i]);
    for (const CUevent event : events) cuEventDestroy(event);
  }
};

}  // namespace

// Each launch is made with what was set before it, and refused with less.
TEST_CASE("blocking: attributes that a kernel has had before, behind a waiting stream") {
  constexpr auto SHARED = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  constexpr unsigned LARGE = 64 << 10, SMALL = 16 << 10;
  constexpr int HELD = 300, IN_DRIVER = 512;
  const Gpu gpu;
  const CUfunction function = gpu.function("add_one");
  const auto set = [&](unsigned bytes) {
    CU(cuFuncSetAttribute(function, SHARED, static_cast<int>(bytes)));
  };
  const auto launch_with = [&](unsigned shared, const Ints& data, CUstream stream) {
    CUdeviceptr at = data.dptr;
    int n = 1;
    void* params[] = {&at, &n};
    CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, shared, stream, params, nullptr));
  };
  const CUstream waiting = make_stream(CU_STREAM_NON_BLOCKING);
  const CUstream other = make_stream(CU_STREAM_NON_BLOCKING);
  for (const auto& [first, second] : {std::pair{LARGE, SMALL}, std::pair{SMALL, LARGE}}) {
    const Ints behind(1), beside(1);
    set(second);
    set(first);
    Gate gate(gpu, waiting);
    Watchdog watchdog(&gate, 20'000);
    for (int i = 0; i < IN_DRIVER + HELD; ++i) launch_with(first, behind, waiting);
    set(second);
    launch_with(second, beside, other);
    gate.open();
    int blocks = 0;
    CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 1, second));
    CHECK(blocks > 0);
    watchdog.done();
    CHECK(!watchdog.late());
    CU(cuStreamSynchronize(waiting));
    CU(cuStreamSynchronize(other));
    CHECK(behind.read() == std::vector<int>(1, IN_DRIVER + HELD));
    CHECK(beside.read() == std::vector<int>(1, 1));
  }
  CU(cuStreamDestroy(waiting));
  CU(cuStreamDestroy(other));
}

TEST_CASE("blocking: random work of many streams keeps its order behind launches that wait") {
  const Gpu gpu;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    const Ints memory(RandomWork::N_STREAMS + RandomWork::N_STEPS, 1);
    RandomWork work(gpu, memory, seed);
    CUdeviceptr word = work.words;
    launch(work.mix, work.streams[0], {&word, &word});  // loaded before the gate closes
    work.model[0] = 1 * 31 + 1;
    CU(cuCtxSynchronize());
    Gate gate(gpu, work.streams[0]);
    std::thread launching([&] {
      cuCtxSetCurrent(gpu.context);
      unsigned next_word = RandomWork::N_STREAMS;
      for (unsigned i = 0; i < RandomWork::N_STEPS; ++i) work.step(&next_word);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    gate.open();
    launching.join();
    CU(cuCtxSynchronize());
    const std::vector<int> got = memory.read();
    CHECK(std::vector<unsigned>(got.begin(), got.end()) == work.model);
  }
}
