// SPDX-License-Identifier: Apache-2.0
// Run on fault_driver with KVGPU_FAULTS: four threads work on streams and memory of their own, and
// deferred errors strike at random records. What a thread reads with CUDA_SUCCESS is what it must
// be if every call since its last error has done its work.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <utility>

#include "../cases/support.h"
#include "fault_seed.h"

namespace {

constexpr int N_THREADS = 4, N_STEPS = 60, N_WORDS = 64;
constexpr size_t BYTES = N_WORDS * sizeof(unsigned);

std::atomic<int> n_stale{0}, n_errors{0}, n_reads{0};

// One thread's streams, memory, and what its first word must hold.
class Worker {
 public:
  Worker(const Gpu& gpu, unsigned seed) : gpu_(gpu), random_(seed) {
    CU(cuMemAlloc(&data_, BYTES));
    CU(cuMemAlloc(&other_, BYTES));
    CU(cuMemAlloc(&ticks_, 4 * sizeof(uint64_t)));
    CU(cuMemHostAlloc(reinterpret_cast<void**>(&pinned_), BYTES, 0));
    for (CUstream& stream : streams_) CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (CUevent& event : events_) CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuStreamBeginCapture(streams_[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU(launch_add());
    CU(cuStreamEndCapture(streams_[0], &graph_));
    CU(cuGraphInstantiate(&exec_, graph_, 0));
  }
  ~Worker() {
    cuGraphExecDestroy(exec_);
    cuGraphDestroy(graph_);
    for (const CUevent event : events_) cuEventDestroy(event);
    for (const CUstream stream : streams_) cuStreamDestroy(stream);
    cuMemFreeHost(pinned_);
    cuMemFree(ticks_);
    cuMemFree(other_);
    cuMemFree(data_);
  }

  void work() {
    bool known = false;
    for (int i = 0; i < N_STEPS; ++i) {
      if (!known && !(known = begin_again())) continue;
      if (step() != CUDA_SUCCESS) {
        ++n_errors;
        known = false;
      }
    }
  }
  // Whatever was planted has been told of.
  void settle() {
    for (int i = 0; i < 50; ++i) {
      if (begin_again() && read_pageable() == CUDA_SUCCESS) return;
    }
    FAIL("errors do not end");
  }

 private:
  CUresult launch_add() {
    int n = N_WORDS;
    void* params[] = {&data_, &n};
    return cuLaunchKernel(add_one_, 1, 1, 1, N_WORDS, 1, 1, 0, streams_[0], params, nullptr);
  }

  // After an error nothing is known about the memory: writes it anew. False: another error.
  bool begin_again() {
    for (const CUstream stream : streams_) {
      if (cuStreamSynchronize(stream) != CUDA_SUCCESS) return false;
    }
    expected_ = random_() % 100000;
    return cuMemsetD32Async(data_, expected_, N_WORDS, streams_[0]) == CUDA_SUCCESS &&
           cuStreamSynchronize(streams_[0]) == CUDA_SUCCESS;
  }

// The first error ends the step.
#define TRY(call) \
  if (const CUresult bad = (call)) return bad

  CUresult step() {
    switch (random_() % 18) {
      case 0:
        expected_ = random_() % 100000;
        return cuMemsetD32Async(data_, expected_, N_WORDS, streams_[0]);
      case 1: {
        const unsigned byte = random_() % 256;
        expected_ = byte * 0x01010101u;
        return cuMemsetD8Async(data_, static_cast<unsigned char>(byte), BYTES, streams_[0]);
      }
      case 2: {
        const unsigned half = random_() % 65536;
        expected_ = half * 0x00010001u;
        return cuMemsetD16Async(data_, static_cast<unsigned short>(half), N_WORDS * 2, streams_[0]);
      }
      case 3:
        TRY(cuGraphUpload(exec_, streams_[0]));
        ++expected_;
        return cuGraphLaunch(exec_, streams_[0]);
      case 4:
        return through_other_stream();
      case 5:
        return new_stream();
      case 6:
        return read_pageable();
      case 7:
        return read_pinned();
      case 8:
        return read_after_query();
      case 9: {
        ++expected_;
        int n = N_WORDS;
        void* params[] = {&data_, &n};
        CUlaunchConfig config{};
        config.gridDimX = config.gridDimY = config.gridDimZ = 1;
        config.blockDimX = N_WORDS;
        config.blockDimY = config.blockDimZ = 1;
        config.hStream = streams_[0];
        return cuLaunchKernelEx(&config, add_one_, params, nullptr);
      }
      case 10:
        return write_pageable();
      case 11:
        return write_pinned();
      case 12:
        return host_functions();
      case 13:
        return stream_values();
      case 14:
        return pooled_memory();
      case 15:
        return two_dimensions();
      default:
        ++expected_;
        return launch_add();
    }
  }

  CUresult through_other_stream() {
    TRY(cuEventRecord(events_[0], streams_[0]));
    TRY(cuStreamWaitEvent(streams_[1], events_[0], 0));
    TRY(cuMemcpyDtoDAsync(other_, data_, BYTES, streams_[1]));
    TRY(cuMemsetD32Async(data_, 0, N_WORDS, streams_[1]));
    TRY(cuMemcpyDtoDAsync(data_, other_, BYTES, streams_[1]));
    TRY(cuEventRecord(events_[1], streams_[1]));
    return cuStreamWaitEvent(streams_[0], events_[1], 0);
  }

  CUresult new_stream() {
    CUstream stream;
    CUevent event;
    TRY(cuStreamSynchronize(streams_[1]));
    TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    const CUstream old = std::exchange(streams_[1], stream);
    TRY(cuStreamDestroy(old));
    TRY(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return cuEventDestroy(std::exchange(events_[1], event));
  }

  CUresult write_pageable() {
    const std::vector<unsigned> words(N_WORDS, expected_ = random_() % 100000);
    return cuMemcpyHtoDAsync(data_, words.data(), BYTES, streams_[0]);
  }

  CUresult write_pinned() {
    TRY(cuStreamSynchronize(streams_[0]));
    std::fill_n(pinned_, N_WORDS, expected_ = random_() % 100000);
    return cuMemcpyHtoDAsync(data_, pinned_, BYTES, streams_[0]);
  }

  CUresult host_functions() {
    const int before = n_calls_;
    TRY(cuLaunchHostFunc(
        streams_[0], [](void* n) { ++*static_cast<std::atomic<int>*>(n); }, &n_calls_));
    // That of an earlier step, skipped after an error, may be told of it only now.
    TRY(cuStreamAddCallback(
        streams_[0],
        [](CUstream, CUresult status, void* n) {
          if (status == CUDA_SUCCESS) ++*static_cast<std::atomic<int>*>(n);
        },
        &n_calls_, 0));
    TRY(cuStreamSynchronize(streams_[0]));
    n_stale += n_calls_ != before + 2;
    return CUDA_SUCCESS;
  }

  // A wait whose write was lost would never end.
  CUresult stream_values() {
    const CUdeviceptr at[] = {ticks_, ticks_ + 8, ticks_ + 16};
    ++tick_;
    TRY(cuStreamWriteValue32(streams_[0], at[0], tick_, 0));
    TRY(cuStreamWaitValue32(streams_[0], at[0], tick_, CU_STREAM_WAIT_VALUE_GEQ));
    TRY(cuStreamWriteValue64(streams_[0], at[1], tick_, 0));
    TRY(cuStreamWaitValue64(streams_[0], at[1], tick_, CU_STREAM_WAIT_VALUE_GEQ));
    CUstreamBatchMemOpParams batch[2] = {};
    batch[0].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, at[2], {tick_}, 0, 0};
    batch[1].waitValue = {
        CU_STREAM_MEM_OP_WAIT_VALUE_32, at[2], {tick_}, CU_STREAM_WAIT_VALUE_EQ, 0};
    TRY(cuStreamBatchMemOp(streams_[0], 2, batch, 0));
    unsigned ticks[6] = {};
    TRY(cuMemcpyDtoHAsync(ticks, ticks_, sizeof ticks, streams_[0]));
    TRY(cuStreamSynchronize(streams_[0]));
    n_stale += ticks[0] != tick_ || ticks[2] != tick_ || ticks[4] != tick_;
    return CUDA_SUCCESS;
  }

  CUresult pooled_memory() {
    CUdeviceptr pooled;
    TRY(cuMemAllocAsync(&pooled, BYTES, streams_[0]));
    TRY(cuMemcpyDtoDAsync(pooled, data_, BYTES, streams_[0]));
    TRY(cuMemsetD32Async(data_, 0, N_WORDS, streams_[0]));
    TRY(cuMemcpyDtoDAsync(data_, pooled, BYTES, streams_[0]));
    return cuMemFreeAsync(pooled, streams_[0]);
  }

  // Four rows.
  CUresult two_dimensions() {
    constexpr size_t PITCH = BYTES / 4;
    const unsigned byte = random_() % 256;
    TRY(cuMemsetD2D32Async(other_, PITCH, random_() % 100000, PITCH / 4, 4, streams_[0]));
    TRY(cuMemsetD2D16Async(other_, PITCH, static_cast<unsigned short>(byte), PITCH / 2, 4,
                           streams_[0]));
    TRY(cuMemsetD2D8Async(other_, PITCH, static_cast<unsigned char>(byte), PITCH, 4, streams_[0]));
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = other_;
    copy.dstDevice = data_;
    copy.srcPitch = copy.dstPitch = copy.WidthInBytes = PITCH;
    copy.Height = 4;
    expected_ = byte * 0x01010101u;
    return cuMemcpy2DAsync(&copy, streams_[0]);
  }

  CUresult check(const unsigned* words) {
    ++n_reads;
    for (int i = 0; i < N_WORDS; ++i) {
      if (words[i] == expected_) continue;
      ++n_stale;
      MESSAGE("read ", words[i], " for ", expected_, " with CUDA_SUCCESS");
      break;
    }
    return CUDA_SUCCESS;
  }

  CUresult read_pageable() {
    unsigned words[N_WORDS] = {};
    TRY(cuStreamSynchronize(streams_[0]));
    TRY(cuMemcpyDtoH(words, data_, sizeof words));
    return check(words);
  }

  CUresult read_pinned() {
    TRY(cuMemcpyDtoHAsync(pinned_, data_, BYTES, streams_[0]));
    TRY(cuStreamSynchronize(streams_[0]));
    return check(pinned_);
  }

  CUresult read_after_query() {
    TRY(cuMemcpyDtoHAsync(pinned_, data_, BYTES, streams_[0]));
    TRY(cuEventRecord(events_[0], streams_[0]));
    CUresult result;
    while ((result = cuEventQuery(events_[0])) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
    TRY(result);
    return check(pinned_);
  }
#undef TRY

  const Gpu& gpu_;
  const CUfunction add_one_ = gpu_.function("add_one");
  std::mt19937 random_;
  CUdeviceptr data_ = 0, other_ = 0, ticks_ = 0;
  unsigned* pinned_ = nullptr;
  unsigned tick_ = 0;
  std::atomic<int> n_calls_{0};
  unsigned expected_ = 0;
  CUstream streams_[2];
  CUevent events_[2];
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

void plant(CUdeviceptr word, unsigned seed) {
  CU(cuMemsetD32Async(word, fault::SEED + seed, 1, nullptr));
  (void)cuStreamSynchronize(nullptr);  // this may be the first call that fails
}

unsigned number(const char* variable, unsigned otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::atoi(text));
}

}  // namespace

TEST_CASE("injected: no thread reads a stale byte with success after deferred errors") {
  const Gpu gpu;
  const Ints word(1);
  const unsigned first = number("KVGPU_FIRST_SEED", 0), n_seeds = number("KVGPU_SEEDS", 20);
  unsigned n_struck = 0;
  for (unsigned seed = first; seed < first + n_seeds; ++seed) {
    CAPTURE(seed);
    std::vector<std::unique_ptr<Worker>> workers;
    for (unsigned i = 0; i < N_THREADS; ++i) {
      workers.push_back(std::make_unique<Worker>(gpu, seed * N_THREADS + i));
    }
    const int errors_before = n_errors;
    plant(word.dptr, seed);
    std::vector<std::thread> threads;
    for (auto& worker : workers) {
      threads.emplace_back([&] {
        cuCtxSetCurrent(gpu.context);
        worker->work();
      });
    }
    for (std::thread& thread : threads) thread.join();
    // What was found late is told of here; then nothing is planted any more.
    while (cuMemsetD32Async(word.dptr, fault::SEED + fault::NONE, 1, nullptr) != CUDA_SUCCESS ||
           cuCtxSynchronize() != CUDA_SUCCESS) {
    }
    for (auto& worker : workers) worker->settle();
    n_struck += n_errors > errors_before;
    REQUIRE(n_stale == 0);
  }
  CHECK(n_struck >= n_seeds / 2);
  std::printf("figure: %u seeds, %u with errors, %d errors returned, %d reads checked, %d stale\n",
              n_seeds, n_struck, n_errors.load(), n_reads.load(), n_stale.load());
}

TEST_CASE("sticky injected: all threads get the error and keep it, and read nothing stale") {
  const Gpu gpu;
  std::vector<std::unique_ptr<Worker>> workers;
  for (unsigned i = 0; i < N_THREADS; ++i) workers.push_back(std::make_unique<Worker>(gpu, i));
  std::atomic<int> n_told{0};
  std::vector<std::thread> threads;
  for (auto& worker : workers) {
    threads.emplace_back([&] {
      cuCtxSetCurrent(gpu.context);
      for (int round = 0; round < 50 && cuCtxSynchronize() == CUDA_SUCCESS; ++round) worker->work();
      const CUresult first = cuCtxSynchronize(), second = cuStreamQuery(nullptr);
      n_told += first == second &&
                (first == CUDA_ERROR_ILLEGAL_ADDRESS || first == CUDA_ERROR_LAUNCH_FAILED);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(n_told == N_THREADS);
  CHECK(n_stale == 0);
}
