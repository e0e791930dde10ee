// SPDX-License-Identifier: Apache-2.0
// Batches of 1D copies.
#include <cstring>

#include "support.h"

namespace {

constexpr int N = 1000;
constexpr size_t BYTES = N * sizeof(int);

CUdeviceptr uva(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

CUmemcpyAttributes in_order(CUmemcpySrcAccessOrder order) {
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = order;
  return attributes;
}

// Pinned ints.
class Pinned {
 public:
  explicit Pinned(int value) {
    CU(cuMemHostAlloc(reinterpret_cast<void**>(&data), BYTES, 0));
    fill(value);
  }
  ~Pinned() { cuMemFreeHost(data); }
  void fill(int value) const { std::fill(data, data + N, value); }
  int* data = nullptr;
};

struct Stream {
  Stream() { CU(cuStreamCreate(&raw, CU_STREAM_NON_BLOCKING)); }
  ~Stream() { cuStreamDestroy(raw); }
  CUstream raw = nullptr;
};

struct Batch {
  std::vector<CUdeviceptr> dsts, srcs;
  std::vector<size_t> sizes, first_of{0};
  std::vector<CUmemcpyAttributes> attributes{in_order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)};

  void add(CUdeviceptr dst, CUdeviceptr src, size_t bytes = BYTES) {
    dsts.push_back(dst);
    srcs.push_back(src);
    sizes.push_back(bytes);
  }
  CUresult copy(CUstream stream) {
    return cuMemcpyBatchAsync(dsts.data(), srcs.data(), sizes.data(), dsts.size(),
                              attributes.data(), first_of.data(), attributes.size(), stream);
  }
  // The form of CUDA 12.8, which names the copy that was at fault.
  CUresult copy(CUstream stream, size_t* failed) {
    using Form = CUresult(CUDAAPI*)(CUdeviceptr*, CUdeviceptr*, size_t*, size_t,
                                    CUmemcpyAttributes*, size_t*, size_t, size_t*, CUstream);
    Form form = nullptr;
    CU(cuGetProcAddress("cuMemcpyBatchAsync", reinterpret_cast<void**>(&form), 12080, 0, nullptr));
    return form(dsts.data(), srcs.data(), sizes.data(), dsts.size(), attributes.data(),
                first_of.data(), attributes.size(), failed, stream);
  }
};

}  // namespace

TEST_CASE("memory_batch: copies in every direction, each with its order of access") {
  const Gpu gpu;
  const Stream stream;
  const Ints a(N), b(N, 2), c(N), d(N, 4), e(N);
  const Pinned pinned(1), back(0);
  std::vector<int> pageable(N, 3), pageable_back(N);
  Batch batch;
  batch.add(a.dptr, uva(pinned.data));
  batch.add(c.dptr, b.dptr);
  batch.add(uva(back.data), d.dptr);
  batch.add(e.dptr, uva(pageable.data()));
  batch.add(uva(pageable_back.data()), b.dptr, 8);
  batch.attributes.push_back(in_order(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL));
  batch.attributes.push_back(in_order(CU_MEMCPY_SRC_ACCESS_ORDER_ANY));
  batch.attributes.back().flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
  batch.first_of = {0, 3, 4};
  CU(batch.copy(stream.raw));
  std::fill(pageable.begin(), pageable.end(), 0);
  CU(cuStreamSynchronize(stream.raw));
  CHECK(a.read() == std::vector(N, 1));
  CHECK(c.read() == std::vector(N, 2));
  CHECK(e.read() == std::vector(N, 3));
  CHECK(std::vector(back.data, back.data + N) == std::vector(N, 4));
  CHECK(pageable_back[1] == 2);
  CHECK(pageable_back[2] == 0);
  size_t failed = 7;
  pinned.fill(5);
  CU(batch.copy(CU_STREAM_PER_THREAD, &failed));
  CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  CHECK(a.read() == std::vector(N, 5));
}

// Natively (driver 580) it does not end: a batch waits for the stream that is held up.
TEST_CASE("memory_batch, beyond native: a source read during the call is free after it") {
  const Gpu gpu;
  const Stream stream;
  const Ints during(N), ordered(N);
  const Pinned ephemeral(1), lasting(1);
  add_one(gpu, ordered, stream.raw);  // loads the kernel
  CU(cuStreamSynchronize(stream.raw));
  Gate gate(gpu, stream.raw);
  Batch batch;
  batch.attributes[0] = in_order(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
  batch.add(during.dptr, uva(ephemeral.data));
  CU(batch.copy(stream.raw));
  ephemeral.fill(2);
  batch.attributes[0] = in_order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
  batch.dsts[0] = ordered.dptr;
  batch.srcs[0] = uva(lasting.data);
  CU(batch.copy(stream.raw));
  lasting.fill(2);
  gate.open();
  CU(cuStreamSynchronize(stream.raw));
  CHECK(during.read() == std::vector(N, 1));
  CHECK(ordered.read() == std::vector(N, 2));
}

TEST_CASE("memory_batch: what is refused copies nothing, and names the copy at fault") {
  const Gpu gpu;
  const Stream stream;
  const Ints a(N), b(N, 2);
  Batch good;
  good.add(a.dptr, b.dptr);
  good.add(a.dptr, b.dptr);
  CU_IS(good.copy(nullptr), CUDA_ERROR_INVALID_VALUE);
  CU_IS(good.copy(CU_STREAM_LEGACY), CUDA_ERROR_INVALID_VALUE);
  Batch bad = good;
  bad.first_of[0] = 1;
  CU_IS(bad.copy(stream.raw), CUDA_ERROR_INVALID_VALUE);
  bad = good;
  bad.attributes.clear();
  CU_IS(bad.copy(stream.raw), CUDA_ERROR_INVALID_VALUE);
  bad = good;
  bad.attributes.resize(2, bad.attributes[0]);
  bad.first_of = {0, 2};
  CU_IS(bad.copy(stream.raw), CUDA_ERROR_INVALID_VALUE);
  bad = good;
  bad.attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
  CU_IS(bad.copy(stream.raw), CUDA_ERROR_INVALID_VALUE);
  CU(cuStreamSynchronize(stream.raw));
  CHECK(a.read() == std::vector(N, 0));
  bad = good;
  bad.dsts[1] = 0;
  size_t failed = 0;
  CU_IS(bad.copy(stream.raw, &failed), CUDA_ERROR_INVALID_VALUE);
  CHECK(failed == 1);
  CU(cuStreamSynchronize(stream.raw));
}
