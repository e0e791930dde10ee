// SPDX-License-Identifier: Apache-2.0
// Surface objects, and the references of the old API, which modules have in their PTX.
#include "image_support.h"

// CUDA 13.0 deprecates the functions of references and still has them.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

constexpr auto INT = CU_AD_FORMAT_SIGNED_INT32;

class Surface {
 public:
  explicit Surface(const ArrayOf& array) {
    const CUDA_RESOURCE_DESC from = resource(array.handle);
    CU(cuSurfObjectCreate(&handle, &from));
  }
  Surface(const Surface&) = delete;
  Surface& operator=(const Surface&) = delete;
  ~Surface() { cuSurfObjectDestroy(handle); }
  CUsurfObject handle = 0;
};

/// Run a kernel with one thread for each element.
void step(CUfunction function, const ArrayOf& array) {
  const Surface surface(array);
  CUsurfObject handle = surface.handle;
  void* params[] = {&handle};
  const auto length = [](size_t n) { return static_cast<unsigned>(n == 0 ? 1 : n); };
  const CUDA_ARRAY3D_DESCRIPTOR& d = array.descriptor;
  CU(cuLaunchKernel(function, 1, 1, 1, length(d.Width), length(d.Height), length(d.Depth), 0,
                    nullptr, params, nullptr));
  CU(cuCtxSynchronize());
}

const char REFERENCES[] = R"(
.version 8.0
.target sm_80
.address_size 64
.global .texref picture;
.global .texref table;
.global .surfref canvas;
// One thread: adds what picture has at (1.5, 0.5) and table at 2, to the second int of canvas.
.visible .entry add_up() {
  .reg .f32 %f<9>;
  .reg .b32 %r<9>;
  mov.f32 %f1, 0f3FC00000;
  mov.f32 %f2, 0f3F000000;
  tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [picture, {%f1, %f2}];
  cvt.rni.s32.f32 %r1, %f3;
  mov.u32 %r2, 2;
  tex.1d.v4.s32.s32 {%r3, %r4, %r5, %r6}, [table, {%r2}];
  add.s32 %r1, %r1, %r3;
  mov.u32 %r7, 4;
  suld.b.1d.b32.trap {%r8}, [canvas, {%r7}];
  add.s32 %r8, %r8, %r1;
  sust.b.1d.b32.trap [canvas, {%r7}], {%r8};
  ret;
})";

}  // namespace

TEST_CASE("surfaces: read and written in every shape") {
  const Gpu gpu;
  const Images images;
  const unsigned flags = CUDA_ARRAY3D_SURFACE_LDST;
  const ArrayOf line(INT, 1, 32, 0, 0, flags);
  write_array(line.handle, counting<int>(32));
  step(images.function("step_1d"), line);
  CHECK(read_array<int>(line.handle) == counting<int>(32, 1));

  const ArrayOf plane(INT, 2, 8, 4, 0, flags);
  write_array(plane.handle, std::vector<int>(64, 5));
  step(images.function("step_2d"), plane);
  std::vector<int> pairs;
  for (int i = 0; i < 32; ++i) pairs.insert(pairs.end(), {6, 7});
  CHECK(read_array<int>(plane.handle) == pairs);

  const ArrayOf box(CU_AD_FORMAT_SIGNED_INT16, 1, 8, 4, 2, flags);
  write_array(box.handle, counting<int16_t>(64, -9));
  step(images.function("step_3d"), box);
  CHECK(read_array<int16_t>(box.handle) == counting<int16_t>(64, -8));

  const ArrayOf layers(CU_AD_FORMAT_UNSIGNED_INT32, 4, 4, 2, 3, flags | CUDA_ARRAY3D_LAYERED);
  write_array(layers.handle, std::vector<unsigned>(96, 7));
  step(images.function("step_layers"), layers);
  std::vector<unsigned> fours;
  for (int i = 0; i < 24; ++i) fours.insert(fours.end(), {8, 9, 10, 11});
  CHECK(read_array<unsigned>(layers.handle) == fours);

  const ArrayOf cube(CU_AD_FORMAT_UNSIGNED_INT8, 1, 4, 4, 6, flags | CUDA_ARRAY3D_CUBEMAP);
  write_array(cube.handle, counting<uint8_t>(96));
  step(images.function("step_faces"), cube);
  CHECK(read_array<uint8_t>(cube.handle) == counting<uint8_t>(96, 1));
}

TEST_CASE("surfaces: outside of them; what an object says; textures of the same") {
  const Gpu gpu;
  const Images images;
  const ArrayOf array(INT, 1, 4, 4, 0, CUDA_ARRAY3D_SURFACE_LDST);
  write_array(array.handle, counting<int>(16));
  const Surface surface(array);
  const Ints out(2, -1);
  CUsurfObject handle = surface.handle;
  CUdeviceptr to = out.dptr;
  int x = 5, y = -3, value = 77;
  launch(images.function("at_edge"), nullptr, {&handle, &x, &y, &to});
  CHECK(out.read() == std::vector<int>{3, 0});
  CHECK(read_array<int>(array.handle) == counting<int>(16));
  launch(images.function("clamped_write"), nullptr, {&handle, &x, &y, &value});
  std::vector<int> expected = counting<int>(16);
  expected[3] = 77;
  CHECK(read_array<int>(array.handle) == expected);

  const Texture texture(resource(array.handle));
  const auto got = look_up<Integers>(images.function("at_2d_integers"), texture,
                                     std::vector<Vector>{{3.5f, 0.5f}, {0.5f, 3.5f}});
  CHECK(got[0].x == 77);
  CHECK(got[1].x == 12);

  CUDA_RESOURCE_DESC r{};
  CU(cuSurfObjectGetResourceDesc(&r, surface.handle));
  CHECK(r.resType == CU_RESOURCE_TYPE_ARRAY);
  CHECK(r.res.array.hArray == array.handle);
  CU_IS(cuSurfObjectCreate(&handle, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("error: surfaces: an access that traps is an error of the context") {
  const Gpu gpu;
  const Images images;
  const ArrayOf array(INT, 1, 4, 4, 0, CUDA_ARRAY3D_SURFACE_LDST);
  const Surface surface(array);
  const Ints out(1);
  CUsurfObject handle = surface.handle;
  CUdeviceptr to = out.dptr;
  int x = 4;
  launch(images.function("trapping_read"), nullptr, {&handle, &x, &to});
  const CUresult result = cuCtxSynchronize();
  CHECK(result != CUDA_SUCCESS);
  CU_IS(cuCtxSynchronize(), result);
}

TEST_CASE("references: textures and surfaces that a module names") {
  const Gpu gpu;
  CUmodule module;
  CU(cuModuleLoadData(&module, REFERENCES));
  CUtexref picture, table, other;
  CUsurfref canvas;
  CU(cuModuleGetTexRef(&picture, module, "picture"));
  CU(cuModuleGetTexRef(&table, module, "table"));
  CU(cuModuleGetSurfRef(&canvas, module, "canvas"));
  CU_IS(cuModuleGetTexRef(&other, module, "nothing"), CUDA_ERROR_NOT_FOUND);

  const ArrayOf plane(CU_AD_FORMAT_FLOAT, 1, 4, 2),
      line(INT, 1, 4, 0, 0, CUDA_ARRAY3D_SURFACE_LDST);
  write_array(plane.handle, counting<float>(8, 100));
  write_array(line.handle, std::vector<int>(4));
  const Ints ints(8, 1000);
  CU(cuTexRefSetArray(picture, plane.handle, CU_TRSA_OVERRIDE_FORMAT));
  CU(cuTexRefSetFilterMode(picture, CU_TR_FILTER_MODE_POINT));
  CU(cuTexRefSetAddressMode(picture, 0, CU_TR_ADDRESS_MODE_CLAMP));
  CU(cuTexRefSetAddressMode(picture, 1, CU_TR_ADDRESS_MODE_CLAMP));
  CU(cuTexRefSetFormat(table, INT, 1));
  CU(cuTexRefSetFlags(table, CU_TRSF_READ_AS_INTEGER));
  size_t offset = 1;
  CU(cuTexRefSetAddress(&offset, table, ints.dptr, 32));
  CHECK(offset == 0);
  CU(cuSurfRefSetArray(canvas, line.handle, 0));
  CUfunction function;
  CU(cuModuleGetFunction(&function, module, "add_up"));
  launch(function, nullptr, {});
  CHECK(read_array<int>(line.handle) == std::vector<int>{0, 1101, 0, 0});
  // Bound to something else, a launch sees that.
  const ArrayOf second(CU_AD_FORMAT_FLOAT, 1, 4, 2);
  write_array(second.handle, std::vector<float>(8, 5));
  CU(cuTexRefSetArray(picture, second.handle, CU_TRSA_OVERRIDE_FORMAT));
  launch(function, nullptr, {});
  CHECK(read_array<int>(line.handle) == std::vector<int>{0, 2106, 0, 0});

  CUarray array;
  CUdeviceptr pointer;
  CUarray_format format;
  int n_channels;
  unsigned flags;
  CUfilter_mode filter;
  CUaddress_mode mode;
  CU(cuTexRefGetArray(&array, picture));
  CHECK(array == second.handle);
  CU_IS(cuTexRefGetAddress(&pointer, picture), CUDA_ERROR_INVALID_VALUE);
  CU(cuTexRefGetFormat(&format, &n_channels, picture));
  CHECK(format == CU_AD_FORMAT_FLOAT);
  CHECK(n_channels == 1);
  CU(cuTexRefGetFilterMode(&filter, picture));
  CHECK(filter == CU_TR_FILTER_MODE_POINT);
  CU(cuTexRefGetAddressMode(&mode, picture, 1));
  CHECK(mode == CU_TR_ADDRESS_MODE_CLAMP);
  CU(cuTexRefGetAddress(&pointer, table));
  CU(cuTexRefGetAddress(nullptr, table));
  CHECK(pointer == ints.dptr);
  CU(cuTexRefGetFlags(&flags, table));
  CHECK(flags == CU_TRSF_READ_AS_INTEGER);
  CU(cuSurfRefGetArray(&array, canvas));
  CHECK(array == line.handle);
  CU(cuTexRefCreate(&other));
  CU(cuTexRefDestroy(other));
  CU(cuModuleUnload(module));
}

TEST_CASE("references: bound to something else between many launches of a kernel") {
  constexpr int IN_A_ROW = 200, ROUNDS = 4;
  const Gpu gpu;
  CUmodule module;
  CU(cuModuleLoadData(&module, REFERENCES));
  CUtexref picture, table;
  CUsurfref canvas;
  CU(cuModuleGetTexRef(&picture, module, "picture"));
  CU(cuModuleGetTexRef(&table, module, "table"));
  CU(cuModuleGetSurfRef(&canvas, module, "canvas"));
  const ArrayOf first(CU_AD_FORMAT_FLOAT, 1, 4, 2), second(CU_AD_FORMAT_FLOAT, 1, 4, 2),
      line(INT, 1, 4, 0, 0, CUDA_ARRAY3D_SURFACE_LDST);
  write_array(first.handle, std::vector<float>(8, 5));
  write_array(second.handle, std::vector<float>(8, 7));
  write_array(line.handle, std::vector<int>(4));
  const Ints ints(8, 1000);
  CU(cuTexRefSetFormat(table, INT, 1));
  CU(cuTexRefSetFlags(table, CU_TRSF_READ_AS_INTEGER));
  CU(cuTexRefSetAddress(nullptr, table, ints.dptr, 32));
  CU(cuSurfRefSetArray(canvas, line.handle, 0));
  CUfunction function;
  CU(cuModuleGetFunction(&function, module, "add_up"));
  for (int round = 0; round < ROUNDS; ++round) {
    const CUarray bound = round % 2 == 0 ? first.handle : second.handle;
    CU(cuTexRefSetArray(picture, bound, CU_TRSA_OVERRIDE_FORMAT));
    for (int i = 0; i < IN_A_ROW; ++i) launch(function, nullptr, {});
  }
  const int expected = ROUNDS / 2 * IN_A_ROW * (1005 + 1007);
  CHECK(read_array<int>(line.handle) == std::vector<int>{0, expected, 0, 0});
  CU(cuModuleUnload(module));
}

TEST_CASE("references: what is asked of one needs no current context") {
  const Gpu gpu;
  CUmodule module;
  CU(cuModuleLoadData(&module, REFERENCES));
  CUtexref reference;
  CUsurfref canvas;
  CU(cuTexRefCreate(&reference));
  CU(cuModuleGetSurfRef(&canvas, module, "canvas"));
  const ArrayOf line(INT, 1, 4, 0, 0, CUDA_ARRAY3D_SURFACE_LDST);
  const Ints ints(8);
  CUcontext context;
  CU(cuCtxPopCurrent(&context));
  CUarray array;
  CUarray_format format;
  CUdeviceptr pointer;
  int n_channels;
  size_t offset;
  float color[4] = {1, 0, 0, 1};
  CU(cuTexRefSetArray(reference, line.handle, CU_TRSA_OVERRIDE_FORMAT));
  CU(cuTexRefGetArray(&array, reference));
  CHECK(array == line.handle);
  CU(cuTexRefGetFormat(&format, &n_channels, reference));
  CHECK(format == INT);
  CU(cuTexRefSetBorderColor(reference, color));
  CU(cuTexRefGetBorderColor(color, reference));
  CU(cuTexRefSetAddress(&offset, reference, ints.dptr, 32));
  CU(cuTexRefGetAddress(&pointer, reference));
  CHECK(pointer == ints.dptr);
  CU(cuSurfRefSetArray(canvas, line.handle, 0));
  CU(cuSurfRefGetArray(&array, canvas));
  CHECK(array == line.handle);
  CU(cuTexRefDestroy(reference));
  CU_IS(cuTexRefCreate(&reference), CUDA_ERROR_INVALID_CONTEXT);
  CU(cuCtxSetCurrent(context));
  CU(cuModuleUnload(module));
}
