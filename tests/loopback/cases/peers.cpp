// SPDX-License-Identifier: Apache-2.0
// Devices that reach each other's memory. With one device only what is refused remains.
#include <atomic>
#include <chrono>
#include <thread>

#include "virtual_memory.h"

namespace {

int n_devices() {
  int n = 0;
  CU(cuDeviceGetCount(&n));
  return n;
}

// The primary context of the second device, current as long as this lives.
struct Second {
  explicit Second(const Gpu& gpu) : first(gpu.context) {
    CU(cuDevicePrimaryCtxRetain(&context, 1));
    CU(cuCtxSetCurrent(context));
  }
  ~Second() {
    cuCtxSetCurrent(first);
    cuDevicePrimaryCtxRelease(1);
  }
  const CUcontext first;
  CUcontext context = nullptr;
};

// More than a stream takes, for one of the second device that waits; so little of all that one
// thread of the worker still has both devices. The memory there is LAST_THERE in the end.
constexpr int LAST_THERE = 799;
void fill_there(const Gpu& gpu, const Second& second, const Ints& there, CUstream waiting,
                const Ints& here, CUstream busy) {
  constexpr int AT_ONCE = 200, BETWEEN = 4200;
  for (int i = 0; i <= LAST_THERE; ++i) {
    CU(cuMemsetD32Async(there.dptr, static_cast<unsigned>(i), 1, waiting));
    if (i % AT_ONCE != AT_ONCE - 1) continue;
    CU(cuCtxSetCurrent(gpu.context));
    for (int n = 0; n < BETWEEN; ++n) add_one(gpu, here, busy);
    CU(cuCtxSetCurrent(second.context));
  }
}

bool can_access(CUdevice device, CUdevice peer) {
  int can = 99;
  CU(cuDeviceCanAccessPeer(&can, device, peer));
  return can != 0;
}

// As two H200s have it (driver 580).
void check_enabling_ends_capture(CUcontext peer) {
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CU_IS(cuCtxEnablePeerAccess(peer, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CU_IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CU(cuStreamDestroy(stream));
}

}  // namespace

TEST_CASE("peers: a device is no peer of itself") {
  const Gpu gpu;
  int value = 0;
  unsigned capabilities = 0;
  const CUatomicOperation operation = CU_ATOMIC_OPERATION_INTEGER_ADD;
  CU_IS(cuDeviceCanAccessPeer(&value, gpu.device, 1000), CUDA_ERROR_INVALID_DEVICE);
  CU_IS(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, gpu.device,
                                gpu.device),
        CUDA_ERROR_INVALID_DEVICE);
  CU_IS(cuDeviceGetP2PAtomicCapabilities(&capabilities, &operation, 1, gpu.device, 1000),
        CUDA_ERROR_INVALID_DEVICE);
  CU_IS(cuCtxEnablePeerAccess(gpu.context, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  const Ints from(16, 4), to(16, 0);
  CU(cuMemcpyPeer(to.dptr, gpu.context, from.dptr, gpu.context, 64));
  CHECK(to.read() == std::vector<int>(16, 4));
}

TEST_CASE("peers: kernels reach what they were enabled to, copies reach all") {
  const Gpu gpu;
  CU_IS(cuCtxEnablePeerAccess(gpu.context, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  if (n_devices() < 2 || !can_access(0, 1) || !can_access(1, 0)) {
    MESSAGE("no two devices that are peers");
    return;
  }
  const Ints here(16, 1);
  const Second second(gpu);
  const Ints there(16, 2);
  CU(cuMemcpyPeer(there.dptr, second.context, here.dptr, gpu.context, 32));
  CHECK(there.read() == std::vector<int>({1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2}));
  CU(cuMemcpy(there.dptr, here.dptr, 64));
  CHECK(there.read() == std::vector<int>(16, 1));
  CU(cuMemsetD32(there.dptr, 6, 16));  // its own device's work comes before the copy
  CU(cuCtxSetCurrent(gpu.context));
  CU(cuMemcpyPeer(there.dptr + 16, second.context, here.dptr, gpu.context, 8));
  CU(cuCtxSetCurrent(second.context));
  CHECK(there.read() == std::vector<int>({6, 6, 6, 6, 1, 1, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6}));
  CU(cuMemsetD32(there.dptr, 1, 16));
  CU(cuCtxSynchronize());  // a kernel of another device waits for nothing here

  CU(cuCtxSetCurrent(gpu.context));
  CU_IS(cuCtxDisablePeerAccess(second.context), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  CU_IS(cuCtxEnablePeerAccess(second.context, 1), CUDA_ERROR_INVALID_VALUE);
  check_enabling_ends_capture(second.context);
  CU(cuCtxEnablePeerAccess(second.context, 0));
  CU_IS(cuCtxEnablePeerAccess(second.context, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  CUdeviceptr at = there.dptr;
  int n = 16;
  launch(gpu.function("add_one"), nullptr, {&at, &n}, 16);
  CU(cuCtxSynchronize());
  CHECK(there.read() == std::vector<int>(16, 2));
  CU(cuCtxDisablePeerAccess(second.context));

  // Virtual memory has its own access, for each device.
  const size_t bytes = granularity(1);
  const Addresses addresses(bytes);
  const Physical physical(1, bytes);
  const Mapped mapped(addresses.base, bytes, physical);
  set_access(0, mapped.at, bytes);
  set_access(1, mapped.at, bytes);
  CU(cuMemsetD32(mapped.at, 8, 16));
  at = mapped.at;
  launch(gpu.function("add_one"), nullptr, {&at, &n}, 16);
  CU(cuCtxSynchronize());
  CHECK(read_ints(mapped.at, 16) == std::vector<int>(16, 9));
  CU(cuCtxSetCurrent(second.context));
}

TEST_CASE("error: peers: a kernel without access to its peer's memory") {
  const Gpu gpu;
  CU_IS(cuCtxEnablePeerAccess(gpu.context, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  if (n_devices() < 2) {
    MESSAGE("no two devices");
    return;
  }
  const Second second(gpu);
  const Ints there(1, 0);
  CU(cuCtxSetCurrent(gpu.context));
  CUdeviceptr at = there.dptr;
  launch(gpu.function("write_to"), nullptr, {&at});
  CU_IS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("copies: batches in three dimensions") {
  const Gpu gpu;
  constexpr size_t WIDTH = 8, HEIGHT = 2, DEPTH = 2;
  const Ints from(64, 0), to(64, -1);
  std::vector<int> values(64);
  for (int i = 0; i < 64; ++i) values[static_cast<size_t>(i)] = i;
  CU(cuMemcpyHtoD(from.dptr, values.data(), 256));
  CU(cuCtxSynchronize());  // the stream below does not wait for the default one
  CUDA_MEMCPY3D_BATCH_OP ops[2] = {};
  ops[0].src.type = ops[0].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  ops[0].src.op.ptr.ptr = from.dptr;
  ops[0].src.op.ptr.rowLength = 16;   // bytes: 4 ints
  ops[0].src.op.ptr.layerHeight = 4;  // rows: 16 ints
  ops[0].dst.op.ptr.ptr = to.dptr;    // packed
  ops[0].extent = {WIDTH, HEIGHT, DEPTH};
  ops[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  ops[1] = ops[0];
  ops[1].dst.op.ptr.ptr = to.dptr + 128;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuMemcpy3DBatchAsync(2, ops, 0, stream));
  CU(cuStreamSynchronize(stream));
  const std::vector<int> got = to.read();
  const std::vector<int> block = {0, 1, 4, 5, 16, 17, 20, 21};
  CHECK(std::vector<int>(got.begin(), got.begin() + 8) == block);
  CHECK(std::vector<int>(got.begin() + 32, got.begin() + 40) == block);
  CHECK(got[8] == -1);
  ops[1].extent.depth = 0;
  CU_IS(cuMemcpy3DBatchAsync(2, ops, 0, stream), CUDA_ERROR_INVALID_VALUE);
  ops[1] = ops[0];
  ops[1].src.op.ptr.rowLength = 4;  // shorter than the copy is wide
  CU_IS(cuMemcpy3DBatchAsync(2, ops, 0, stream), CUDA_ERROR_INVALID_VALUE);
  CU(cuStreamDestroy(stream));
}

// The worker gives each device a thread when several have much to do: some way into this.
TEST_CASE("peers: two devices in turn, each behind the other's events") {
  const Gpu gpu;
  if (n_devices() < 2) {
    MESSAGE("no two devices");
    return;
  }
  constexpr int ROUNDS = 400, BETWEEN_WAITS = 50;
  struct Side {
    CUcontext context;
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CUdeviceptr data = 0;
    explicit Side(CUcontext current) : context(current) {
      CU(cuModuleLoadData(&module, kernels_ptx()));
      CU(cuModuleGetFunction(&function, module, "add_one"));
      CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
      CU(cuMemAlloc(&data, sizeof(int)));
      CU(cuMemsetD32(data, 0, 1));
      CU(cuCtxSynchronize());
    }
    // The other's number and one more.
    void follow(const Side& other) {
      CU(cuCtxSetCurrent(context));
      CU(cuStreamWaitEvent(stream, other.event, 0));
      CU(cuMemcpyPeerAsync(data, context, other.data, other.context, sizeof(int), stream));
      int n = 1;
      launch(function, stream, {&data, &n});
      CU(cuEventRecord(event, stream));
    }
    void end() {
      CU(cuCtxSetCurrent(context));
      CU(cuMemFree(data));
      CU(cuEventDestroy(event));
      CU(cuStreamDestroy(stream));
      CU(cuModuleUnload(module));
    }
  };
  Side here(gpu.context);
  const Second second(gpu);
  Side there(second.context);
  for (int round = 1; round <= ROUNDS; ++round) {
    here.follow(there);
    there.follow(here);
    if (round % BETWEEN_WAITS != 0) continue;
    CU(cuStreamSynchronize(there.stream));
    CHECK(read_ints(there.data, 1) == std::vector<int>(1, 2 * round));
  }
  CU(cuStreamSynchronize(there.stream));
  here.end();
  there.end();
}

// One thread of the worker has both until the second one has much to do.
TEST_CASE("peers: what is held of one device goes on while the other one is never idle") {
  const Gpu gpu;
  if (n_devices() < 2) {
    MESSAGE("no two devices");
    return;
  }
  constexpr int LIMIT_S = 60;
  const Ints here(1, 0);
  CUstream gated = nullptr, busy = nullptr, waiting = nullptr;
  CUevent opened = nullptr;
  CU(cuStreamCreate(&gated, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
  CU(cuEventCreate(&opened, CU_EVENT_DISABLE_TIMING));
  {
    Gate gate(gpu, gated);
    CU(cuEventRecord(opened, gated));
    const Second second(gpu);
    const Ints there(1, 0);
    CU(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
    CU(cuStreamWaitEvent(waiting, opened, 0));
    fill_there(gpu, second, there, waiting, here, busy);
    std::atomic<bool> is_done{false}, was_busy{false};
    std::thread launching([&] {
      cuCtxSetCurrent(gpu.context);
      const auto begun = std::chrono::steady_clock::now();
      while (!is_done && std::chrono::steady_clock::now() - begun < std::chrono::seconds(LIMIT_S)) {
        add_one(gpu, here, busy);
      }
      was_busy = is_done.load();
    });
    gate.open();
    CU(cuStreamSynchronize(waiting));
    is_done = true;
    launching.join();
    CHECK(was_busy);
    CHECK(there.read() == std::vector<int>(1, LAST_THERE));
    CU(cuStreamDestroy(waiting));
  }
  CU(cuStreamSynchronize(busy));
  CU(cuStreamDestroy(gated));
  CU(cuStreamDestroy(busy));
  CU(cuEventDestroy(opened));
}

TEST_CASE("peers: threads of one device launch on while the other one's full stream waits") {
  const Gpu gpu;
  if (n_devices() < 2) {
    MESSAGE("no two devices");
    return;
  }
  constexpr int THREADS = 6, LAUNCHES = 2000, PAUSES = 5, LIMIT_S = 20;
  const Ints here(THREADS + 1, 0);
  CUstream gated = nullptr, waiting = nullptr, streams[THREADS + 1]{};
  CUevent opened = nullptr;
  CU(cuStreamCreate(&gated, CU_STREAM_NON_BLOCKING));
  for (CUstream& stream : streams) CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuEventCreate(&opened, CU_EVENT_DISABLE_TIMING));
  {
    Gate gate(gpu, gated);
    CU(cuEventRecord(opened, gated));
    const Second second(gpu);
    const Ints there(1, 0);
    CU(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
    CU(cuStreamWaitEvent(waiting, opened, 0));
    fill_there(gpu, second, there, waiting, here, streams[THREADS]);
    std::atomic<int> n_late{0};
    const auto is_late = [&](CUstream stream) {
      const auto begun = std::chrono::steady_clock::now();
      CUresult result = CUDA_SUCCESS;
      while ((result = cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY) {
        if (std::chrono::steady_clock::now() - begun > std::chrono::seconds(LIMIT_S)) return true;
        std::this_thread::yield();
      }
      return result != CUDA_SUCCESS;
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < THREADS; ++i) {
      threads.emplace_back([&, i] {
        (void)cuCtxSetCurrent(gpu.context);
        for (int n = 0; n < LAUNCHES; ++n) add_one(gpu, here, streams[i]);
        n_late += is_late(streams[i]);
        // What executes them has nothing to do, and sleeps.
        for (int n = 0; n < PAUSES && n_late == 0; ++n) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          add_one(gpu, here, streams[i]);
          n_late += is_late(streams[i]);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(n_late == 0);
    gate.open();
    CU(cuStreamSynchronize(waiting));
    CHECK(there.read() == std::vector<int>(1, LAST_THERE));
    CU(cuStreamDestroy(waiting));
  }
  for (CUstream stream : streams) CU(cuStreamDestroy(stream));
  CU(cuStreamDestroy(gated));
  CU(cuEventDestroy(opened));
}
