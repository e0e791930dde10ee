// SPDX-License-Identifier: Apache-2.0
// CUDA arrays: their kinds, what they answer, and every way to copy them.
#include "image_support.h"

namespace {

CUresult try_array(CUDA_ARRAY3D_DESCRIPTOR d) {
  CUarray array = nullptr;
  const CUresult result = cuArray3DCreate(&array, &d);
  if (result == CUDA_SUCCESS) CU(cuArrayDestroy(array));
  return result;
}

constexpr CUarray_format FLOAT = CU_AD_FORMAT_FLOAT;

}  // namespace

TEST_CASE("arrays: every kind and format, and their descriptors") {
  const Gpu gpu;
  const CUDA_ARRAY3D_DESCRIPTOR kinds[] = {
      {64, 0, 0, FLOAT, 1, 0},
      {64, 32, 0, FLOAT, 4, 0},
      {64, 32, 8, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0},
      {64, 0, 5, CU_AD_FORMAT_SIGNED_INT16, 2, CUDA_ARRAY3D_LAYERED},
      {64, 32, 5, CU_AD_FORMAT_UNSIGNED_INT32, 1, CUDA_ARRAY3D_LAYERED},
      {32, 32, 6, CU_AD_FORMAT_HALF, 4, CUDA_ARRAY3D_CUBEMAP},
      {32, 32, 12, CU_AD_FORMAT_HALF, 1, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED},
      {64, 32, 0, CU_AD_FORMAT_SIGNED_INT32, 2, CUDA_ARRAY3D_SURFACE_LDST},
      {64, 32, 0, CU_AD_FORMAT_UNSIGNED_INT16, 1, CUDA_ARRAY3D_TEXTURE_GATHER},
      {64, 32, 0, CU_AD_FORMAT_SIGNED_INT8, 1, 0},
      {64, 32, 0, CU_AD_FORMAT_UNORM_INT8X4, 4, 0},
      {64, 32, 0, CU_AD_FORMAT_SNORM_INT16X1, 1, 0},
  };
  for (const CUDA_ARRAY3D_DESCRIPTOR& kind : kinds) {
    CAPTURE(&kind - kinds);
    CUarray array;
    CU(cuArray3DCreate(&array, &kind));
    CUDA_ARRAY3D_DESCRIPTOR d{};
    CU(cuArray3DGetDescriptor(&d, array));
    CHECK(d.Width == kind.Width);
    CHECK(d.Height == kind.Height);
    CHECK(d.Depth == kind.Depth);
    CHECK(d.Format == kind.Format);
    CHECK(d.NumChannels == kind.NumChannels);
    CHECK(d.Flags == kind.Flags);
    // None of them is of several planes, sparse, or mapped later.
    CUarray plane;
    CUDA_ARRAY_SPARSE_PROPERTIES sparse;
    CUDA_ARRAY_MEMORY_REQUIREMENTS memory;
    CU_IS(cuArrayGetPlane(&plane, array, 0), CUDA_ERROR_INVALID_VALUE);
    CU_IS(cuArrayGetSparseProperties(&sparse, array), CUDA_ERROR_INVALID_VALUE);
    CU_IS(cuArrayGetMemoryRequirements(&memory, array, gpu.device), CUDA_ERROR_INVALID_VALUE);
    CU(cuArrayDestroy(array));
  }
  const CUDA_ARRAY_DESCRIPTOR plain{100, 50, FLOAT, 2};
  CUarray array;
  CU(cuArrayCreate(&array, &plain));
  CUDA_ARRAY_DESCRIPTOR d{};
  CU(cuArrayGetDescriptor(&d, array));
  CHECK(d.Width == 100);
  CHECK(d.Height == 50);
  CHECK(d.Format == FLOAT);
  CHECK(d.NumChannels == 2);
  CU(cuArrayDestroy(array));
}

TEST_CASE("arrays: what is no array is refused; limits are the attributes") {
  const Gpu gpu;
  CHECK(try_array({0, 0, 0, FLOAT, 1, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(try_array({16, 0, 0, FLOAT, 3, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(try_array({16, 0, 0, static_cast<CUarray_format>(0x77), 1, 0}) != CUDA_SUCCESS);
  CHECK(try_array({16, 0, 4, FLOAT, 1, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(try_array({16, 8, 6, FLOAT, 1, CUDA_ARRAY3D_CUBEMAP}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(try_array({16, 16, 5, FLOAT, 1, CUDA_ARRAY3D_CUBEMAP}) == CUDA_ERROR_INVALID_VALUE);
  const auto attribute = [&](CUdevice_attribute id) {
    int value = 0;
    CU(cuDeviceGetAttribute(&value, id, gpu.device));
    REQUIRE(value > 0);
    return static_cast<size_t>(value);
  };
  const auto is_limit = [&](CUdevice_attribute id, auto descriptor_of) {
    CAPTURE(id);
    const size_t limit = attribute(id);
    CU_IS(try_array(descriptor_of(limit)), CUDA_SUCCESS);
    CU_IS(try_array(descriptor_of(limit + 1)), CUDA_ERROR_INVALID_VALUE);
  };
  constexpr CUarray_format BYTE = CU_AD_FORMAT_UNSIGNED_INT8;
  using D = CUDA_ARRAY3D_DESCRIPTOR;
  is_limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH,
           [](size_t n) { return D{n, 0, 0, BYTE, 1, 0}; });
  is_limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH,
           [](size_t n) { return D{n, 16, 0, BYTE, 1, 0}; });
  is_limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT,
           [](size_t n) { return D{16, n, 0, BYTE, 1, 0}; });
  is_limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS,
           [](size_t n) { return D{16, 16, n, BYTE, 1, CUDA_ARRAY3D_LAYERED}; });
  is_limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH,
           [](size_t n) { return D{n, 16, 0, BYTE, 1, CUDA_ARRAY3D_TEXTURE_GATHER}; });
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT) > 1);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT) > 1);
  size_t n_elements = 0;
  CU(cuDeviceGetTexture1DLinearMaxWidth(&n_elements, FLOAT, 1, gpu.device));
  CHECK(n_elements > 0);
}

TEST_CASE("arrays: bytes of one dimension to and from everywhere") {
  const Gpu gpu;
  constexpr size_t N = 1000, BYTES = N * sizeof(int);
  const ArrayOf a(CU_AD_FORMAT_SIGNED_INT32, 1, N), b(CU_AD_FORMAT_SIGNED_INT32, 1, N);
  const std::vector<int> from = counting<int>(N, 5);
  CU(cuMemcpyHtoA(a.handle, 0, from.data(), BYTES));
  CU(cuMemcpyAtoA(b.handle, 400, a.handle, 40, 2000));
  std::vector<int> to(500);
  CU(cuMemcpyAtoH(to.data(), b.handle, 400, 2000));
  CHECK(to == counting<int>(500, 15));
  const Ints device(N);
  CU(cuMemcpyAtoD(device.dptr, a.handle, 0, BYTES));
  CHECK(device.read() == from);
  CU(cuMemsetD32(device.dptr, 7, N));
  CU(cuMemcpyDtoA(a.handle, 80, device.dptr, 40));
  std::vector<int> expected = from;
  std::fill_n(expected.begin() + 20, 10, 7);
  CHECK(read_array<int>(a.handle) == expected);
  int* pinned;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), BYTES, 0));
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  std::memcpy(pinned, from.data(), BYTES);
  CU(cuMemcpyHtoAAsync(b.handle, 0, pinned, BYTES, stream));
  CU(cuMemcpyAtoHAsync(pinned, b.handle, 4, BYTES - 4, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(std::vector<int>(pinned, pinned + N - 1) == counting<int>(N - 1, 6));
  CU(cuMemFreeHost(pinned));
  CU(cuStreamDestroy(stream));
  CU_IS(cuMemcpyHtoA(a.handle, 4, from.data(), BYTES), CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("arrays: rectangles and boxes, between arrays and from linear memory") {
  const Gpu gpu;
  const ArrayOf plane(CU_AD_FORMAT_UNSIGNED_INT16, 1, 40, 30);
  const ArrayOf box(CU_AD_FORMAT_UNSIGNED_INT16, 1, 20, 10, 8);
  const auto values = counting<uint16_t>(40 * 30);
  CUDA_MEMCPY2D up{};
  up.srcMemoryType = CU_MEMORYTYPE_HOST;
  up.srcHost = values.data();
  up.srcPitch = 80;
  up.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  up.dstArray = plane.handle;
  up.WidthInBytes = 80;
  up.Height = 30;
  CU(cuMemcpy2D(&up));
  CHECK(read_array<uint16_t>(plane.handle) == values);

  CUDA_MEMCPY3D across{};
  across.srcMemoryType = across.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  across.srcArray = plane.handle;
  across.srcXInBytes = 10;
  across.srcY = 3;
  across.dstArray = box.handle;
  across.dstXInBytes = 4;
  across.dstY = 2;
  across.dstZ = 5;
  across.WidthInBytes = 24;
  across.Height = 7;
  across.Depth = 1;
  write_array(box.handle, std::vector<uint16_t>(20 * 10 * 8));
  CU(cuMemcpy3D(&across));
  std::vector<uint16_t> expected(20 * 10 * 8);
  for (size_t y = 0; y < 7; ++y)
    for (size_t x = 0; x < 12; ++x)
      expected[(5 * 10 + 2 + y) * 20 + 2 + x] = values[(3 + y) * 40 + 5 + x];
  CHECK(read_array<uint16_t>(box.handle) == expected);

  // Two slices of it into rows of device memory with room behind each.
  const Ints device(16 * 10 * 2, -1);
  CUDA_MEMCPY3D down{};
  down.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  down.srcArray = box.handle;
  down.srcZ = 4;
  down.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  down.dstDevice = device.dptr;
  down.dstPitch = 64;
  down.dstHeight = 10;
  down.WidthInBytes = 40;
  down.Height = 10;
  down.Depth = 2;
  CU(cuMemcpy3DAsync(&down, nullptr));
  const std::vector<int> got = device.read();
  for (size_t row = 0; row < 20; ++row) {
    CAPTURE(row);
    CHECK(std::memcmp(&got[row * 16], &expected[(4 * 10 + row) * 20], 40) == 0);
    CHECK(got[row * 16 + 10] == -1);
  }
  up.Height = 31;
  CU_IS(cuMemcpy2D(&up), CUDA_ERROR_INVALID_VALUE);
  up.Height = 30;
  up.dstXInBytes = 2;
  CU_IS(cuMemcpy2D(&up), CUDA_ERROR_INVALID_VALUE);
  // Neither places nor lengths need to be those of elements.
  up.dstXInBytes = 1;
  up.WidthInBytes = 79;
  CU(cuMemcpy2D(&up));
}

TEST_CASE("arrays: captured copies run again with each launch of the graph") {
  const Gpu gpu;
  const ArrayOf array(CU_AD_FORMAT_SIGNED_INT32, 1, 16, 4);
  const Ints source(64), target(64);
  CUDA_MEMCPY2D in{}, out{};
  in.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  in.srcDevice = source.dptr;
  in.srcPitch = out.dstPitch = 64;
  in.dstMemoryType = out.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  in.dstArray = out.srcArray = array.handle;
  in.WidthInBytes = out.WidthInBytes = 64;
  in.Height = out.Height = 4;
  out.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  out.dstDevice = target.dptr;
  CUstream stream;
  CUgraph graph;
  CUgraphExec exec;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CU(cuMemcpy2DAsync(&in, stream));
  CU(cuMemcpy2DAsync(&out, stream));
  CU(cuStreamEndCapture(stream, &graph));
  CUgraphNode nodes[2];
  size_t n = 2;
  CU(cuGraphGetNodes(graph, nodes, &n));
  REQUIRE(n == 2);
  CUDA_MEMCPY3D params{};
  CU(cuGraphMemcpyNodeGetParams(nodes[0], &params));
  CHECK(params.dstMemoryType == CU_MEMORYTYPE_ARRAY);
  CHECK(params.dstArray == array.handle);
  CU(cuGraphInstantiate(&exec, graph, 0));
  for (unsigned round = 1; round < 3; ++round) {
    CU(cuMemsetD32(source.dptr, round, 64));
    CU(cuCtxSynchronize());
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
    CHECK(target.read() == std::vector<int>(64, static_cast<int>(round)));
  }
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphDestroy(graph));

  // The same as a node, then with other parameters.
  int* host;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&host), 256, 0));
  std::fill_n(host, 64, 0);
  CUDA_MEMCPY3D down{};
  down.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  down.srcArray = array.handle;
  down.dstMemoryType = CU_MEMORYTYPE_HOST;
  down.dstHost = host;
  down.dstPitch = down.WidthInBytes = 64;
  down.Height = 2;
  down.Depth = 1;
  CUgraphNode node;
  CU(cuGraphCreate(&graph, 0));
  CU(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &down, gpu.context));
  down.srcY = 2;
  down.dstHost = host + 48;
  down.Height = 1;
  write_array(array.handle, counting<int>(64));
  CU(cuGraphMemcpyNodeSetParams(node, &down));
  CU(cuGraphInstantiate(&exec, graph, 0));
  CU(cuGraphLaunch(exec, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(std::vector<int>(host + 48, host + 64) == counting<int>(16, 32));
  CHECK(host[0] == 0);
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphDestroy(graph));
  CU(cuStreamDestroy(stream));
  CU(cuMemFreeHost(host));
}

TEST_CASE("arrays: mipmapped ones and their levels") {
  const Gpu gpu;
  const CUDA_ARRAY3D_DESCRIPTOR d{16, 4, 0, FLOAT, 1, 0};
  CUmipmappedArray mipmap;
  CU(cuMipmappedArrayCreate(&mipmap, &d, 99));
  const size_t sizes[][2] = {{16, 4}, {8, 2}, {4, 1}, {2, 1}, {1, 1}};
  for (unsigned level = 0; level < 5; ++level) {
    CAPTURE(level);
    CUarray array;
    CU(cuMipmappedArrayGetLevel(&array, mipmap, level));
    CUDA_ARRAY3D_DESCRIPTOR of_level{};
    CU(cuArray3DGetDescriptor(&of_level, array));
    CHECK(of_level.Width == sizes[level][0]);
    CHECK(of_level.Height == sizes[level][1]);
    write_array(array,
                counting<float>(sizes[level][0] * sizes[level][1], 100 * static_cast<int>(level)));
  }
  CUarray array;
  CU(cuMipmappedArrayGetLevel(&array, mipmap, 1));
  CHECK(read_array<float>(array) == counting<float>(16, 100));
  CU_IS(cuMipmappedArrayGetLevel(&array, mipmap, 5), CUDA_ERROR_INVALID_VALUE);
  // A level goes with the whole, and not before.
  CUarray again;
  CU(cuMipmappedArrayGetLevel(&array, mipmap, 2));
  CU(cuArrayDestroy(array));
  CU(cuMipmappedArrayGetLevel(&again, mipmap, 2));
  CHECK(again == array);
  CHECK(read_array<float>(array) == counting<float>(4, 200));
  CUDA_ARRAY_SPARSE_PROPERTIES sparse;
  CUDA_ARRAY_MEMORY_REQUIREMENTS memory;
  CU_IS(cuMipmappedArrayGetSparseProperties(&sparse, mipmap), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMipmappedArrayGetMemoryRequirements(&memory, mipmap, gpu.device),
        CUDA_ERROR_INVALID_VALUE);
  CU(cuMipmappedArrayDestroy(mipmap));
}
