// SPDX-License-Identifier: Apache-2.0
// Host memory that is page-locked: allocated, or registered where it is.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "support.h"

namespace {

constexpr size_t PAGE = 4096;

// Pages of the process's own.
class Pages {
 public:
  explicit Pages(size_t bytes_, int flags = MAP_PRIVATE | MAP_ANONYMOUS, int fd = -1)
      : bytes(bytes_) {
    void* const p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    REQUIRE(p != MAP_FAILED);
    data = static_cast<unsigned char*>(p);
  }
  ~Pages() { munmap(data, bytes); }
  void fill(unsigned seed) const {
    for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<unsigned char>(i / 7 + seed);
  }
  bool holds(unsigned seed) const {
    for (size_t i = 0; i < bytes; ++i) {
      if (data[i] != static_cast<unsigned char>(i / 7 + seed)) return false;
    }
    return true;
  }
  unsigned char* data = nullptr;
  const size_t bytes;
};

// There and back through the device, asynchronously.
void round_trip(unsigned char* host, size_t bytes) {
  CUdeviceptr device;
  CUstream stream;
  CU(cuMemAlloc(&device, bytes));
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  std::vector<unsigned char> before(host, host + bytes);
  CU(cuMemcpyHtoDAsync(device, host, bytes, stream));
  CU(cuStreamSynchronize(stream));
  std::memset(host, 0, bytes);
  CU(cuMemcpyDtoHAsync(host, device, bytes, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(std::memcmp(host, before.data(), bytes) == 0);
  CU(cuStreamDestroy(stream));
  CU(cuMemFree(device));
}

}  // namespace

TEST_CASE("host_alloc: every flag, flags and device pointers inside the buffer") {
  const Gpu gpu;
  for (unsigned flags = 0; flags < 8; ++flags) {
    CAPTURE(flags);
    unsigned char* host = nullptr;
    CU(cuMemHostAlloc(reinterpret_cast<void**>(&host), 3 * PAGE, flags));
    unsigned got = 0;
    CU(cuMemHostGetFlags(&got, host));
    // Natively a small area made after others may lie in one of theirs that is not portable by
    // name.
    CHECK((got & flags & ~CU_MEMHOSTALLOC_PORTABLE) == (flags & ~CU_MEMHOSTALLOC_PORTABLE));
    CU(cuMemHostGetFlags(&got, host + PAGE));
    CUdeviceptr device = 0;
    CU(cuMemHostGetDevicePointer(&device, host + 100, 0));
    CHECK(device == reinterpret_cast<CUdeviceptr>(host + 100));
    host[0] = 1;
    host[3 * PAGE - 1] = 2;
    round_trip(host, 3 * PAGE);
    CU(cuMemFreeHost(host));
  }
  void* host = nullptr;
  CU(cuMemAllocHost(&host, 1));
  CU(cuMemFreeHost(host));
  CU_IS(cuMemHostAlloc(&host, 1, 0x80), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemHostAlloc(nullptr, 1, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("host_alloc: freeing waits for the work that uses it") {
  const Gpu gpu;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  int* host = nullptr;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&host), sizeof(int), 0));
  *host = 41;
  const Ints data(1, 0);
  const auto dptr = data.dptr;
  {
    Gate gate(gpu, stream);
    CU(cuMemcpyHtoDAsync(dptr, host, sizeof(int), stream));
    std::thread opener([&gate] {
      usleep(100'000);
      gate.open();
    });
    CU(cuMemFreeHost(host));
    opener.join();
    CU(cuStreamSynchronize(stream));
  }
  CHECK(data.read()[0] == 41);
  CU(cuStreamDestroy(stream));
}

TEST_CASE("host_alloc: what was freed piece by piece and comes back as one can be copied as one") {
  const Gpu gpu;
  constexpr size_t PIECE = 20 << 20, WHOLE = 2 * PIECE;
  void *first = nullptr, *second = nullptr;
  CU(cuMemHostAlloc(&first, PIECE, 0));
  CU(cuMemHostAlloc(&second, PIECE, 0));
  CU(cuMemFreeHost(first));
  CU(cuMemFreeHost(second));
  char* host = nullptr;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&host), WHOLE, 0));
  CUdeviceptr device = 0;
  CU(cuMemAlloc(&device, WHOLE));
  host[0] = 'a';
  host[WHOLE - 1] = 'z';
  CU(cuMemcpyHtoD(device, host, WHOLE));
  host[0] = host[WHOLE - 1] = 0;
  CU(cuMemcpyDtoH(host, device, WHOLE));
  CHECK(host[0] == 'a');
  CHECK(host[WHOLE - 1] == 'z');
  CU(cuMemFree(device));
  CU(cuMemFreeHost(host));
}

TEST_CASE("host_alloc: a reset of the context takes its buffers along") {
  {
    const Gpu gpu;
    void* host = nullptr;
    CU(cuMemHostAlloc(&host, PAGE, 0));
    const Pages pages(4 * PAGE);
    pages.fill(1);
    CU(cuMemHostRegister(pages.data, pages.bytes, 0));
    CU(cuDevicePrimaryCtxReset(gpu.device));
    // Ordinary memory again, with what was in it.
    CHECK(pages.holds(1));
  }
  const Gpu gpu;
  const Pages pages(4 * PAGE);
  pages.fill(2);
  CU(cuMemHostRegister(pages.data, pages.bytes, 0));
  round_trip(pages.data, pages.bytes);
  CU(cuMemHostUnregister(pages.data));
}

TEST_CASE("host_register: private pages keep address and contents, and the GPU reaches them") {
  const Gpu gpu;
  const Pages pages(64 * PAGE);
  pages.fill(5);
  CU(cuMemHostRegister(pages.data, pages.bytes, CU_MEMHOSTREGISTER_DEVICEMAP));
  CHECK(pages.holds(5));
  CUdeviceptr device = 0;
  CU(cuMemHostGetDevicePointer(&device, pages.data + 8, 0));
  auto* const number = reinterpret_cast<volatile int*>(pages.data + 8);
  *number = 41;
  int n = 1;
  launch(gpu.function("add_one"), nullptr, {&device, &n});
  CU(cuCtxSynchronize());
  CHECK(*number == 42);
  round_trip(pages.data, pages.bytes);
  pages.fill(6);
  CU(cuMemHostUnregister(pages.data));
  CHECK(pages.holds(6));
  pages.fill(7);
  CHECK(pages.holds(7));
  CU(cuMemHostRegister(pages.data, pages.bytes, 0));
  round_trip(pages.data, pages.bytes);
  CU(cuMemHostUnregister(pages.data));
  CHECK(pages.holds(7));
}

TEST_CASE("host_register: pinned copies are asynchronous") {
  const Gpu gpu;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const Pages pages(16 * PAGE);
  pages.fill(1);
  CU(cuMemHostRegister(pages.data, pages.bytes, 0));
  CUdeviceptr device;
  CU(cuMemAlloc(&device, pages.bytes));
  {
    Gate gate(gpu, stream);
    CU(cuMemcpyHtoDAsync(device, pages.data, pages.bytes, stream));
    pages.fill(2);  // before the copy runs: this is what it must find
    gate.open();
    CU(cuStreamSynchronize(stream));
  }
  std::memset(pages.data, 0, pages.bytes);
  CU(cuMemcpyDtoHAsync(pages.data, device, pages.bytes, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(pages.holds(2));
  CU(cuMemHostUnregister(pages.data));
  CU(cuMemFree(device));
  CU(cuStreamDestroy(stream));
}

TEST_CASE("host_register: any offset and size, heap memory, neighbours untouched") {
  const Gpu gpu;
  const Pages pages(64 * PAGE);
  for (const size_t offset : {size_t{0}, size_t{1}, PAGE - 1}) {
    for (const size_t bytes : {size_t{1}, PAGE, 2 * PAGE + 5, 60 * PAGE}) {
      CAPTURE(offset);
      CAPTURE(bytes);
      pages.fill(3);
      CU(cuMemHostRegister(pages.data + offset, bytes, 0));
      round_trip(pages.data + offset, bytes);
      CU(cuMemHostUnregister(pages.data + offset));
      CHECK(pages.holds(3));
    }
  }
  std::vector<unsigned char> small(100'000, 9), large(3 << 20, 8);
  CU(cuMemHostRegister(small.data(), small.size(), 0));
  CU(cuMemHostRegister(large.data(), large.size(), 0));
  round_trip(small.data(), small.size());
  round_trip(large.data(), large.size());
  CU(cuMemHostUnregister(large.data()));
  CU(cuMemHostUnregister(small.data()));
  CHECK(small[99'999] == 9);
  CHECK(large[1 << 20] == 8);
}

// Natively, Linux 6.5 and newer refuse a shared file of a disk for good reason: the GPU would write
// past the file system. So the file is one of memory here.
TEST_CASE("host_register: shared memory and files") {
  const Gpu gpu;
  const Pages shared(8 * PAGE, MAP_SHARED | MAP_ANONYMOUS);
  const int file = memfd_create("case", 0);
  REQUIRE(file >= 0);
  REQUIRE(ftruncate(file, 8 * PAGE) == 0);
  const Pages mapped(8 * PAGE, MAP_SHARED, file), copied(8 * PAGE, MAP_PRIVATE, file);
  for (const Pages* pages : {&shared, &mapped, &copied}) {
    pages->fill(4);
    CU(cuMemHostRegister(pages->data, pages->bytes, 0));
    round_trip(pages->data, pages->bytes);
    CU(cuMemHostUnregister(pages->data));
    CHECK(pages->holds(4));
  }
  unsigned char last = 0;
  REQUIRE(pread(file, &last, 1, 8 * PAGE - 1) == 1);
  CHECK(last == mapped.data[8 * PAGE - 1]);
  close(file);
}

TEST_CASE("host_register: errors") {
  const Gpu gpu;
  const Pages pages(4 * PAGE);
  CU_IS(cuMemHostRegister(nullptr, PAGE, 0), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemHostRegister(pages.data, 0, 0), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemHostRegister(pages.data, PAGE, 0x100), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemHostUnregister(pages.data), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  CU(cuMemHostRegister(pages.data, 2 * PAGE, 0));
  CU_IS(cuMemHostRegister(pages.data, 2 * PAGE, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CU_IS(cuMemHostRegister(pages.data + PAGE, 2 * PAGE, 0),
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CU(cuMemHostRegister(pages.data + 2 * PAGE, 2 * PAGE, 0));
  CU(cuMemHostUnregister(pages.data + 2 * PAGE));
  CU(cuMemHostUnregister(pages.data));
  // A hole.
  REQUIRE(munmap(pages.data + PAGE, PAGE) == 0);
  CHECK(cuMemHostRegister(pages.data, 4 * PAGE, 0) != CUDA_SUCCESS);
  pages.data[0] = 1;
}

TEST_CASE("host_register: threads that write meanwhile lose nothing") {
  const Gpu gpu;
  const Pages pages(1024 * PAGE);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> rounds{0};
  std::atomic<bool> lost{false};
  std::thread writer([&] {
    auto* const words = reinterpret_cast<volatile uint64_t*>(pages.data);
    const size_t n = pages.bytes / sizeof(uint64_t);
    for (uint64_t round = 1; !stop; ++round) {
      for (size_t i = 0; i < n; i += 61) {
        if (words[i] != round - 1) lost = true;
        words[i] = round;
      }
      rounds = round;
    }
  });
  for (int i = 0; i < 20; ++i) {
    CU(cuMemHostRegister(pages.data, pages.bytes, 0));
    CU(cuMemHostUnregister(pages.data));
  }
  const uint64_t seen = rounds;
  while (rounds < seen + 2) usleep(1000);
  stop = true;
  writer.join();
  CHECK_FALSE(lost);
}

TEST_CASE("host_register: a forked child has private copies, its parent is unharmed") {
  const Gpu gpu;
  const Pages pages(256 * PAGE);
  pages.fill(1);
  CU(cuMemHostRegister(pages.data, pages.bytes, 0));
  int to_child[2], to_parent[2];
  REQUIRE(pipe(to_child) == 0);
  REQUIRE(pipe(to_parent) == 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    (void)!read(to_child[0], &byte, 1);  // by now the parent has written
    const bool as_forked = pages.holds(1);
    pages.fill(9);
    (void)!write(to_parent[1], "", 1);
    _exit(as_forked && pages.holds(9) ? 0 : 1);
  }
  REQUIRE(child > 0);
  pages.fill(2);
  REQUIRE(write(to_child[1], "", 1) == 1);
  char byte = 0;
  REQUIRE(read(to_parent[0], &byte, 1) == 1);
  CHECK(pages.holds(2));
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  round_trip(pages.data, pages.bytes);
  CU(cuMemHostUnregister(pages.data));
  CHECK(pages.holds(2));
  for (const int fd : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) close(fd);
}
