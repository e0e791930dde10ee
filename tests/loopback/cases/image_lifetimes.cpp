// SPDX-License-Identifier: Apache-2.0
// How long arrays, textures and references live, in which context, and what comes before what.
#include <thread>

#include "image_support.h"

// CUDA 13.0 deprecates the functions of references and still has them.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

size_t free_bytes() {
  size_t free = 0, total = 0;
  CU(cuMemGetInfo(&free, &total));
  return free;
}

CUcontext new_context(const Gpu& gpu) {
  CUcontext context;
  CU(cuCtxCreate(&context, nullptr, 0, gpu.device));
  return context;
}

// One thread: adds to the first int of `sum` what `picture` has at (0, 0).
const char ADD_PICTURE[] = R"(
.version 8.0
.target sm_80
.address_size 64
.global .texref picture;
.visible .entry add_picture(.param .u64 sum) {
  .reg .f32 %f<9>;
  .reg .b32 %r<9>;
  .reg .b64 %d<9>;
  ld.param.u64 %d1, [sum];
  mov.f32 %f1, 0f3F000000;
  tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [picture, {%f1, %f1}];
  cvt.rni.s32.f32 %r1, %f3;
  ld.global.u32 %r2, [%d1];
  add.s32 %r2, %r2, %r1;
  st.global.u32 [%d1], %r2;
  ret;
})";

}  // namespace

TEST_CASE("arrays: large ones by pageable memory with room between the rows") {
  const Gpu gpu;
  constexpr size_t WIDTH = 1500, HEIGHT = 300, PITCH = 2000, DEPTH = 2;
  const ArrayOf array(CU_AD_FORMAT_SIGNED_INT32, 1, WIDTH, HEIGHT, DEPTH);
  const auto from = counting<int>(PITCH * HEIGHT * DEPTH);
  std::vector<int> to(PITCH * HEIGHT * DEPTH, -1), expected = to;
  CUDA_MEMCPY3D up{};
  up.srcMemoryType = CU_MEMORYTYPE_HOST;
  up.srcHost = from.data();
  up.srcPitch = PITCH * sizeof(int);
  up.srcHeight = HEIGHT;
  up.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  up.dstArray = array.handle;
  up.WidthInBytes = WIDTH * sizeof(int);
  up.Height = HEIGHT;
  up.Depth = DEPTH;
  CU(cuMemcpy3D(&up));
  CUDA_MEMCPY3D down = up;
  down.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  down.srcArray = array.handle;
  down.dstMemoryType = CU_MEMORYTYPE_HOST;
  down.dstHost = to.data();
  down.dstPitch = up.srcPitch;
  down.dstHeight = HEIGHT;
  CU(cuMemcpy3D(&down));
  for (size_t row = 0; row < HEIGHT * DEPTH; ++row) {
    std::copy_n(&from[row * PITCH], WIDTH, &expected[row * PITCH]);
  }
  CHECK(to == expected);
  up.dstZ = 1;  // one slice too many, of which nothing is written
  CU_IS(cuMemcpy3D(&up), CUDA_ERROR_INVALID_VALUE);
  CHECK(read_array<int>(array.handle)[0] == 0);
}

TEST_CASE("arrays: a pitch or height of 0 means no gaps") {
  const Gpu gpu;
  const ArrayOf array(CU_AD_FORMAT_UNSIGNED_INT8, 1, 8, 3, 2);
  uint8_t* pinned;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 256, 0));
  const auto values = counting<uint8_t>(256);
  std::copy(values.begin(), values.end(), pinned);
  CUDA_MEMCPY3D up{};
  up.srcMemoryType = CU_MEMORYTYPE_HOST;
  up.srcXInBytes = 5;
  up.srcY = 2;
  up.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  up.dstArray = array.handle;
  up.WidthInBytes = 8;
  up.Height = 3;
  up.Depth = 2;
  for (const void* const from :
       {static_cast<const void*>(values.data()), static_cast<const void*>(pinned)}) {
    up.srcHost = from;
    up.srcHeight = 0;
    CU(cuMemcpy3D(&up));
    const auto got = read_array<uint8_t>(array.handle);
    CHECK(got[0] == 2 * 13 + 5);
    CHECK(got[8] == 3 * 13 + 5);
    CHECK(got[24] == (5 + 2) * 13 + 5);
    up.srcHeight = 4;
    CU_IS(cuMemcpy3D(&up), CUDA_ERROR_INVALID_VALUE);
  }
  CU(cuMemFreeHost(pinned));
}

TEST_CASE("arrays: a captured copy of a box is one node") {
  const Gpu gpu;
  const Ints device(64);
  int* pinned;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 256, 0));
  std::fill_n(pinned, 64, 3);
  CUDA_MEMCPY3D up{};
  up.srcMemoryType = CU_MEMORYTYPE_HOST;
  up.srcHost = pinned;
  up.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  up.dstDevice = device.dptr;
  up.WidthInBytes = up.srcPitch = up.dstPitch = 16;
  up.Height = up.srcHeight = up.dstHeight = 4;
  up.Depth = 4;
  CUstream stream;
  CUgraph graph;
  CUgraphExec exec;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CU(cuMemcpy3DAsync(&up, stream));
  CU(cuStreamEndCapture(stream, &graph));
  size_t n = 0;
  CU(cuGraphGetNodes(graph, nullptr, &n));
  CHECK(n == 1);
  CU(cuGraphInstantiate(&exec, graph, 0));
  CU(cuGraphLaunch(exec, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(device.read() == std::vector<int>(64, 3));
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphDestroy(graph));
  CU(cuStreamDestroy(stream));
  CU(cuMemFreeHost(pinned));
}

TEST_CASE("arrays: their memory comes back when their context ends before others") {
  const Gpu gpu;
  const CUcontext first = new_context(gpu), second = new_context(gpu);
  CU(cuCtxSetCurrent(second));
  const size_t before = free_bytes();
  CU(cuCtxSetCurrent(first));
  const CUDA_ARRAY3D_DESCRIPTOR d{8192, 8192, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  CUarray array;
  CUmipmappedArray mipmap;
  CU(cuArray3DCreate(&array, &d));
  CU(cuMipmappedArrayCreate(&mipmap, &d, 2));
  CU(cuCtxDestroy(first));
  CU(cuCtxSetCurrent(second));
  CHECK(free_bytes() + (128 << 20) > before);
  CU(cuCtxDestroy(second));
}

TEST_CASE("textures: each context has its own, and numbers them itself") {
  const Gpu gpu;
  const CUcontext contexts[] = {gpu.context, new_context(gpu)};
  CUarray arrays[2];
  CUtexObject textures[2];
  const CUDA_TEXTURE_DESC how = sampler();
  for (int i = 0; i < 2; ++i) {
    CU(cuCtxSetCurrent(contexts[i]));
    const CUDA_ARRAY3D_DESCRIPTOR d{4, 2, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    CU(cuArray3DCreate(&arrays[i], &d));
    write_array(arrays[i], counting<float>(8, 100 * i));
    const CUDA_RESOURCE_DESC from = resource(arrays[i]);
    CU(cuTexObjectCreate(&textures[i], &from, &how, nullptr));
  }
  for (int i = 0; i < 2; ++i) {
    CU(cuCtxSetCurrent(contexts[i]));
    CUDA_RESOURCE_DESC from{};
    CU(cuTexObjectGetResourceDesc(&from, textures[i]));
    CHECK(from.res.array.hArray == arrays[i]);
    const Images images;
    const Ints places(4), results(4);
    const std::vector<Vector> at = {{1.5f, 1.5f}};
    CU(cuMemcpyHtoD(places.dptr, at.data(), sizeof(Vector)));
    CUdeviceptr in = places.dptr, out = results.dptr;
    launch(images.function("at_2d"), nullptr, {&textures[i], &in, &out});
    Vector got;
    CU(cuMemcpyDtoH(&got, out, sizeof got));
    CHECK(got.x == static_cast<float>(100 * i + 5));
  }
  CU(cuCtxDestroy(contexts[1]));
  CU(cuCtxSetCurrent(contexts[0]));
  CUDA_RESOURCE_DESC from{};
  CU(cuTexObjectGetResourceDesc(&from, textures[0]));
  CHECK(from.res.array.hArray == arrays[0]);
  // What is none is no error to destroy, and cannot be asked.
  CU(cuTexObjectDestroy(textures[0]));
  CU(cuTexObjectDestroy(textures[0]));
  CU(cuSurfObjectDestroy(0x12345));
  CU_IS(cuTexObjectGetResourceDesc(&from, 0x12345), CUDA_ERROR_INVALID_VALUE);
  CU(cuArrayDestroy(arrays[0]));
}

TEST_CASE("references: launches behind a stream that waits have what was bound before") {
  const Gpu gpu;
  CUmodule module;
  CUtexref picture;
  CUfunction function;
  CU(cuModuleLoadData(&module, ADD_PICTURE));
  CU(cuModuleGetTexRef(&picture, module, "picture"));
  CU(cuModuleGetFunction(&function, module, "add_picture"));
  const ArrayOf ones(CU_AD_FORMAT_FLOAT, 1, 1, 1), thousands(CU_AD_FORMAT_FLOAT, 1, 1, 1);
  write_array(ones.handle, std::vector<float>{1});
  write_array(thousands.handle, std::vector<float>{1000});
  const Ints sum(1);
  CUdeviceptr to = sum.dptr;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuTexRefSetArray(picture, ones.handle, CU_TRSA_OVERRIDE_FORMAT));
  {
    Gate gate(gpu, stream);
    constexpr int N = 700;  // more than a worker gives to the driver at a time
    for (int i = 0; i < N; ++i) launch(function, stream, {&to});
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      gate.open();
    });
    CU(cuTexRefSetArray(picture, thousands.handle, CU_TRSA_OVERRIDE_FORMAT));
    launch(function, stream, {&to});
    opener.join();
    CU(cuStreamSynchronize(stream));
    CHECK(sum.read()[0] == N + 1000);
  }
  CU(cuStreamDestroy(stream));
  CU(cuModuleUnload(module));
  CU_IS(cuTexRefSetFlags(nullptr, 0), CUDA_ERROR_INVALID_HANDLE);
}
