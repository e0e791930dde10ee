// SPDX-License-Identifier: Apache-2.0
// Texture objects: what kernels read through them.
#include "image_support.h"

namespace {

constexpr auto CLAMP = CU_TR_ADDRESS_MODE_CLAMP;
constexpr auto POINT = CU_TR_FILTER_MODE_POINT;
constexpr auto LINEAR = CU_TR_FILTER_MODE_LINEAR;
constexpr auto FLOAT = CU_AD_FORMAT_FLOAT;
using Floats = std::vector<float>;

/// Hardware may round in its own way, but not by more than a filter's weights are rounded.
void check_near(const Floats& got, const Floats& expected, double tolerance = 1e-5) {
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(got[i] - expected[i]) <= tolerance);
  }
}

}  // namespace

TEST_CASE("textures: points and address modes") {
  const Gpu gpu;
  const Images images;
  const ArrayOf array(FLOAT, 1, 8);
  write_array(array.handle, counting<float>(8, 10));
  const auto read = [&](const CUDA_TEXTURE_DESC& how, const std::vector<Vector>& at) {
    const Texture texture(resource(array.handle), how);
    return reds(look_up<Vector>(images.function("at_1d"), texture, at));
  };
  CHECK(read(sampler(), {{0}, {0.9f}, {1}, {7.5f}, {8.5f}, {-3}}) ==
        Floats{10, 10, 11, 17, 17, 10});
  // Half an element beyond each end, and two and a half.
  const std::vector<Vector> beyond = {{-0.0625f}, {1.0625f}, {-0.3125f}, {1.3125f}, {0.5625f}};
  const auto normalized = [&](CUaddress_mode mode) {
    CUDA_TEXTURE_DESC how = sampler(mode, POINT, CU_TRSF_NORMALIZED_COORDINATES);
    how.borderColor[0] = 99;
    return read(how, beyond);
  };
  CHECK(normalized(CLAMP) == Floats{10, 17, 10, 17, 14});
  CHECK(normalized(CU_TR_ADDRESS_MODE_WRAP) == Floats{17, 10, 15, 12, 14});
  CHECK(normalized(CU_TR_ADDRESS_MODE_MIRROR) == Floats{10, 17, 12, 15, 14});
  CHECK(normalized(CU_TR_ADDRESS_MODE_BORDER) == Floats{99, 99, 99, 99, 14});
}

TEST_CASE("textures: linear filters in one, two and three dimensions") {
  const Gpu gpu;
  const Images images;
  const auto read = [&](const char* kernel, const ArrayOf& array, const CUDA_TEXTURE_DESC& how,
                        const std::vector<Vector>& at) {
    const Texture texture(resource(array.handle), how);
    return reds(look_up<Vector>(images.function(kernel), texture, at));
  };
  const ArrayOf line(FLOAT, 1, 8), plane(FLOAT, 1, 4, 4), box(FLOAT, 1, 4, 4, 4);
  write_array(line.handle, counting<float>(8));
  write_array(plane.handle, counting<float>(16));
  write_array(box.handle, counting<float>(64));
  const CUDA_TEXTURE_DESC linear = sampler(CLAMP, LINEAR);
  check_near(read("at_1d", line, linear, {{0.5f}, {1}, {1.75f}, {0}, {8}}), {0, 0.5f, 1.25f, 0, 7});
  check_near(read("at_2d", plane, linear, {{1, 1}, {2.5f, 1.5f}, {1.75f, 2.25f}, {4, 4}}),
             {2.5f, 6, 1.25f + 1.75f * 4, 15});
  check_near(read("at_3d", box, linear, {{1, 1, 1}, {2, 1.5f, 3.25f}}),
             {10.5f, 1.5f + 4 + 2.75f * 16});
  // The border and what wraps round count as neighbours, too.
  CUDA_TEXTURE_DESC how =
      sampler(CU_TR_ADDRESS_MODE_BORDER, LINEAR, CU_TRSF_NORMALIZED_COORDINATES);
  how.borderColor[0] = 100;
  how.addressMode[1] = CLAMP;  // an H200 takes a line for the upper edge of a plane
  check_near(read("at_1d", line, how, {{0}, {1}}), {50, 53.5f});
  how = sampler(CU_TR_ADDRESS_MODE_WRAP, LINEAR, CU_TRSF_NORMALIZED_COORDINATES);
  check_near(read("at_1d", line, how, {{0}, {1}, {0.25f}}), {3.5f, 3.5f, 1.5f});
  // A weight has eight bits of fraction.
  const ArrayOf step(FLOAT, 1, 2);
  write_array(step.handle, Floats{0, 256});
  check_near(read("at_1d", step, linear, {{0.5f + 77.0f / 256}}), {77});
  check_near(read("at_1d", step, linear, {{0.5f + 77.4f / 256}}), {77.4f}, 1);
}

TEST_CASE("textures: integers as they are and as parts of one, halves, sRGB") {
  const Gpu gpu;
  const Images images;
  const std::vector<Vector> at = {{0.5f, 0.5f}, {1.5f, 0.5f}};
  const auto read = [&](const ArrayOf& array, unsigned flags) {
    const Texture texture(resource(array.handle), sampler(CLAMP, POINT, flags));
    return look_up<Vector>(images.function("at_2d"), texture, at);
  };
  const auto check_first = [](const std::vector<Vector>& got, const Vector& a, const Vector& b) {
    check_near({got[0].x, got[0].y, got[0].z, got[0].w, got[1].x, got[1].y, got[1].z, got[1].w},
               {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, 1e-6);
  };
  const ArrayOf bytes(CU_AD_FORMAT_UNSIGNED_INT8, 4, 2, 1);
  write_array(bytes.handle, std::vector<uint8_t>{0, 255, 51, 128, 1, 2, 3, 4});
  check_first(read(bytes, 0), {0, 1, 0.2f, 128 / 255.0f},
              {1 / 255.f, 2 / 255.f, 3 / 255.f, 4 / 255.f});
  const ArrayOf norms(CU_AD_FORMAT_SNORM_INT8X4, 4, 2, 1);
  write_array(norms.handle, std::vector<int8_t>{-128, -127, 0, 127, 1, -1, 64, -64});
  check_first(read(norms, 0), {-1, -1, 0, 1}, {1 / 127.f, -1 / 127.f, 64 / 127.f, -64 / 127.f});
  const ArrayOf shorts(CU_AD_FORMAT_SIGNED_INT16, 4, 2, 1);
  write_array(shorts.handle, std::vector<int16_t>{-32768, 32767, 0, -1, 1, 2, 3, 4});
  check_first(read(shorts, 0), {-1, 1, 0, -1 / 32767.f},
              {1 / 32767.f, 2 / 32767.f, 3 / 32767.f, 4 / 32767.f});
  const ArrayOf halves(CU_AD_FORMAT_HALF, 4, 2, 1);
  write_array(halves.handle,
              std::vector<uint16_t>{0x3c00, 0xc000, 0x3555, 0x0001, 0, 0x7bff, 0x3800, 0xb800});
  check_first(read(halves, 0), {1, -2, 0.333251953f, 5.9604645e-8f}, {0, 65504, 0.5f, -0.5f});

  const auto integers = [&](const ArrayOf& array) {
    const Texture texture(resource(array.handle), sampler(CLAMP, POINT, CU_TRSF_READ_AS_INTEGER));
    return look_up<Integers>(images.function("at_2d_integers"), texture, at);
  };
  CHECK(integers(bytes)[0].y == 255);
  CHECK(integers(bytes)[1].w == 4);
  CHECK(integers(shorts)[0].x == 0xffff8000);
  CHECK(integers(shorts)[0].y == 0x7fff);
  const ArrayOf words(CU_AD_FORMAT_UNSIGNED_INT32, 2, 2, 1);
  write_array(words.handle, std::vector<unsigned>{0xdeadbeef, 1, 2, 0xffffffff});
  CHECK(integers(words)[0].x == 0xdeadbeef);
  CHECK(integers(words)[1].y == 0xffffffff);

  const std::vector<Vector> srgb = read(bytes, CU_TRSF_SRGB);
  check_near({srgb[0].x, srgb[0].y, srgb[0].z, srgb[0].w}, {0, 1, 0.0331f, 128 / 255.0f}, 1e-3);
}

TEST_CASE("textures: layers and cubemaps") {
  const Gpu gpu;
  const Images images;
  const auto read = [&](const char* kernel, const ArrayOf& array, const std::vector<Vector>& at,
                        unsigned flags = 0) {
    const Texture texture(resource(array.handle), sampler(CLAMP, POINT, flags));
    return reds(look_up<Vector>(images.function(kernel), texture, at));
  };
  const ArrayOf lines(FLOAT, 1, 4, 0, 3, CUDA_ARRAY3D_LAYERED);
  write_array(lines.handle, counting<float>(12));
  CHECK(read("in_layer_1d", lines, {{1.5f, 0, 0, 0}, {0.5f, 0, 0, 2}, {9, 0, 0, 1}}) ==
        Floats{1, 8, 7});
  const ArrayOf planes(FLOAT, 1, 4, 2, 3, CUDA_ARRAY3D_LAYERED);
  write_array(planes.handle, counting<float>(24));
  CHECK(read("in_layer_2d", planes, {{1.5f, 1.5f, 0, 0}, {3.5f, 0.5f, 0, 2}}) == Floats{5, 19});
  // Faces of 2 by 2: the middle of an element of each face.
  const ArrayOf cube(FLOAT, 1, 2, 2, 6, CUDA_ARRAY3D_CUBEMAP);
  write_array(cube.handle, counting<float>(24));
  const unsigned flags = CU_TRSF_NORMALIZED_COORDINATES;
  const std::vector<Vector> faces = {{1, 0.5f, 0.5f},  {-1, 0.5f, 0.5f},  {0.5f, 1, 0.5f},
                                     {0.5f, -1, 0.5f}, {0.5f, 0.5f, 1},   {0.5f, 0.5f, -1},
                                     {2, -1, -1},      {-0.5f, -0.5f, -1}};
  CHECK(read("on_cube", cube, faces, flags) == Floats{0, 5, 11, 13, 17, 20, 3, 23});
  const ArrayOf cubes(FLOAT, 1, 2, 2, 12, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED);
  write_array(cubes.handle, counting<float>(48));
  // Beside an edge, between the faces of +x and +z.
  const ArrayOf numbers(FLOAT, 1, 4, 4, 6, CUDA_ARRAY3D_CUBEMAP);
  Floats tens;
  for (int i = 0; i < 6; ++i) tens.insert(tens.end(), 16, 10.0f * static_cast<float>(i));
  write_array(numbers.handle, tens);
  for (const bool seamless : {false, true}) {
    const Texture texture(
        resource(numbers.handle),
        sampler(CLAMP, LINEAR, flags | (seamless ? CU_TRSF_SEAMLESS_CUBEMAP : 0)));
    const std::vector<Vector> edge = {{1, 0, 0.999f}, {1, 0.1f, -0.2f}};
    check_near(reds(look_up<Vector>(images.function("on_cube"), texture, edge)),
               {seamless ? 20.0f : 0.0f, 0}, 0.5);
  }
  CHECK(read("on_cubes", cubes, {{1, 0.5f, 0.5f, 0}, {0.5f, 0.5f, -1, 1}}, flags) == Floats{0, 44});
}

TEST_CASE("textures: levels of mipmapped arrays") {
  const Gpu gpu;
  const Images images;
  const CUDA_ARRAY3D_DESCRIPTOR d{16, 16, 0, FLOAT, 1, 0};
  CUmipmappedArray mipmap;
  CU(cuMipmappedArrayCreate(&mipmap, &d, 5));
  for (unsigned level = 0; level < 5; ++level) {
    CUarray array;
    CU(cuMipmappedArrayGetLevel(&array, mipmap, level));
    write_array(array, Floats((16u >> level) * (16u >> level), 10.0f * static_cast<float>(level)));
  }
  CUDA_RESOURCE_DESC from{};
  from.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  from.res.mipmap.hMipmappedArray = mipmap;
  CUDA_TEXTURE_DESC how = sampler(CLAMP, POINT, CU_TRSF_NORMALIZED_COORDINATES);
  how.maxMipmapLevelClamp = 100;
  const auto read = [&](const char* kernel, const std::vector<Vector>& at,
                        const CUDA_RESOURCE_VIEW_DESC* view = nullptr) {
    const Texture texture(from, how, view);
    return reds(look_up<Vector>(images.function(kernel), texture, at));
  };
  const auto at_levels = [](const Floats& levels) {
    std::vector<Vector> at;
    for (const float level : levels) at.push_back({0.5f, 0.5f, 0, level});
    return at;
  };
  CHECK(read("at_level", at_levels({0, 1, 2.25f, 2.75f, 4, 9, -1})) ==
        Floats{0, 10, 20, 30, 40, 40, 0});
  how.mipmapFilterMode = LINEAR;
  check_near(read("at_level", at_levels({0.5f, 2.25f, 3.75f})), {5, 22.5f, 37.5f});
  how.minMipmapLevelClamp = 1;
  how.maxMipmapLevelClamp = 3;
  check_near(read("at_level", at_levels({0, 1.5f, 9})), {10, 15, 30});
  how.minMipmapLevelClamp = 0;
  how.maxMipmapLevelClamp = 100;
  // Steps of two and of four elements of the largest level.
  check_near(read("by_gradient", {{0.5f, 0.5f, 2 / 16.f, 2 / 16.f}, {0.5f, 0.5f, 4 / 16.f, 0}}),
             {10, 20}, 0.2);
  how.mipmapLevelBias = 1;
  check_near(read("by_gradient", {{0.5f, 0.5f, 2 / 16.f, 2 / 16.f}}), {20}, 0.2);
  how.mipmapLevelBias = 0;
  CUDA_RESOURCE_VIEW_DESC view{};
  view.format = CU_RES_VIEW_FORMAT_FLOAT_1X32;
  view.width = view.height = 16;
  view.firstMipmapLevel = 1;
  view.lastMipmapLevel = 3;
  check_near(read("at_level", at_levels({0, 1, 9}), &view), {10, 20, 30});
  CU(cuMipmappedArrayDestroy(mipmap));
}

TEST_CASE("textures: levels of a mipmapped cubemap by gradient") {
  const Gpu gpu;
  const Images images;
  const CUDA_ARRAY3D_DESCRIPTOR d{16, 16, 6, FLOAT, 1, CUDA_ARRAY3D_CUBEMAP};
  CUDA_RESOURCE_DESC from{};
  from.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  CU(cuMipmappedArrayCreate(&from.res.mipmap.hMipmappedArray, &d, 3));
  for (unsigned level = 0; level < 3; ++level) {
    CUarray array;
    CU(cuMipmappedArrayGetLevel(&array, from.res.mipmap.hMipmappedArray, level));
    write_array(array,
                Floats((16u >> level) * (16u >> level) * 6, 10.0f * static_cast<float>(level)));
  }
  CUDA_TEXTURE_DESC how = sampler(CLAMP, POINT, CU_TRSF_NORMALIZED_COORDINATES);
  how.mipmapFilterMode = LINEAR;
  how.maxMipmapLevelClamp = 2;
  {
    // A face is from -1 to 1: steps of one, two and four elements.
    const Texture texture(from, how);
    const auto got = look_up<Vector>(
        images.function("on_cube_by_gradient"), texture,
        std::vector<Vector>{
            {1, 0.1f, 0.1f, 2 / 16.f}, {1, 0.1f, 0.1f, 4 / 16.f}, {-1, 0, 0, 0.5f}});
    check_near(reds(got), {0, 10, 20}, 0.5);
  }
  CU(cuMipmappedArrayDestroy(from.res.mipmap.hMipmappedArray));
}

TEST_CASE("textures: gathering one channel of four neighbours") {
  const Gpu gpu;
  const Images images;
  const ArrayOf array(FLOAT, 2, 4, 4, 0, CUDA_ARRAY3D_TEXTURE_GATHER);
  Floats values;
  for (int i = 0; i < 16; ++i) values.insert(values.end(), {0.0f, static_cast<float>(i)});
  write_array(array.handle, values);
  const Texture texture(resource(array.handle));
  const auto got = look_up<Vector>(images.function("gather_green"), texture,
                                   std::vector<Vector>{{1, 1}, {2, 3}});
  // Anticlockwise from the lower left, where rows count downwards.
  CHECK(Floats{got[0].x, got[0].y, got[0].z, got[0].w} == Floats{4, 5, 1, 0});
  CHECK(Floats{got[1].x, got[1].y, got[1].z, got[1].w} == Floats{13, 14, 10, 9});
}

TEST_CASE("textures: linear memory and rows with a pitch") {
  const Gpu gpu;
  const Images images;
  CUdeviceptr memory;
  CU(cuMemAlloc(&memory, 4096));
  const Floats values = counting<float>(1024, 1);
  CU(cuMemcpyHtoD(memory, values.data(), 4096));
  CUDA_RESOURCE_DESC from{};
  from.resType = CU_RESOURCE_TYPE_LINEAR;
  from.res.linear = {memory, FLOAT, 1, 400};
  {
    const Texture texture(from);
    CHECK(look_up<float>(images.function("fetch_floats"), texture,
                         std::vector<int>{0, 1, 99, 100, -1, 1 << 20}) ==
          Floats{1, 2, 100, 0, 0, 0});
  }
  from.res.linear = {memory, CU_AD_FORMAT_UNSIGNED_INT8, 1, 4096};
  {
    const Texture texture(from, sampler(CLAMP, POINT, CU_TRSF_READ_AS_INTEGER));
    CHECK(look_up<unsigned char>(images.function("fetch_bytes"), texture,
                                 std::vector<int>{2, 3, 6}) ==
          std::vector<unsigned char>{0x80, 0x3f, 0});
  }
  from.resType = CU_RESOURCE_TYPE_PITCH2D;
  from.res.pitch2D = {memory, FLOAT, 1, 10, 5, 256};
  {
    const Texture texture(from, sampler(CLAMP, LINEAR));
    check_near(reds(look_up<Vector>(images.function("at_2d"), texture,
                                    std::vector<Vector>{{2.5f, 3.5f}, {1, 1}, {99, 99}})),
               {195, 33.5f, 266});
  }
  CUtexObject bad;
  const CUDA_TEXTURE_DESC how = sampler();
  from.res.pitch2D.pitchInBytes = 260;
  CU_IS(cuTexObjectCreate(&bad, &from, &how, nullptr), CUDA_ERROR_INVALID_VALUE);
  from.res.pitch2D = {memory + 4, FLOAT, 1, 10, 5, 256};
  CU_IS(cuTexObjectCreate(&bad, &from, &how, nullptr), CUDA_ERROR_INVALID_VALUE);
  CU(cuMemFree(memory));
}

TEST_CASE("textures: what an object says of itself; views of layers and formats") {
  const Gpu gpu;
  const Images images;
  const ArrayOf array(CU_AD_FORMAT_UNSIGNED_INT32, 1, 4, 2, 3, CUDA_ARRAY3D_LAYERED);
  write_array(array.handle, counting<unsigned>(24, 0x04030200));
  CUDA_RESOURCE_VIEW_DESC view{};
  view.format = CU_RES_VIEW_FORMAT_UINT_4X8;
  view.width = 4;
  view.height = 2;
  view.depth = 3;
  view.firstLayer = 1;
  view.lastLayer = 2;
  const CUDA_TEXTURE_DESC how = sampler(CLAMP, POINT);
  const Texture texture(resource(array.handle), how, &view);
  const auto got = look_up<Vector>(images.function("in_layer_2d"), texture,
                                   std::vector<Vector>{{0.5f, 0.5f, 0, 0}, {3.5f, 1.5f, 0, 1}});
  check_near({got[0].x, got[0].y, got[0].w, got[1].x},
             {8 / 255.f, 2 / 255.f, 4 / 255.f, 23 / 255.f});
  CUDA_RESOURCE_DESC r{};
  CUDA_TEXTURE_DESC t{};
  CUDA_RESOURCE_VIEW_DESC v{};
  CU(cuTexObjectGetResourceDesc(&r, texture.handle));
  CU(cuTexObjectGetTextureDesc(&t, texture.handle));
  CU(cuTexObjectGetResourceViewDesc(&v, texture.handle));
  CHECK(r.resType == CU_RESOURCE_TYPE_ARRAY);
  CHECK(r.res.array.hArray == array.handle);
  CHECK(t.filterMode == POINT);
  CHECK(t.addressMode[1] == CLAMP);
  CHECK(v.format == view.format);
  CHECK(v.firstLayer == 1);
  CHECK(v.lastLayer == 2);
  CUtexObject bad;
  CUDA_RESOURCE_DESC from = resource(array.handle);
  CU_IS(cuTexObjectCreate(nullptr, &from, &how, nullptr), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuTexObjectCreate(&bad, &from, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  from.flags = 1;
  CU_IS(cuTexObjectCreate(&bad, &from, &how, nullptr), CUDA_ERROR_INVALID_VALUE);
}
