// SPDX-License-Identifier: Apache-2.0
// Managed memory as its pages see it: touched by the host, by kernels, by system calls and by
// others in turn. Natively the driver moves pages or reaches them where they are.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <numeric>
#include <thread>

#include "managed.h"

namespace {

constexpr int N = 3 << 20;  // of ints: more than one block of anything
constexpr size_t BYTES = N * sizeof(int);

void add_one_to(const Gpu& gpu, CUdeviceptr at, int n, CUstream stream = nullptr) {
  CUfunction function = gpu.function("add_one");
  void* params[] = {&at, &n};
  CU(cuLaunchKernel(function, (static_cast<unsigned>(n) + 255) / 256, 1, 1, 256, 1, 1, 0, stream,
                    params, nullptr));
}

bool counts_from(const int* ints, int first, int n) {
  for (int i = 0; i < n; ++i) {
    if (ints[i] != first + i) return false;
  }
  return true;
}

std::atomic<int> n_own_faults{0};
void* own_page = nullptr;

void on_own_fault(int, siginfo_t* info, void*) {
  if (info->si_addr != own_page) _exit(3);
  ++n_own_faults;
  mprotect(own_page, 4096, PROT_READ | PROT_WRITE);
}

}  // namespace

TEST_CASE("managed pages: a large allocation goes there and back") {
  const Gpu gpu;
  const Managed managed(BYTES);
  int* const ints = managed.ints();
  CHECK(ints[N / 2] == 0);  // never written: as the GPU sees it
  std::iota(ints, ints + N, 0);
  add_one_to(gpu, managed.at, 1024);  // a part: the rest stays
  CU(cuCtxSynchronize());
  CHECK(counts_from(ints, 1, 1024));
  CHECK(counts_from(ints + 1024, 1024, N - 1024));
  ints[5] = 100;  // one page, between launches
  ints[N - 1] = 200;
  add_one_to(gpu, managed.at, 16);
  CU(cuCtxSynchronize());
  CHECK(ints[5] == 101);
  CHECK(ints[N - 1] == 200);
  CHECK(ints[6] == 8);
  // Touched while work is under way: what the GPU has done by then, all of it.
  add_one_to(gpu, managed.at, 16);
  CHECK(ints[6] >= 8);
  CU(cuCtxSynchronize());
  CHECK(ints[6] == 9);
}

TEST_CASE("managed pages: copies say of them what they like") {
  const Gpu gpu;
  const Managed one(BYTES), other(4096);
  const Ints device(1024, 3);
  std::iota(one.ints(), one.ints() + N, 0);
  CU(cuMemcpyHtoD(device.dptr, one.ints() + 10, 4096));  // natively it is host memory, too
  CHECK(device.read()[1023] == 1033);
  CU(cuMemcpyDtoH(other.ints(), device.dptr, 4096));
  CHECK(other.ints()[0] == 10);
  CU(cuMemcpy(one.at, other.at, 4096));
  CHECK(one.ints()[1023] == 1033);
  int ordinary[4] = {9, 8, 7, 6};
  CU(cuMemcpy(one.at + 4, reinterpret_cast<CUdeviceptr>(ordinary), sizeof ordinary));
  CHECK(one.ints()[1] == 9);
  CHECK(one.ints()[0] == 10);
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = CU_MEMORYTYPE_HOST;
  rows.srcHost = one.ints();
  rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.dstDevice = other.at;
  rows.srcPitch = rows.dstPitch = rows.WidthInBytes = 64;
  rows.Height = 2;
  CU(cuMemcpy2D(&rows));
  CHECK(other.ints()[1] == 9);
  CU_IS(cuMemcpyHtoD(one.at + 64, one.ints(), BYTES), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemHostRegister(one.ints(), 4096, 0), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemFreeAsync(one.at, nullptr), CUDA_ERROR_NOT_SUPPORTED);
  CU_IS(cuMemFree(one.at + 64), CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("managed pages: system calls after a synchronisation") {
  const Gpu gpu;
  const Managed small(4096), large(BYTES);
  const int file = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  large.ints()[0] = 1;
  CHECK(read(file, large.ints(), BYTES) == static_cast<ssize_t>(BYTES));  // nothing has run yet
  add_one_to(gpu, small.at, 16);
  CU(cuCtxSynchronize());
  CHECK(write(ends[1], small.ints(), 64) == 64);
  CHECK(read(file, small.ints(), 4) == 4);
  CHECK(small.ints()[0] == 0);
  CHECK(small.ints()[1] == 1);
  // Large ones where the program says so.
  add_one_to(gpu, large.at, 16);
  CU(cuMemPrefetchAsync(large.at, BYTES, {CU_MEM_LOCATION_TYPE_HOST, 0}, 0, nullptr));
  CU(cuCtxSynchronize());
  CHECK(write(ends[1], large.ints(), 64) == 64);
  CHECK(large.ints()[15] == 1);
  for (const int each : {file, ends[0], ends[1]}) close(each);
}

TEST_CASE("managed pages: a host function between two kernels") {
  const Gpu gpu;
  const Managed managed(BYTES);
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  add_one_to(gpu, managed.at, 16, stream);
  CU(cuLaunchHostFunc(
      stream, [](void* ints) { static_cast<int*>(ints)[1] += 10; }, managed.ints()));
  add_one_to(gpu, managed.at, 16, stream);
  CHECK(managed.ints()[N - 1] == 0);  // behind all that, or beside it
  CU(cuStreamSynchronize(stream));
  CHECK(managed.ints()[0] == 2);
  CHECK(managed.ints()[1] == 12);
  CU(cuStreamDestroy(stream));
}

TEST_CASE("managed pages: a graph") {
  const Gpu gpu;
  const Managed managed(BYTES);
  CUstream stream;
  CUgraph graph;
  CUgraphExec exec;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  add_one_to(gpu, managed.at, 16, stream);
  managed.ints()[2] = 40;  // nothing runs yet
  CU(cuMemsetD32Async(managed.at, 7, 1, stream));
  CU(cuStreamEndCapture(stream, &graph));
  CU(cuGraphInstantiate(&exec, graph, 0));
  for (int i = 1; i <= 2; ++i) {
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
    CHECK(managed.ints()[0] == 7);
    CHECK(managed.ints()[2] == 40 + i);
  }
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphDestroy(graph));
  CU(cuStreamDestroy(stream));
}

TEST_CASE("managed pages: what is attached to a stream is the host's while others run") {
  const Gpu gpu;
  const Managed managed(4096, CU_MEM_ATTACH_HOST);
  managed.ints()[0] = 1;
  CUstream busy, own;
  CU(cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
  CU(cuStreamAttachMemAsync(own, managed.at, 0, CU_MEM_ATTACH_SINGLE));
  CU(cuStreamSynchronize(own));
  Gate gate(gpu, busy);
  add_one_to(gpu, managed.at, 16, own);
  CU(cuStreamSynchronize(own));
  CHECK(managed.ints()[0] == 2);  // whatever the other one does
  managed.ints()[0] = 5;
  gate.open();
  CU(cuStreamSynchronize(busy));
  CU(cuStreamAttachMemAsync(own, managed.at, 0, CU_MEM_ATTACH_GLOBAL));
  CU(cuStreamSynchronize(own));
  add_one_to(gpu, managed.at, 16, busy);
  CU(cuStreamSynchronize(busy));
  CHECK(managed.ints()[0] == 6);
  CU_IS(cuStreamAttachMemAsync(own, managed.at, 64, CU_MEM_ATTACH_SINGLE),
        CUDA_ERROR_INVALID_VALUE);
  CU(cuStreamDestroy(busy));
  CU(cuStreamDestroy(own));
}

TEST_CASE("managed pages: several threads") {
  const Gpu gpu;
  constexpr int N_EACH = 1 << 18, ROUNDS = 8;
  const Managed managed(4 * N_EACH * sizeof(int));
  std::vector<std::thread> threads;
  std::atomic<int> n_right{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      CUstream stream;
      if (cuCtxSetCurrent(gpu.context) != CUDA_SUCCESS ||
          cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
        return;
      }
      int* const own = managed.ints() + t * N_EACH;
      for (int round = 1; round <= ROUNDS; ++round) {
        own[round] += 10;  // while the others' kernels run
        add_one_to(gpu, reinterpret_cast<CUdeviceptr>(own), 16, stream);
        if (cuStreamSynchronize(stream) != CUDA_SUCCESS) return;
        if (own[0] == round && own[round] == 10 + round) ++n_right;
      }
      cuStreamDestroy(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(n_right == 4 * ROUNDS);
}

TEST_CASE("managed pages: what one thread waits for takes nothing from the work of another") {
  const Gpu gpu;
  constexpr int ROUNDS = 150;
  const Managed managed(4096);  // small: comes back with each synchronisation
  std::atomic<bool> is_over{false};
  std::thread waiting([&] {
    if (cuCtxSetCurrent(gpu.context) != CUDA_SUCCESS) return;
    while (!is_over) (void)cuCtxSynchronize();
  });
  int n_right = 0;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  managed.ints()[0] = 0;
  for (int round = 1; round <= ROUNDS; ++round) {
    add_one_to(gpu, managed.at, 16, stream);
    CU(cuStreamSynchronize(stream));
    n_right += managed.ints()[0] == round;
  }
  is_over = true;
  waiting.join();
  CHECK(n_right == ROUNDS);
  CU(cuStreamDestroy(stream));
}

TEST_CASE("managed pages: threads that touch the same pages at once") {
  const Gpu gpu;
  const Managed managed(BYTES);
  constexpr int N_THREADS = 4;
  for (int round = 0; round < 3; ++round) {
    CU(cuMemsetD32(managed.at, static_cast<unsigned>(round), N));
    CU(cuCtxSynchronize());
    std::atomic<int> n_ready{0};
    std::atomic<long> sum{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < N_THREADS; ++t) {
      threads.emplace_back([&, t] {
        ++n_ready;
        while (n_ready != N_THREADS) std::this_thread::yield();
        long own = 0;
        for (int i = t; i < N; i += N_THREADS * 128) own += managed.ints()[i]++;
        sum += own;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(sum == static_cast<long>(round) * N / 128);
    add_one_to(gpu, managed.at, N_THREADS);
    CU(cuCtxSynchronize());
    for (int t = 0; t < N_THREADS; ++t) CHECK(managed.ints()[t] == round + 2);
  }
}

TEST_CASE("managed pages: a forked child has none of them, its parent goes on") {
  const Gpu gpu;
  const Managed managed(BYTES);
  const auto status_of = [](const auto& child_does) {
    const pid_t child = fork();
    if (child == 0) {
      (void)signal(SIGSEGV, SIG_DFL);
      _exit(child_does());
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return status;
  };
  const auto read = [&] { return *static_cast<volatile int*>(managed.ints()); };
  managed.ints()[0] = 9;
  CHECK(WTERMSIG(status_of(read)) == SIGSEGV);
  add_one_to(gpu, managed.at, 16);
  CHECK(WTERMSIG(status_of(read)) == SIGSEGV);
  CHECK(WEXITSTATUS(status_of([&] { return static_cast<int>(cuMemFree(managed.at)); })) ==
        CUDA_ERROR_NOT_INITIALIZED);
  CHECK(WEXITSTATUS(status_of([] { return static_cast<int>(cuInit(0)); })) ==
        CUDA_ERROR_NOT_INITIALIZED);
  CU(cuCtxSynchronize());
  CHECK(managed.ints()[0] == 10);
}

TEST_CASE("managed pages: the program's own faults are its own") {
  const Gpu gpu;
  own_page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct sigaction own{}, before{};
  own.sa_sigaction = &on_own_fault;
  own.sa_flags = SA_SIGINFO;
  REQUIRE(sigaction(SIGSEGV, &own, &before) == 0);
  {
    const Managed managed(BYTES);
    add_one_to(gpu, managed.at, 16);
    CU(cuCtxSynchronize());
    CHECK(managed.ints()[3] == 1);
    *static_cast<volatile int*>(own_page) = 1;
    CHECK(n_own_faults == 1);
    CHECK(managed.ints()[N / 2] == 0);
    const pid_t child = fork();
    if (child == 0) _exit(*static_cast<volatile int*>(own_page) == 1 ? 0 : 1);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(managed.ints()[4] == 1);
  }
  REQUIRE(sigaction(SIGSEGV, &before, nullptr) == 0);
  munmap(own_page, 4096);
}
