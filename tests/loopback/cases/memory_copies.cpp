// SPDX-License-Identifier: Apache-2.0
// Copies and sets in all their 1D and 2D forms.
#include <algorithm>
#include <cstring>

#include "support.h"

// The forms on the thread's own default stream: cuda.h renames them only for a whole file.
extern "C" {
CUresult cuMemcpy_ptds(CUdeviceptr, CUdeviceptr, size_t);
CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr, const void*, size_t);
CUresult cuMemcpyDtoH_v2_ptds(void*, CUdeviceptr, size_t);
CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr, CUdeviceptr, size_t);
CUresult cuMemcpyAsync_ptsz(CUdeviceptr, CUdeviceptr, size_t, CUstream);
CUresult cuMemsetD8_v2_ptds(CUdeviceptr, unsigned char, size_t);
CUresult cuMemsetD32Async_ptsz(CUdeviceptr, unsigned, size_t, CUstream);
CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D*);
CUresult cuMemsetD2D8_v2_ptds(CUdeviceptr, size_t, unsigned char, size_t, size_t);
}

namespace {

using Bytes = std::vector<unsigned char>;

Bytes pattern(size_t n, unsigned seed) {
  Bytes bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<unsigned char>(i * 31 + i / 251 + seed);
  return bytes;
}

class Device {
 public:
  explicit Device(size_t bytes_) : bytes(bytes_) { CU(cuMemAlloc(&dptr, bytes)); }
  ~Device() { cuMemFree(dptr); }
  Bytes read() const {
    Bytes host(bytes);
    CU(cuMemcpyDtoH(host.data(), dptr, bytes));
    return host;
  }
  void write(const Bytes& from) const { CU(cuMemcpyHtoD(dptr, from.data(), from.size())); }
  CUdeviceptr dptr = 0;
  const size_t bytes;
};

class Pinned {
 public:
  explicit Pinned(size_t bytes) { CU(cuMemHostAlloc(reinterpret_cast<void**>(&data), bytes, 0)); }
  ~Pinned() { cuMemFreeHost(data); }
  unsigned char* data = nullptr;
};

CUdeviceptr uva(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

}  // namespace

TEST_CASE("memory_1d: every copy, at odd offsets and sizes") {
  const Gpu gpu;
  const size_t n = 70001;
  const Bytes from = pattern(n, 3);
  const Device a(n), b(n);
  const Pinned pinned(n);
  for (const size_t offset : {size_t{0}, size_t{1}, size_t{4095}}) {
    CAPTURE(offset);
    const size_t bytes = n - offset - 7;
    const auto expect = [&](const unsigned char* got) {
      CHECK(std::memcmp(got, from.data() + offset, bytes) == 0);
    };
    Bytes to(n);
    CU(cuMemcpyHtoD(a.dptr + offset, from.data() + offset, bytes));
    CU(cuMemcpyDtoD(b.dptr + 1, a.dptr + offset, bytes));
    CU(cuMemcpyDtoH(to.data(), b.dptr + 1, bytes));
    expect(to.data());
    CU(cuMemcpyDtoHAsync(pinned.data + 3, a.dptr + offset, bytes, nullptr));
    CU(cuStreamSynchronize(nullptr));
    expect(pinned.data + 3);
    CU(cuMemsetD8(b.dptr, 0, n));
    CU(cuMemcpyHtoDAsync(b.dptr, pinned.data + 3, bytes, nullptr));
    CU(cuMemcpyDtoHAsync(to.data(), b.dptr, bytes, nullptr));
    CU(cuStreamSynchronize(nullptr));
    expect(to.data());
    // Direction by address, host to host too.
    CU(cuMemsetD8(b.dptr, 0, n));
    CU(cuMemcpyAsync(b.dptr, uva(pinned.data + 3), bytes, nullptr));
    std::fill(to.begin(), to.end(), 0);
    CU(cuMemcpy(uva(to.data()), b.dptr, bytes));
    expect(to.data());
    std::memset(pinned.data, 0, n);
    CU(cuMemcpy(uva(pinned.data), uva(from.data() + offset), bytes));
    expect(pinned.data);
    std::fill(to.begin(), to.end(), 0);
    CU(cuMemcpyAsync(uva(to.data()), uva(pinned.data), bytes, nullptr));
    CU(cuStreamSynchronize(nullptr));
    expect(to.data());
    // Peer forms within one device.
    CU(cuMemsetD8(b.dptr, 0, n));
    CU(cuMemcpyPeer(b.dptr, gpu.context, a.dptr + offset, gpu.context, bytes));
    CU(cuCtxSynchronize());
    CU(cuMemcpyDtoH(to.data(), b.dptr, bytes));
    expect(to.data());
    CU(cuMemsetD8(b.dptr, 0, n));
    CU(cuMemcpyPeerAsync(b.dptr, gpu.context, a.dptr + offset, gpu.context, bytes, nullptr));
    CU(cuMemcpyDtoH(to.data(), b.dptr, bytes));
    expect(to.data());
  }
}

TEST_CASE("memory_1d: forms of the per-thread default stream") {
  const Gpu gpu;
  const Bytes from = pattern(5003, 9);
  const Device a(from.size()), b(from.size());
  Bytes to(from.size());
  CU(cuMemcpyHtoD_v2_ptds(a.dptr, from.data(), from.size()));
  CU(cuMemcpyDtoD_v2_ptds(b.dptr, a.dptr, from.size()));
  CU(cuMemcpyDtoH_v2_ptds(to.data(), b.dptr, from.size()));
  CHECK(to == from);
  CU(cuMemsetD8_v2_ptds(b.dptr, 5, from.size()));
  CU(cuMemcpy_ptds(uva(to.data()), b.dptr, from.size()));
  CHECK(to == Bytes(from.size(), 5));
  CU(cuMemsetD32Async_ptsz(b.dptr, 0x07070707, from.size() / 4, nullptr));
  CU(cuMemcpyAsync_ptsz(uva(to.data()), b.dptr, 5000, nullptr));
  CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  CHECK(to[4999] == 7);
}

TEST_CASE("memory_1d: sets of 8, 16 and 32 bits, in order with other work of the stream") {
  const Gpu gpu;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const Device a(64);
  CU(cuMemsetD8Async(a.dptr, 0x11, 64, stream));
  CU(cuMemsetD16Async(a.dptr + 2, 0x2233, 3, stream));
  CU(cuMemsetD32Async(a.dptr + 8, 0x44556677, 2, stream));
  CU(cuStreamSynchronize(stream));
  Bytes expected(64, 0x11);
  for (size_t i = 2; i < 8; i += 2) expected[i] = 0x33, expected[i + 1] = 0x22;
  for (size_t i = 8; i < 16; i += 4) {
    expected[i] = 0x77, expected[i + 1] = 0x66, expected[i + 2] = 0x55, expected[i + 3] = 0x44;
  }
  CHECK(a.read() == expected);
  CU(cuMemsetD16(a.dptr, 0, 32));
  CHECK(a.read() == Bytes(64, 0));
  CU(cuMemsetD32(a.dptr, 0x01010101, 16));
  CHECK(a.read() == Bytes(64, 1));
  CU_IS(cuMemsetD16(a.dptr + 1, 0, 1), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemsetD32Async(a.dptr + 2, 0, 1, stream), CUDA_ERROR_INVALID_VALUE);
  CU(cuStreamDestroy(stream));
}

TEST_CASE("memory_1d: nothing to copy, bad pointers") {
  const Gpu gpu;
  const Device a(1000);
  Bytes host(1000);
  CU(cuMemcpyHtoD(a.dptr, host.data(), 0));
  CU(cuMemcpyDtoH(host.data(), a.dptr, 0));
  CU(cuMemcpyDtoD(a.dptr, a.dptr + 1, 0));
  CU(cuMemsetD8(a.dptr, 1, 0));
  CU_IS(cuMemcpyHtoD(0, host.data(), 8), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemcpyHtoD(a.dptr, nullptr, 8), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemcpyDtoH(host.data(), 0, 8), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemcpyHtoD(a.dptr, host.data(), 1ull << 40), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemFree(a.dptr + 8), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CU(cuMemGetAddressRange(&base, nullptr, a.dptr + 999));
  CU(cuMemGetAddressRange(nullptr, &bytes, a.dptr + 999));
  CHECK(base == a.dptr);
  CHECK(bytes == 1000);
  CU_IS(cuMemGetAddressRange(&base, &bytes, uva(host.data())), CUDA_ERROR_NOT_FOUND);
}

TEST_CASE("memory_2d: every pair of pageable, pinned and device rows") {
  const Gpu gpu;
  const size_t pitch = 1024 + 64, rows = 40, x = 5, y = 3, width = 1001, height = 30;
  const Bytes from = pattern(pitch * rows, 1);
  const Device source(pitch * rows), target(pitch * rows);
  const Pinned pinned_source(pitch * rows), pinned_target(pitch * rows);
  source.write(from);
  std::memcpy(pinned_source.data, from.data(), from.size());
  Bytes pageable(pitch * rows);
  for (int src = 0; src < 3; ++src) {
    for (int dst = 0; dst < 3; ++dst) {
      CAPTURE(src);
      CAPTURE(dst);
      std::fill(pageable.begin(), pageable.end(), 0xee);
      std::memset(pinned_target.data, 0xee, pitch * rows);
      CU(cuMemsetD8(target.dptr, 0xee, pitch * rows));
      CUDA_MEMCPY2D copy{};
      copy.srcMemoryType = src == 2 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      copy.srcHost = src == 0 ? from.data() : pinned_source.data;
      copy.srcDevice = source.dptr;
      copy.srcXInBytes = x;
      copy.srcY = y;
      copy.srcPitch = pitch;
      copy.dstMemoryType = dst == 2 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      copy.dstHost = dst == 0 ? pageable.data() : pinned_target.data;
      copy.dstDevice = target.dptr;
      copy.dstXInBytes = 2 * x;
      copy.dstY = 2 * y;
      copy.dstPitch = pitch;
      copy.WidthInBytes = width;
      copy.Height = height;
      switch ((src + dst) % 3) {
        case 0:
          CU(cuMemcpy2D(&copy));
          break;
        case 1:
          CU(cuMemcpy2DUnaligned(&copy));
          break;
        default:
          CU(cuMemcpy2DAsync(&copy, nullptr));
          break;
      }
      CU(cuCtxSynchronize());
      Bytes got = dst == 0   ? pageable
                  : dst == 1 ? Bytes(pinned_target.data, pinned_target.data + pitch * rows)
                             : target.read();
      Bytes expected(pitch * rows, 0xee);
      for (size_t row = 0; row < height; ++row) {
        std::memcpy(&expected[(2 * y + row) * pitch + 2 * x], &from[(y + row) * pitch + x], width);
      }
      CHECK(got == expected);
    }
  }
}

TEST_CASE("memory_2d: unified addresses, many megabytes, the per-thread form") {
  const Gpu gpu;
  const size_t width = 3 << 20, pitch = width + 512, height = 3;
  const Bytes from = pattern(width * height, 7);
  const Device middle(pitch * height);
  CUDA_MEMCPY2D up{}, down{};
  up.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  up.srcDevice = uva(from.data());
  up.srcPitch = width;
  up.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  up.dstDevice = middle.dptr;
  up.dstPitch = pitch;
  up.WidthInBytes = width;
  up.Height = height;
  CU(cuMemcpy2D(&up));
  Bytes to(width * height);
  down.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  down.srcDevice = middle.dptr;
  down.srcPitch = pitch;
  down.dstMemoryType = CU_MEMORYTYPE_HOST;
  down.dstHost = to.data();
  down.dstPitch = width;
  down.WidthInBytes = width;
  down.Height = height;
  CU(cuMemcpy2D_v2_ptds(&down));
  CHECK(to == from);
}

TEST_CASE("memory_2d: bad pitches, types and ranges; nothing to copy") {
  const Gpu gpu;
  const Device a(4096);
  Bytes host(4096);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host.data();
  copy.srcPitch = 64;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = a.dptr;
  copy.dstPitch = 64;
  copy.WidthInBytes = 64;
  copy.Height = 64;
  CU(cuMemcpy2D(&copy));
  copy.Height = 65;
  CU_IS(cuMemcpy2D(&copy), CUDA_ERROR_INVALID_VALUE);
  copy.Height = 2;
  copy.srcPitch = 63;
  CU_IS(cuMemcpy2D(&copy), CUDA_ERROR_INVALID_VALUE);
  copy.srcPitch = 64;
  copy.dstPitch = 63;
  CU_IS(cuMemcpy2DUnaligned(&copy), CUDA_ERROR_INVALID_VALUE);
  copy.dstPitch = 64;
  copy.srcMemoryType = static_cast<CUmemorytype>(99);
  CHECK(cuMemcpy2D(&copy) != CUDA_SUCCESS);
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.WidthInBytes = 0;
  CU(cuMemcpy2D(&copy));
  CU_IS(cuMemcpy2D(nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("memory_2d: sets of rows, also in order and of the per-thread stream") {
  const Gpu gpu;
  CUstream stream;
  CU(cuStreamCreate(&stream, 0));
  const size_t pitch = 64, rows = 8;
  const Device a(pitch * rows);
  CU(cuMemsetD8(a.dptr, 0, pitch * rows));
  CU(cuMemsetD2D8(a.dptr + 1, pitch, 1, 3, 4));
  CU(cuMemsetD2D16(a.dptr + 8, pitch, 0x0202, 3, 4));
  CU(cuMemsetD2D32(a.dptr + 16, pitch, 0x03030303, 3, 4));
  CU(cuMemsetD2D8Async(a.dptr + 4 * pitch, pitch, 4, 3, 4, stream));
  CU(cuMemsetD2D16Async(a.dptr + 4 * pitch + 8, pitch, 0x0505, 3, 4, stream));
  CU(cuMemsetD2D32Async(a.dptr + 4 * pitch + 16, pitch, 0x06060606, 3, 4, stream));
  CU(cuMemsetD2D8_v2_ptds(a.dptr + 40, pitch, 7, 24, rows));
  CU(cuCtxSynchronize());
  Bytes expected(pitch * rows);
  const auto fill = [&](size_t at, size_t width, size_t n, int value) {
    for (size_t row = 0; row < n; ++row) std::memset(&expected[at + row * pitch], value, width);
  };
  fill(1, 3, 4, 1), fill(8, 6, 4, 2), fill(16, 12, 4, 3);
  fill(4 * pitch, 3, 4, 4), fill(4 * pitch + 8, 6, 4, 5), fill(4 * pitch + 16, 12, 4, 6);
  fill(40, 24, rows, 7);
  CHECK(a.read() == expected);
  CU_IS(cuMemsetD2D16(a.dptr + 1, pitch, 0, 1, 1), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemsetD2D8(a.dptr, pitch, 0, pitch, rows + 1), CUDA_ERROR_INVALID_VALUE);
  CU(cuMemsetD2D8(a.dptr, pitch, 0, 0, 5));
  CU(cuStreamDestroy(stream));
}

TEST_CASE("memory_2d: captured rows are copied again by each launch of the graph") {
  const Gpu gpu;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const size_t pitch = 32, rows = 4;
  const Pinned source(pitch * rows);
  const Device target(pitch * rows);
  std::memset(source.data, 1, pitch * rows);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = source.data;
  copy.srcPitch = pitch;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = target.dptr;
  copy.dstPitch = pitch;
  copy.WidthInBytes = pitch;
  copy.Height = rows;
  CUgraph graph;
  CUgraphExec exec;
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CU(cuMemsetD2D8Async(target.dptr, pitch, 9, pitch, rows, stream));
  CU(cuMemcpy2DAsync(&copy, stream));
  CU(cuStreamEndCapture(stream, &graph));
  CU(cuGraphInstantiate(&exec, graph, 0));
  for (int round = 1; round < 3; ++round) {
    std::memset(source.data, round, pitch * rows);
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
    CHECK(target.read() == Bytes(pitch * rows, static_cast<unsigned char>(round)));
  }
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphDestroy(graph));
  CU(cuStreamDestroy(stream));
}

TEST_CASE("memory_2d: linear memory in three dimensions") {
  const Gpu gpu;
  const size_t pitch = 128, height = 6, depth = 5;
  const Bytes from = pattern(pitch * height * depth, 2);
  const Device target(from.size());
  CU(cuMemsetD8(target.dptr, 0, from.size()));
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = from.data();
  copy.srcPitch = pitch;
  copy.srcHeight = height;
  copy.srcXInBytes = 3;
  copy.srcY = 1;
  copy.srcZ = 1;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = target.dptr;
  copy.dstPitch = pitch;
  copy.dstHeight = height;
  copy.WidthInBytes = 100;
  copy.Height = 4;
  copy.Depth = 3;
  CU(cuMemcpy3D(&copy));
  Bytes expected(from.size());
  for (size_t z = 0; z < 3; ++z) {
    for (size_t y = 0; y < 4; ++y) {
      std::memcpy(&expected[(z * height + y) * pitch],
                  &from[((z + 1) * height + y + 1) * pitch + 3], 100);
    }
  }
  CHECK(target.read() == expected);
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = target.dptr;
  copy.srcXInBytes = copy.srcY = copy.srcZ = 0;
  const Pinned pinned(from.size());
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = pinned.data;
  CU(cuMemcpy3DAsync(&copy, nullptr));
  CU(cuStreamSynchronize(nullptr));
  CHECK(std::memcmp(pinned.data + (2 * height + 3) * pitch, &expected[(2 * height + 3) * pitch],
                    100) == 0);
}
