// SPDX-License-Identifier: Apache-2.0
// Several threads that launch as fast as they can: what a worker may execute side by side
// (host/worker/lanes.h), and must not mix up.
#include <atomic>
#include <mutex>
#include <thread>

#include "support.h"

namespace {

constexpr int THREADS = 6, LAUNCHES = 3000;

// Words on the GPU: one for each thread to change, and what it is mixed with.
class Words {
 public:
  explicit Words(const Gpu& gpu) : mix_(gpu.function("mix")), memory_(2 * THREADS, 1) {
    for (int i = 0; i < THREADS; ++i) {
      CU(cuMemsetD32(at(i), static_cast<unsigned>(7 * i), 1));
      CU(cuMemsetD32(at(THREADS + i), static_cast<unsigned>(i + 1), 1));
    }
    CU(cuCtxSynchronize());  // other streams do not wait for the legacy one
  }
  CUdeviceptr at(int i) const { return memory_.dptr + sizeof(int) * static_cast<size_t>(i); }
  // Word i is changed by the number of word THREADS + by: the order of such launches shows.
  void change(int i, int by, CUstream stream) const {
    CUdeviceptr to = at(i), from = at(THREADS + by);
    launch(mix_, stream, {&to, &from});
  }
  static void change(unsigned* model, int by) {
    *model = *model * 31 + static_cast<unsigned>(by) + 1;
  }
  std::vector<int> read() const { return memory_.read(); }

 private:
  CUfunction mix_;
  Ints memory_;
};

class Streams {
 public:
  Streams() {
    for (CUstream& stream : streams_) CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  }
  ~Streams() {
    for (CUstream stream : streams_) (void)cuStreamDestroy(stream);
  }
  CUstream operator[](int i) const { return streams_[i]; }

 private:
  CUstream streams_[THREADS]{};
};

// Kernels that take this long, launched in turn with other threads, on few processors, too.
void take_time(CUfunction function, unsigned us, int n_times, CUstream stream) {
  for (int n = 0; n < n_times; ++n) {
    launch(function, stream, {&us});
    if (n % 8 == 0) std::this_thread::yield();
  }
}

template <typename Body>
void in_threads(const Gpu& gpu, Body body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < THREADS; ++i) {
    threads.emplace_back([&gpu, &body, i] {
      (void)cuCtxSetCurrent(gpu.context);
      body(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CU(cuCtxSynchronize());
}

}  // namespace

TEST_CASE("launching threads: each stream keeps its order, and other calls come between") {
  const Gpu gpu;
  const Words words(gpu);
  const Streams streams;
  std::vector<unsigned> model(THREADS);
  std::atomic<int> n_wrong{0};
  in_threads(gpu, [&](int i) {
    unsigned& mine = model[static_cast<size_t>(i)];
    mine = static_cast<unsigned>(7 * i);
    for (int n = 0; n < LAUNCHES; ++n) {
      words.change(i, n % THREADS, streams[i]);
      Words::change(&mine, n % THREADS);
      if (n % 1000 != 100 * i) continue;
      unsigned now = 0;
      (void)cuMemcpyDtoHAsync(&now, words.at(i), sizeof now, streams[i]);
      (void)cuStreamSynchronize(streams[i]);
      n_wrong += now != mine;
    }
  });
  const std::vector<int> found = words.read();
  for (size_t i = 0; i < THREADS; ++i) CHECK(static_cast<unsigned>(found[i]) == model[i]);
  CHECK(n_wrong == 0);
}

TEST_CASE("launching threads: streams that go from thread to thread") {
  const Gpu gpu;
  const Words words(gpu);
  const Streams streams;
  std::mutex mutexes[THREADS];
  std::vector<unsigned> model(THREADS);
  for (size_t i = 0; i < THREADS; ++i) model[i] = static_cast<unsigned>(7 * i);
  in_threads(gpu, [&](int i) {
    for (int n = 0; n < LAUNCHES; ++n) {
      const int which = (i + n / 7) % THREADS;
      const std::lock_guard lock(mutexes[which]);
      words.change(which, i, streams[which]);
      Words::change(&model[static_cast<size_t>(which)], i);
    }
  });
  const std::vector<int> found = words.read();
  for (size_t i = 0; i < THREADS; ++i) CHECK(static_cast<unsigned>(found[i]) == model[i]);
}

TEST_CASE("launching threads: what one has launched, another one's event is behind") {
  const Gpu gpu;
  const Ints counts(THREADS), seen(THREADS);
  const Streams streams;
  const CUfunction copy_int = gpu.function("copy_int");
  std::atomic<int> n_wrong{0};
  std::atomic<bool> ends{false};
  std::thread others([&] {  // keep the worker busy
    (void)cuCtxSetCurrent(gpu.context);
    in_threads(gpu, [&](int) {
      const Ints data(1);
      CUstream stream = nullptr;
      (void)cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
      while (!ends) {
        for (int n = 0; n < 200; ++n) add_one(gpu, data, stream);
        (void)cuStreamSynchronize(stream);
      }
      n_wrong += data.read()[0] % 200 != 0;
      (void)cuStreamDestroy(stream);
    });
  });
  CUevent event = nullptr;
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  for (int round = 0; round < 50; ++round) {
    std::thread first([&] {
      (void)cuCtxSetCurrent(gpu.context);
      for (int n = 0; n < 20; ++n) add_one(gpu, counts, streams[0]);
    });
    first.join();
    CU(cuEventRecord(event, streams[0]));
    CU(cuStreamWaitEvent(streams[1], event, 0));
    CUdeviceptr from = counts.dptr, to = seen.dptr;
    launch(copy_int, streams[1], {&from, &to});
    CU(cuStreamSynchronize(streams[1]));
    CHECK(seen.read()[0] == 20 * (round + 1));
  }
  ends = true;
  others.join();
  CHECK(n_wrong == 0);
  CU(cuEventDestroy(event));
}

TEST_CASE("launching threads: a stream that waits does not stop the others") {
  const Gpu gpu;
  const Words words(gpu);
  const Streams streams;
  constexpr int BEHIND = 800;  // natively 1,020 launches do not block
  Gate gate(gpu, streams[0]);
  std::atomic<int> n_through{0};
  std::atomic<bool> is_late{false};
  in_threads(gpu, [&](int i) {
    for (int n = 0; n < (i == 0 ? BEHIND : LAUNCHES); ++n) {
      words.change(i, n % THREADS, streams[i]);
      if (i != 0 && n % 500 == 499) (void)cuStreamSynchronize(streams[i]);
    }
    if (i != 0) {
      ++n_through;
      return;
    }
    for (int ms = 0; n_through < THREADS - 1 && !is_late; ++ms) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      is_late = ms > 60'000;
    }
    gate.open();
  });
  CHECK_FALSE(is_late);
  const std::vector<int> found = words.read();
  for (int i = 0; i < THREADS; ++i) {
    auto model = static_cast<unsigned>(7 * i);
    for (int n = 0; n < (i == 0 ? BEHIND : LAUNCHES); ++n) Words::change(&model, n % THREADS);
    CHECK(static_cast<unsigned>(found[static_cast<size_t>(i)]) == model);
  }
}

TEST_CASE("launching threads: more than streams take, and then nothing but to wait") {
  const Gpu gpu;
  const Streams streams;
  const CUfunction kernel = gpu.function("take_time");
  std::atomic<int> n_wrong{0};
  for (int round = 0; round < 5; ++round) {
    in_threads(gpu, [&](int i) {
      take_time(kernel, 20, 900, streams[i]);  // natively 1,020 do not block
      n_wrong += cuStreamSynchronize(streams[i]) != CUDA_SUCCESS;
    });
  }
  CHECK(n_wrong == 0);
}

TEST_CASE("launching threads: a full stream goes on while others launch") {
  const Gpu gpu;
  const Streams streams;
  const CUfunction kernel = gpu.function("take_time");
  std::atomic<bool> is_over{false};
  double waited_s = 0;
  in_threads(gpu, [&](int i) {
    if (i != 0) {
      while (!is_over) {
        take_time(kernel, 0, 200, streams[i]);
        (void)cuStreamSynchronize(streams[i]);
      }
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the others are well at it
    waited_s = seconds([&] {
      for (int round = 0; round < 5; ++round) {
        take_time(kernel, 100, 900, streams[i]);
        (void)cuStreamSynchronize(streams[i]);
      }
    });
    is_over = true;
  });
  CHECK(waited_s < 30);
}

TEST_CASE("launching threads: what a full stream waits for comes behind it") {
  const Gpu gpu;
  const Streams streams;
  const Ints word(1);
  const CUfunction kernel = gpu.function("take_time"), write_to = gpu.function("write_to");
  std::atomic<bool> is_over{false};
  in_threads(gpu, [&](int i) {
    if (i > 1) {
      while (!is_over) {
        take_time(kernel, 0, 200, streams[i]);
        (void)cuStreamSynchronize(streams[i]);
      }
    }
    if (i > 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    CUdeviceptr at = word.dptr;
    (void)cuStreamWaitValue32(streams[0], at, 1, CU_STREAM_WAIT_VALUE_EQ);
    take_time(kernel, 0, 900, streams[0]);
    launch(write_to, streams[1], {&at});
    (void)cuStreamSynchronize(streams[0]);
    is_over = true;
  });
  CHECK(word.read()[0] == 1);
}
