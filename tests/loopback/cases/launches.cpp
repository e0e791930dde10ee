// SPDX-License-Identifier: Apache-2.0
// The forms of a launch beside cuLaunchKernel, and occupancy.
#include <atomic>
#include <cstring>
#include <thread>

#include "support.h"

// What CUDA 13.0 calls deprecated is still called by programs.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

TEST_CASE("launch: cooperative, and one that is too large for it") {
  const Gpu gpu;
  const Ints data(64);
  CUdeviceptr dptr = data.dptr;
  int n = data.n;
  void* params[] = {&dptr, &n};
  const CUfunction function = gpu.function("add_one");
  CU(cuLaunchCooperativeKernel(function, 2, 1, 1, 32, 1, 1, 0, nullptr, params));
  CHECK(data.read() == std::vector<int>(64, 1));
  CU_IS(cuLaunchCooperativeKernel(function, 1 << 20, 1, 1, 1024, 1, 1, 0, nullptr, params),
        CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  CUlaunchAttribute attributes[2] = {};
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attributes[0].value.cooperative = 1;
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  CUlaunchConfig config{2, 1, 1, 32, 1, 1, 0, nullptr, attributes, 2};
  CU(cuLaunchKernelEx(&config, function, params, nullptr));
  CHECK(data.read() == std::vector<int>(64, 2));
}

TEST_CASE("launch: with the same attributes again and again, and refused ones between") {
  const Gpu gpu;
  const Ints data(64);
  CUdeviceptr dptr = data.dptr;
  int n = data.n;
  void* params[] = {&dptr, &n};
  const CUfunction function = gpu.function("add_one");
  constexpr int ROUNDS = 8;
  for (int round = 0; round < ROUNDS; ++round) {
    CUlaunchAttribute attribute;
    std::memset(&attribute, round, sizeof attribute);  // what is not of the value is anything
    attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attribute.value.cooperative = 1;
    CUlaunchConfig config{2, 1, 1, 32, 1, 1, 0, nullptr, &attribute, 1};
    CU(cuLaunchKernelEx(&config, function, params, nullptr));
    config.gridDimX = 1 << 20;
    config.blockDimX = 1024;
    CU_IS(cuLaunchKernelEx(&config, function, params, nullptr),
          CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  }
  CHECK(data.read() == std::vector<int>(64, ROUNDS));
}

TEST_CASE("launch: a buffer of parameters that is too long") {
  const Gpu gpu;
  constexpr char PTX[] =
      ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry nothing() { ret; }";
  CUmodule module = nullptr;
  CUfunction nothing = nullptr;
  CU(cuModuleLoadData(&module, PTX));
  CU(cuModuleGetFunction(&nothing, module, "nothing"));
  const Ints out(5);
  struct {
    char first;
    double second;
    char third;
    double fourth;
    short fifth;
    CUdeviceptr out;
  } twice[2] = {{1, 2.5, 3, 4.5, 5, out.dptr}};
  size_t bytes = 1;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, twice, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  CU_IS(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra),
        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  bytes = 0;
  CU(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));

  const CUfunction mixed = gpu.function("mixed_params");
  bytes = sizeof twice[0];
  CU(cuLaunchKernel(mixed, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  CHECK(out.read() == std::vector<int>{1, 2, 3, 4, 5});

  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CU(cuGraphCreate(&graph, 0));
  CUDA_KERNEL_NODE_PARAMS params{mixed, 1, 1, 1, 1, 1, 1, 0, nullptr, extra, nullptr, nullptr};
  CU(cuGraphAddKernelNode(&node, graph, nullptr, 0, &params));
  bytes = sizeof twice;
  CU_IS(cuGraphAddKernelNode(&node, graph, nullptr, 0, &params), CUDA_ERROR_INVALID_VALUE);
  CU(cuGraphDestroy(graph));
  CU(cuModuleUnload(module));
}

TEST_CASE("launch: 16,000 bytes of parameters") {
  const Gpu gpu;
  static struct {
    int values[4000];
  } many;
  for (int i = 0; i < 4000; ++i) many.values[i] = i;
  const Ints out(2);
  CUdeviceptr dptr = out.dptr;
  for (int i = 0; i < 10; ++i) {
    many.values[3999] = 1000 + i;
    launch(gpu.function("many_params"), nullptr, {&many, &dptr});
  }
  const auto read = out.read();
  CHECK(read[0] == 3999 * 3998 / 2);
  CHECK(read[1] == 1009);
}

TEST_CASE("launch: the interface of CUDA 3") {
  const Gpu gpu;
  const Ints data(64);
  const CUfunction function = gpu.function("add_one");
  CUdeviceptr dptr = data.dptr;
  CU(cuFuncSetBlockShape(function, 32, 1, 1));
  CU(cuFuncSetSharedSize(function, 16));
  CU(cuParamSetv(function, 0, &dptr, sizeof dptr));
  CU(cuParamSeti(function, 8, 64));
  CU(cuParamSetSize(function, 12));
  CU(cuLaunchGrid(function, 2, 1));
  CHECK(data.read() == std::vector<int>(64, 1));
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuLaunchGridAsync(function, 2, 1, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(data.read() == std::vector<int>(64, 2));
  CU(cuLaunch(function));
  CHECK(data.read()[0] == 3);
  CHECK(data.read()[63] == 2);
  CU(cuStreamDestroy(stream));
}

namespace {

std::atomic<int> n_asked{0};
std::thread::id asked_in;

size_t shared_of(int block) {
  ++n_asked;
  asked_in = std::this_thread::get_id();
  return static_cast<size_t>(block) * 4;
}

}  // namespace

TEST_CASE("occupancy: blocks, shared memory, the best block, a function of the program") {
  const Gpu gpu;
  const CUfunction function = gpu.function("add_one");
  int blocks = 0, with_flags = 0;
  CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 128, 0));
  CHECK(blocks >= 1);
  CU(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&with_flags, function, 128, 0, 0));
  CHECK(with_flags == blocks);
  size_t bytes = 0;
  CU(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, function, 1, 128));
  CHECK(bytes > 0);
  int min_grid = 0, block = 0;
  CU(cuOccupancyMaxPotentialBlockSize(&min_grid, &block, function, nullptr, 0, 0));
  CHECK(min_grid >= 1);
  CHECK(block >= 32);
  int limited = 0;
  CU(cuOccupancyMaxPotentialBlockSizeWithFlags(&min_grid, &limited, function, nullptr, 0, 64, 0));
  CHECK(limited <= 64);
  CU(cuOccupancyMaxPotentialBlockSize(&min_grid, &block, function, shared_of, 0, 0));
  CHECK(n_asked > 0);
  CHECK(asked_in == std::this_thread::get_id());
  CHECK(block >= 32);
  CU_IS(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 0, 0),
        CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("occupancy: asked again and again, with what is set between") {
  constexpr auto SHARED = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  int value = 0;
  {
    const Gpu gpu;
    const CUfunction function = gpu.function("add_one");
    constexpr int ROUNDS = 5;
    int first = 0, blocks = 0;
    size_t bytes = 0, same = 0;
    for (const int shared : {0, 16 << 10, 40 << 10}) {
      for (int round = 0; round < ROUNDS; ++round) {
        CU(cuFuncSetAttribute(function, SHARED, shared));
        CU(cuFuncGetAttribute(&value, SHARED, function));
        CHECK(value == shared);
        const auto n = static_cast<size_t>(shared);
        CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(round == 0 ? &first : &blocks, function, 128,
                                                       n));
        if (round != 0) CHECK(blocks == first);
        CU(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, function, 128, n, 0));
        CHECK(blocks == first);
        CU(cuOccupancyAvailableDynamicSMemPerBlock(round == 0 ? &bytes : &same, function, 2, 128));
        if (round != 0) CHECK(same == bytes);
      }
    }
    CU_IS(cuFuncSetAttribute(function, SHARED, 1 << 30), CUDA_ERROR_INVALID_VALUE);
    CU_IS(cuFuncSetAttribute(function, SHARED, 1 << 30), CUDA_ERROR_INVALID_VALUE);
    CU(cuFuncGetAttribute(&value, SHARED, function));
    CHECK(value == 40 << 10);
    CU_IS(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 0, 0),
          CUDA_ERROR_INVALID_VALUE);
  }
  // A context's end takes along what was set in it.
  const Gpu again;
  const CUfunction other = again.function("add_one");
  CU(cuFuncGetAttribute(&value, SHARED, other));
  CHECK(value != 40 << 10);
  CU(cuFuncSetAttribute(other, SHARED, 40 << 10));
  CU(cuFuncGetAttribute(&value, SHARED, other));
  CHECK(value == 40 << 10);
}

// The driver, too, has what was set last, although nobody has waited for it to say so.
TEST_CASE("attributes of a kernel: back and forth, a launch after each") {
  constexpr auto SHARED = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  constexpr unsigned LARGE = 64 << 10, SMALL = 16 << 10;
  const Gpu gpu;
  const Ints data(1, 0);
  const CUfunction function = gpu.function("add_one");
  CUdeviceptr at = data.dptr;
  int n = 1;
  void* params[] = {&at, &n};
  const auto launch_with = [&](unsigned shared) {
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, shared, nullptr, params, nullptr);
  };
  constexpr int ROUNDS = 4;
  for (int round = 0; round < ROUNDS; ++round) {
    CU(cuFuncSetAttribute(function, SHARED, LARGE));
    CU(launch_with(LARGE));
    CU(cuFuncSetAttribute(function, SHARED, SMALL));
    CU_IS(launch_with(LARGE), CUDA_ERROR_INVALID_VALUE);
    CU(launch_with(SMALL));
    int value = 0, fitting = 0, blocks = 0;
    CU(cuFuncGetAttribute(&value, SHARED, function));
    CHECK(value == SMALL);
    CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&fitting, function, 32, SMALL));
    CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 32, 0));
    CHECK(fitting <= blocks);
  }
  CHECK(data.read() == std::vector<int>(1, 2 * ROUNDS));
}

TEST_CASE("occupancy: clusters, where the device has them") {
  const Gpu gpu;
  int has_clusters = 0, n = 0;
  CU(cuDeviceGetAttribute(&has_clusters, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, gpu.device));
  CUlaunchAttribute cluster{};
  cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  cluster.value.clusterDim = {2, 1, 1};
  CUlaunchConfig config{2, 1, 1, 32, 1, 1, 0, nullptr, &cluster, 1};
  const CUfunction function = gpu.function("add_one");
  const CUresult active = cuOccupancyMaxActiveClusters(&n, function, &config);
  if (has_clusters) {
    CU(active);
    CHECK(n >= 1);
    config.numAttrs = 0;
    CU(cuOccupancyMaxPotentialClusterSize(&n, function, &config));
    CHECK(n >= 1);
  } else {
    CHECK(active != CUDA_SUCCESS);
  }
}

TEST_CASE("stream: values written and waited for, alone and in a batch") {
  const Gpu gpu;
  const Ints words(4);
  CUstream writer, waiter;
  CU(cuStreamCreate(&writer, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&waiter, CU_STREAM_NON_BLOCKING));
  CU(cuStreamWaitValue32(waiter, words.dptr, 5, CU_STREAM_WAIT_VALUE_GEQ));
  CU(cuStreamWriteValue32(waiter, words.dptr + 4, 1, 0));
  CU_IS(cuStreamQuery(waiter), CUDA_ERROR_NOT_READY);
  CU(cuStreamWriteValue32(writer, words.dptr, 6, 0));
  CU(cuStreamSynchronize(waiter));
  CHECK(words.read()[1] == 1);
  CU(cuStreamWriteValue64(writer, words.dptr + 8, 0x100000002, 0));
  CU(cuStreamWaitValue64(waiter, words.dptr + 8, 0x100000002, CU_STREAM_WAIT_VALUE_EQ));
  CU(cuStreamSynchronize(waiter));
  CU(cuStreamSynchronize(writer));
  CHECK(words.read() == std::vector<int>{6, 1, 2, 1});
  CUstreamBatchMemOpParams batch[2] = {};
  batch[0].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  batch[0].waitValue.address = words.dptr;
  batch[0].waitValue.value = 6;
  batch[0].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  batch[1].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  batch[1].writeValue.address = words.dptr + 4;
  batch[1].writeValue.value = 9;
  CU(cuStreamBatchMemOp(waiter, 2, batch, 0));
  CU(cuStreamSynchronize(waiter));
  CHECK(words.read()[1] == 9);
  CU_IS(cuStreamWriteValue32(writer, words.dptr + 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
  CU(cuStreamDestroy(writer));
  CU(cuStreamDestroy(waiter));
}

TEST_CASE("stream: attributes, device, context") {
  const Gpu gpu;
  CUstream first, second;
  CU(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  CUstreamAttrValue value{};
  value.syncPolicy = CU_SYNC_POLICY_YIELD;
  CU(cuStreamSetAttribute(first, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  CU(cuStreamCopyAttributes(second, first));
  value = {};
  CU(cuStreamGetAttribute(second, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  CHECK(value.syncPolicy == CU_SYNC_POLICY_YIELD);
  value = {};
  value.priority = -100;  // beyond the range
  CU(cuStreamSetAttribute(first, CU_STREAM_ATTRIBUTE_PRIORITY, &value));
  int least = 0, greatest = 0, priority = 0;
  CU(cuCtxGetStreamPriorityRange(&least, &greatest));
  REQUIRE(greatest < least);
  for (CUstream stream : {first, second}) {
    if (stream == second) CU(cuStreamCopyAttributes(second, first));
    CU(cuStreamGetPriority(stream, &priority));
    CHECK(priority == greatest);
    value = {};
    CU(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_PRIORITY, &value));
    CHECK(value.priority == greatest);
  }
  CUdevice device = -1;
  CU(cuStreamGetDevice(first, &device));
  CHECK(device == gpu.device);
  unsigned long long ids[2];
  CU(cuStreamGetId(first, &ids[0]));
  CU(cuStreamGetId(second, &ids[1]));
  CHECK(ids[0] != ids[1]);
  CU(cuStreamDestroy(first));
  CU(cuStreamDestroy(second));
}
