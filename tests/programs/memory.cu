// SPDX-License-Identifier: Apache-2.0
// Copies and fills in all forms, pinned and pageable, odd sizes and large ones; pointers and zero
// copy.
#include <cstring>
#include <string>
#include <vector>

#include "check.h"

static void fill_pattern(unsigned char* to, size_t n_bytes, unsigned seed) {
  for (size_t i = 0; i < n_bytes; ++i) to[i] = static_cast<unsigned char>((i * 131 + seed) >> 3);
}

__global__ void sum_host(const unsigned* host, unsigned* out, int n) {
  unsigned sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += host[i];
  atomicAdd(out, sum);
}

__global__ void write_host(unsigned* host, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) host[i] = i * 3u;
}

/// There and back through two device buffers; `async` on a stream of its own.
static bool round_trip(unsigned char* in, unsigned char* out, size_t n_bytes, bool async) {
  unsigned char *first, *second;
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaMalloc(&first, n_bytes + 64));
  CHECK(cudaMalloc(&second, n_bytes + 64));
  memset(out, 0, n_bytes);
  if (async) {
    CHECK(cudaMemcpyAsync(first + 1, in, n_bytes, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemcpyAsync(second + 3, first + 1, n_bytes, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaMemcpyAsync(out, second + 3, n_bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
  } else {
    CHECK(cudaMemcpy(first + 1, in, n_bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(second + 3, first + 1, n_bytes, cudaMemcpyDefault));
    CHECK(cudaMemcpy(out, second + 3, n_bytes, cudaMemcpyDefault));
  }
  CHECK(cudaFree(first));
  CHECK(cudaFree(second));
  CHECK(cudaStreamDestroy(stream));
  return memcmp(in, out, n_bytes) == 0;
}

static void copies() {
  const size_t sizes[] = {1, 3, 63, 64, 4095, 4097, 65537, 1000003, 64u << 20};
  for (const size_t n_bytes : sizes) {
    std::vector<unsigned char> in(n_bytes), out(n_bytes);
    unsigned char *pinned_in, *pinned_out;
    CHECK(cudaMallocHost(&pinned_in, n_bytes));
    CHECK(cudaHostAlloc(&pinned_out, n_bytes, cudaHostAllocDefault));
    fill_pattern(in.data(), n_bytes, static_cast<unsigned>(n_bytes));
    memcpy(pinned_in, in.data(), n_bytes);
    bool right = round_trip(in.data(), out.data(), n_bytes, false);
    right = round_trip(in.data(), out.data(), n_bytes, true) && right;
    right = round_trip(pinned_in, pinned_out, n_bytes, false) && right;
    right = round_trip(pinned_in, pinned_out, n_bytes, true) && right;
    right = round_trip(in.data(), pinned_out, n_bytes, true) && right;
    report(("copies of " + std::to_string(n_bytes) + " bytes").c_str(), right,
           checksum(pinned_out, n_bytes));
    CHECK(cudaFreeHost(pinned_in));
    CHECK(cudaFreeHost(pinned_out));
  }
}

static void pageable_source_may_change() {
  constexpr size_t N = 4096;
  std::vector<unsigned char> in(N, 7), out(N);
  unsigned char* device;
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaMalloc(&device, N));
  CHECK(cudaMemcpyAsync(device, in.data(), N, cudaMemcpyHostToDevice, stream));
  memset(in.data(), 9, N);
  CHECK(cudaMemcpyAsync(out.data(), device, N, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  report("a pageable source is read before the call returns",
         out == std::vector<unsigned char>(N, 7), out[0]);
  CHECK(cudaFree(device));
  CHECK(cudaStreamDestroy(stream));
}

static void fills() {
  constexpr size_t N = 100'001;
  std::vector<unsigned char> out(N);
  unsigned char* device;
  CHECK(cudaMalloc(&device, N));
  CHECK(cudaMemset(device, 0xa5, N));
  CHECK(cudaMemset(device + 1, 0x11, 7));
  CHECK(cudaMemsetAsync(device + N - 3, 0x22, 3, cudaStreamPerThread));
  CHECK(cudaStreamSynchronize(cudaStreamPerThread));
  CHECK(cudaMemcpy(out.data(), device, N, cudaMemcpyDeviceToHost));
  bool right = true;
  for (size_t i = 0; i < N; ++i)
    right = right && out[i] == (i >= 1 && i < 8 ? 0x11 : i >= N - 3 ? 0x22 : 0xa5);
  report("fills", right, checksum(out.data(), N));
  CHECK(cudaFree(device));
}

static bool is_less_free_by(size_t bytes) {
  size_t before = 0, during = 0, total = 0;
  void* device;
  CHECK(cudaMemGetInfo(&before, &total));
  CHECK(cudaMalloc(&device, bytes));
  CHECK(cudaMemGetInfo(&during, &total));
  CHECK(cudaFree(device));
  return total >= before && before >= during + bytes / 2;
}

static void information() {
  constexpr size_t N = 64u << 20;
  CHECK(cudaFree(nullptr));
  // Natively other processes' memory counts, too, and they may free some of it meanwhile.
  bool right = false;
  for (int i = 0; i < 8 && !right; ++i) right = is_less_free_by(N);
  report("memory information", right);
  void *device, *pinned;
  CHECK(cudaMalloc(&device, N));
  int plain = 0;
  CHECK(cudaMallocHost(&pinned, 4096));
  cudaPointerAttributes attributes;
  CHECK(cudaPointerGetAttributes(&attributes, static_cast<char*>(device) + 100));
  report("attributes of a device pointer",
         attributes.type == cudaMemoryTypeDevice && attributes.device == 0 &&
             attributes.devicePointer == static_cast<char*>(device) + 100);
  CHECK(cudaPointerGetAttributes(&attributes, static_cast<char*>(pinned) + 8));
  report("attributes of a pinned pointer",
         attributes.type == cudaMemoryTypeHost &&
             attributes.hostPointer == static_cast<char*>(pinned) + 8);
  CHECK(cudaPointerGetAttributes(&attributes, &plain));
  report("attributes of a plain pointer", attributes.type == cudaMemoryTypeUnregistered);
  CHECK(cudaFree(device));
  CHECK(cudaFreeHost(pinned));
}

static void zero_copy() {
  constexpr int N = 50'000;
  unsigned *pinned, *mapped, *out, result = 0, expected = 0;
  CHECK(cudaHostAlloc(&pinned, N * sizeof(unsigned), cudaHostAllocMapped));
  for (int i = 0; i < N; ++i) expected += pinned[i] = static_cast<unsigned>(i) * 2654435761u;
  CHECK(cudaHostGetDevicePointer(&mapped, pinned, 0));
  CHECK(cudaMalloc(&out, sizeof(unsigned)));
  CHECK(cudaMemset(out, 0, sizeof(unsigned)));
  sum_host<<<1, 256>>>(mapped, out, N);
  CHECK(cudaMemcpy(&result, out, sizeof result, cudaMemcpyDeviceToHost));
  report("kernel reads pinned memory", result == expected, result);
  write_host<<<(N + 255) / 256, 256>>>(mapped, N);
  CHECK(cudaDeviceSynchronize());
  bool right = true;
  for (int i = 0; i < N; ++i) right = right && pinned[i] == i * 3u;
  report("kernel writes pinned memory", right, checksum(pinned, N * sizeof(unsigned)));
  CHECK(cudaFree(out));
  CHECK(cudaFreeHost(pinned));
}

static void large_pinned() {
  constexpr size_t N = 96u << 20;
  unsigned char* pinned;
  CHECK(cudaMallocHost(&pinned, N));
  memset(pinned, 1, N);
  pinned[N - 1] = 2;
  report("large pinned allocation", pinned[0] == 1 && pinned[N / 2] == 1 && pinned[N - 1] == 2, N);
  CHECK(cudaFreeHost(pinned));
}

static void many_allocations() {
  std::vector<unsigned*> blocks(200);
  bool right = true;
  for (size_t i = 0; i < blocks.size(); ++i) {
    CHECK(cudaMalloc(&blocks[i], 4096 + i * 16));
    CHECK(cudaMemset(blocks[i], static_cast<int>(i), 4096));
  }
  for (size_t i = 0; i < blocks.size(); i += 2) CHECK(cudaFree(blocks[i]));
  for (size_t i = 1; i < blocks.size(); i += 2) {
    unsigned char bytes[4096];
    CHECK(cudaMemcpy(bytes, blocks[i], sizeof bytes, cudaMemcpyDeviceToHost));
    right = right && bytes[0] == i && bytes[4095] == i;
    CHECK(cudaFree(blocks[i]));
  }
  report("many allocations", right, blocks.size());
}

int main() {
  copies();
  pageable_source_may_change();
  fills();
  information();
  zero_copy();
  large_pinned();
  many_allocations();
  return finish("memory");
}
