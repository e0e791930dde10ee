// SPDX-License-Identifier: Apache-2.0
// Arrays without memory of their own: sparse ones, mapped tile by tile, and those mapped as a
// whole.
#include "image_support.h"
#include "virtual_memory.h"

namespace {

constexpr CUarray_format FLOAT = CU_AD_FORMAT_FLOAT;
constexpr CUarray_format BYTE = CU_AD_FORMAT_UNSIGNED_INT8;
constexpr unsigned SPARSE = CUDA_ARRAY3D_SPARSE, DEFERRED = CUDA_ARRAY3D_DEFERRED_MAPPING;
constexpr size_t TILE_BYTES = 64 << 10;  // 128 x 128 floats, 32 x 32 x 16 of them

/// Memory that arrays are mapped to.
struct TilePool {
  explicit TilePool(CUdevice device, size_t bytes = 0) {
    CUmemAllocationProp properties = properties_of(device);
    properties.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    const size_t unit = granularity(device);
    CU(cuMemCreate(&handle, bytes == 0 ? unit : (bytes + unit - 1) / unit * unit, &properties, 0));
  }
  ~TilePool() { release(); }
  TilePool(const TilePool&) = delete;
  TilePool& operator=(const TilePool&) = delete;
  void release() {
    if (handle != 0) CU(cuMemRelease(handle));
    handle = 0;
  }
  CUmemGenericAllocationHandle handle = 0;
};

struct Mipmap {
  Mipmap(const CUDA_ARRAY3D_DESCRIPTOR& d, unsigned n_levels) {
    CU(cuMipmappedArrayCreate(&handle, &d, n_levels));
  }
  ~Mipmap() { cuMipmappedArrayDestroy(handle); }
  Mipmap(const Mipmap&) = delete;
  Mipmap& operator=(const Mipmap&) = delete;
  CUarray level(unsigned i) const {
    CUarray array = nullptr;
    CU(cuMipmappedArrayGetLevel(&array, handle, i));
    return array;
  }
  CUmipmappedArray handle = nullptr;
};

struct Corner {
  unsigned x = 0, y = 0, z = 0;
};

/// What maps one tile, of 128 x 128 elements unless its size is given.
CUarrayMapInfo tile_of(const Gpu& gpu, CUarray array, Corner at, const TilePool& pool,
                       size_t offset_bytes = 0, Corner size = {128, 128, 1}) {
  CUarrayMapInfo info{};
  info.resourceType = CU_RESOURCE_TYPE_ARRAY;
  info.resource.array = array;
  info.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
  info.subresource.sparseLevel = {0, 0, at.x, at.y, at.z, size.x, size.y, size.z};
  info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
  info.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
  info.memHandle.memHandle = pool.handle;
  info.offset = offset_bytes;
  info.deviceBitMask = 1u << gpu.device;
  return info;
}

CUarrayMapInfo without_memory(CUarrayMapInfo info) {
  info.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
  info.memHandle.memHandle = 0;
  info.offset = 0;
  return info;
}

CUresult try_map(CUarrayMapInfo info) {
  const CUresult result = cuMemMapArrayAsync(&info, 1, nullptr);
  CU(cuStreamSynchronize(nullptr));
  return result;
}

void map(std::vector<CUarrayMapInfo> list) {
  CU(cuMemMapArrayAsync(list.data(), static_cast<unsigned>(list.size()), nullptr));
}

CUresult try_array(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  CUarray array = nullptr;
  const CUresult result = cuArray3DCreate(&array, &d);
  if (result == CUDA_SUCCESS) CU(cuArrayDestroy(array));
  return result;
}

/// Which elements of `read` are `written`, the others 0: as many as tiles that are mapped hold.
size_t n_kept(const std::vector<float>& read, const std::vector<float>& written) {
  size_t n = 0;
  for (size_t i = 0; i < read.size(); ++i) {
    if (read[i] == 0) continue;
    REQUIRE(read[i] == written[i]);
    ++n;
  }
  return n;
}

}  // namespace

TEST_CASE("sparse arrays: their tiles and tails, and which arrays there are") {
  const Gpu gpu;
  for (const auto id : {CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED,
                        CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED}) {
    int value = 0;
    CU(cuDeviceGetAttribute(&value, id, gpu.device));
    CHECK(value == 1);
  }
  struct Row {
    CUDA_ARRAY3D_DESCRIPTOR array;
    Corner tile;
    unsigned tail_levels[2];  // the first one of the array alone, and of all levels
    size_t tail_tiles[2];
    unsigned flags[2];
  };
  constexpr unsigned ONE = CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL;
  const Row rows[] = {
      {{1024, 1024, 0, BYTE, 1, SPARSE}, {256, 256, 1}, {0, 3}, {0, 1}, {0, 0}},
      {{1000, 700, 0, BYTE, 2, SPARSE}, {256, 128, 1}, {0, 2}, {0, 3}, {0, 0}},
      {{1000, 700, 0, FLOAT, 1, SPARSE}, {128, 128, 1}, {0, 3}, {0, 2}, {0, 0}},
      {{512, 512, 4, FLOAT, 2, SPARSE | CUDA_ARRAY3D_LAYERED},
       {128, 64, 1},
       {0, 3},
       {0, 1},
       {0, 0}},
      {{64, 64, 0, FLOAT, 4, SPARSE}, {64, 64, 1}, {0, 1}, {0, 1}, {0, 0}},
      {{64, 64, 0, FLOAT, 1, SPARSE}, {128, 128, 1}, {0, 0}, {1, 1}, {ONE, ONE}},
      {{256, 256, 128, BYTE, 1, SPARSE}, {64, 32, 32}, {0, 3}, {0, 1}, {0, 0}},
      {{256, 256, 128, FLOAT, 4, SPARSE}, {16, 16, 16}, {0, 4}, {0, 1}, {0, 0}},
  };
  const auto check = [](const CUDA_ARRAY_SPARSE_PROPERTIES& got, const Row& row, int which) {
    CHECK(got.tileExtent.width == row.tile.x);
    CHECK(got.tileExtent.height == row.tile.y);
    CHECK(got.tileExtent.depth == row.tile.z);
    CHECK(got.miptailFirstLevel == row.tail_levels[which]);
    CHECK(got.miptailSize == row.tail_tiles[which] * TILE_BYTES);
    CHECK(got.flags == row.flags[which]);
  };
  for (const Row& row : rows) {
    CAPTURE(&row - rows);
    const CUDA_ARRAY3D_DESCRIPTOR& d = row.array;
    const ArrayOf array(d.Format, d.NumChannels, d.Width, d.Height, d.Depth, d.Flags);
    const Mipmap mipmap(d, 9);
    CUDA_ARRAY_SPARSE_PROPERTIES sparse{};
    CUDA_ARRAY_MEMORY_REQUIREMENTS memory;
    CU(cuArrayGetSparseProperties(&sparse, array.handle));
    check(sparse, row, 0);
    CU(cuMipmappedArrayGetSparseProperties(&sparse, mipmap.handle));
    check(sparse, row, 1);
    CUarray level = mipmap.level(2);
    CU_IS(cuArrayGetSparseProperties(&sparse, level), CUDA_ERROR_INVALID_VALUE);
    CU_IS(cuArrayGetMemoryRequirements(&memory, array.handle, gpu.device),
          CUDA_ERROR_INVALID_VALUE);
    CUDA_ARRAY3D_DESCRIPTOR of_level{};
    CU(cuArray3DGetDescriptor(&of_level, level));
    CHECK(of_level.Flags == d.Flags);
  }
  for (const unsigned n_levels : {1u, 2u}) {  // without a tail
    const Mipmap mipmap({512, 512, 4, FLOAT, 1, SPARSE | CUDA_ARRAY3D_LAYERED}, n_levels);
    CUDA_ARRAY_SPARSE_PROPERTIES sparse{};
    CU(cuMipmappedArrayGetSparseProperties(&sparse, mipmap.handle));
    CHECK(sparse.miptailFirstLevel == n_levels);
    CHECK(sparse.miptailSize == 0);
  }
  for (const unsigned with : {CUDA_ARRAY3D_SURFACE_LDST, CUDA_ARRAY3D_DEPTH_TEXTURE,
                              CUDA_ARRAY3D_COLOR_ATTACHMENT, int{DEFERRED}}) {
    CHECK(try_array({512, 512, 0, FLOAT, 1, SPARSE | with}) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(try_array({512, 512, 6, FLOAT, 1, SPARSE | CUDA_ARRAY3D_CUBEMAP}) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(try_array({4096, 0, 0, FLOAT, 1, SPARSE}) == CUDA_ERROR_INVALID_VALUE);
  const ArrayOf array(FLOAT, 1, 512, 512, 0, SPARSE);
  const CUDA_RESOURCE_DESC description = resource(array.handle);
  CUsurfObject surface;
  CU(cuSurfObjectCreate(&surface, &description));
  CU(cuSurfObjectDestroy(surface));
}

TEST_CASE("sparse arrays: tiles are mapped, at several places, and unmapped") {
  const Gpu gpu;
  const Images images;
  const ArrayOf array(FLOAT, 1, 512, 512, 0, SPARSE);
  TilePool pool(gpu.device);
  const std::vector<float> written = counting<float>(512 * 512, 1);
  const auto at = [](unsigned x, unsigned y) { return y * 512 + x; };
  CHECK(n_kept(read_array<float>(array.handle), written) == 0);
  map({tile_of(gpu, array.handle, {128, 0}, pool),
       tile_of(gpu, array.handle, {0, 128}, pool, TILE_BYTES)});
  write_array(array.handle, written);
  std::vector<float> read = read_array<float>(array.handle);
  CHECK(n_kept(read, written) == 2 * 128 * 128);
  CHECK(read[at(128, 0)] == written[at(128, 0)]);
  CHECK(read[at(127, 255)] == written[at(127, 255)]);

  const CUarrayMapInfo other = tile_of(gpu, array.handle, {256, 384}, pool);  // the first memory
  map({other});
  pool.release();  // what is mapped stays
  map({without_memory(tile_of(gpu, array.handle, {128, 0}, pool))});
  read = read_array<float>(array.handle);
  CHECK(read[at(128, 0)] == 0);
  CHECK(read[at(256, 384)] == written[at(128, 0)]);
  CHECK(read[at(383, 511)] == written[at(255, 127)]);
  CHECK(read[at(0, 128)] == written[at(0, 128)]);
  const Texture texture(resource(array.handle));
  const std::vector<Vector> places = {{256.5f, 384.5f}, {128.5f, 0.5f}, {5.5f, 130.5f}};
  CHECK(reds(look_up<Vector>(images.function("at_2d"), texture, places)) ==
        std::vector<float>{written[at(128, 0)], 0, written[at(5, 130)]});
}

TEST_CASE("sparse arrays: layers and three dimensions") {
  const Gpu gpu;
  const TilePool pool(gpu.device);
  const ArrayOf layers(FLOAT, 1, 256, 128, 3, SPARSE | CUDA_ARRAY3D_LAYERED);
  CUarrayMapInfo info = tile_of(gpu, layers.handle, {128, 0}, pool);
  info.subresource.sparseLevel.layer = 1;
  map({info});
  std::vector<float> written = counting<float>(256 * 128 * 3, 1);
  write_array(layers.handle, written);
  std::vector<float> read = read_array<float>(layers.handle);
  CHECK(n_kept(read, written) == 128 * 128);
  CHECK(read[256 * 128 + 128] == written[256 * 128 + 128]);

  const ArrayOf box(FLOAT, 1, 64, 64, 32, SPARSE);
  map({tile_of(gpu, box.handle, {32, 0, 16}, pool, TILE_BYTES, {32, 64, 16})});
  written = counting<float>(64 * 64 * 32, 1);
  write_array(box.handle, written);
  read = read_array<float>(box.handle);
  CHECK(n_kept(read, written) == 2 * 32 * 32 * 16);
  CHECK(read[16 * 64 * 64 + 33 * 64 + 63] == written[16 * 64 * 64 + 33 * 64 + 63]);
}

TEST_CASE("sparse arrays: levels of a mipmapped one, and its tail") {
  const Gpu gpu;
  const TilePool pool(gpu.device);
  const Mipmap mipmap({512, 512, 0, FLOAT, 1, SPARSE}, 10);
  CUarrayMapInfo tail = tile_of(gpu, nullptr, {}, pool);
  tail.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  tail.resource.mipmap = mipmap.handle;
  CUarrayMapInfo tile = tail;
  tile.subresource.sparseLevel.level = 1;
  tile.subresource.sparseLevel.offsetX = 128;
  tile.offset = TILE_BYTES;
  tail.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
  tail.subresource.miptail = {0, 0, TILE_BYTES};
  map({tail, tile});
  for (const unsigned level : {0u, 1u, 3u, 8u}) {
    CAPTURE(level);
    const size_t n = 512u >> level;
    const std::vector<float> written = counting<float>(n * n, 1);
    write_array(mipmap.level(level), written);
    const size_t n_there = level == 0 ? 0 : level == 1 ? 128 * 128 : n * n;
    CHECK(n_kept(read_array<float>(mipmap.level(level)), written) == n_there);
  }
  CHECK(read_array<float>(mipmap.level(3)) ==
        counting<float>(64 * 64, 1));  // the last one's not there
  CHECK(try_map(tile_of(gpu, mipmap.level(0), {}, pool)) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("sparse arrays: tiles at the edges are cut") {
  const Gpu gpu;
  const TilePool pool(gpu.device);
  const ArrayOf array(FLOAT, 1, 300, 200, 0, SPARSE);
  const auto map_to = [&](Corner at, Corner size) {
    return try_map(tile_of(gpu, array.handle, at, pool, 0, size));
  };
  CU_IS(map_to({}, {384, 256, 1}), CUDA_ERROR_INVALID_VALUE);  // whole tiles
  CU(map_to({}, {300, 200, 1}));
  CU(map_to({256, 128}, {44, 72, 1}));
}

TEST_CASE("sparse arrays: a long list") {
  const Gpu gpu;
  const TilePool pool(gpu.device);
  const ArrayOf array(BYTE, 1, 4096, 4096, 0, SPARSE);
  std::vector<CUarrayMapInfo> list;
  for (unsigned i = 0; i < 150; ++i) {
    list.push_back(
        tile_of(gpu, array.handle, {i % 16 * 256, i / 16 * 256}, pool, 0, {256, 256, 1}));
  }
  map(list);
  const auto copy_row = [&](unsigned x, unsigned y, std::vector<uint8_t>* row, bool in) {
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = in ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_ARRAY;
    copy.dstMemoryType = in ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_HOST;
    copy.srcHost = copy.dstHost = row->data();
    copy.srcArray = copy.dstArray = array.handle;
    (in ? copy.dstXInBytes : copy.srcXInBytes) = x;
    (in ? copy.dstY : copy.srcY) = y;
    copy.WidthInBytes = row->size();
    copy.Height = 1;
    CU(cuMemcpy2D(&copy));
  };
  std::vector<uint8_t> row = counting<uint8_t>(256, 1), read(256);
  copy_row(0, 77, &row, true);
  copy_row(5 * 256, 9 * 256 + 77, &read, false);  // the last one
  CHECK(read == row);
  copy_row(6 * 256, 9 * 256 + 77, &read, false);
  CHECK(read == std::vector<uint8_t>(256));
}

TEST_CASE("sparse arrays: what is no mapping is refused") {
  const Gpu gpu;
  const ArrayOf array(FLOAT, 1, 512, 512, 0, SPARSE), plain(FLOAT, 1, 512, 512);
  const TilePool pool(gpu.device);
  const Physical no_pool(gpu.device, granularity(gpu.device));
  const CUarrayMapInfo good = tile_of(gpu, array.handle, {}, pool);
  const std::function<void(CUarrayMapInfo&)> mistakes[] = {
      [&](auto& i) { i.memHandle.memHandle = no_pool.handle; },
      [](auto& i) { i.deviceBitMask = 0; },
      [](auto& i) { i.deviceBitMask = 1u << 31; },
      [](auto& i) { i.flags = 1; },
      [](auto& i) { i.reserved[0] = 1; },
      [](auto& i) { i.offset = 100; },
      [&](auto& i) { i.offset = granularity(gpu.device); },
      [](auto& i) { i.subresource.sparseLevel.offsetX = 3; },
      [](auto& i) { i.subresource.sparseLevel.extentWidth = 64; },
      [](auto& i) { i.subresource.sparseLevel.offsetX = 512; },
      [](auto& i) { i.subresource.sparseLevel.extentDepth = 0; },
      [](auto& i) { i.subresource.sparseLevel.level = 1; },
      [](auto& i) { i.subresource.sparseLevel.layer = 1; },
      [](auto& i) { i.resource.array = nullptr; },
      [&](auto& i) { i.resource.array = plain.handle; },
  };
  for (const auto& mistake : mistakes) {
    CAPTURE(&mistake - mistakes);
    CUarrayMapInfo bad = good;
    mistake(bad);
    CU_IS(try_map(bad), CUDA_ERROR_INVALID_VALUE);
  }
  CUarrayMapInfo info = good;
  CU_IS(cuMemMapArrayAsync(nullptr, 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuMemMapArrayAsync(&info, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  CUstream stream;
  CUgraph graph = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CU_FAILS(cuMemMapArrayAsync(&info, 1, stream));
  (void)cuStreamEndCapture(stream, &graph);
  if (graph != nullptr) CU(cuGraphDestroy(graph));
  CU(cuStreamDestroy(stream));
  CU(try_map(good));
  info.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
  CU(try_map(info));  // what memory it names does not matter
}

TEST_CASE("arrays mapped later: what they need, and their memory") {
  const Gpu gpu;
  const Images images;
  struct Row {
    CUDA_ARRAY3D_DESCRIPTOR array;
    size_t bytes, bytes_of_levels;
  };
  const Row rows[] = {
      {{4096, 0, 0, BYTE, 1, DEFERRED}, 0x10000, 0x20000},
      {{1000, 700, 0, FLOAT, 4, DEFERRED}, 0xbc0000, 0x1000000},
      {{1000, 700, 0, BYTE, 1, DEFERRED}, 0xc0000, 0x110000},
      {{256, 256, 128, BYTE, 1, DEFERRED}, 0x800000, 0x930000},
      {{512, 512, 4, FLOAT, 1, DEFERRED | CUDA_ARRAY3D_LAYERED}, 0x400000, 0x560000},
      {{512, 512, 6, FLOAT, 1, DEFERRED | CUDA_ARRAY3D_CUBEMAP}, 0x600000, 0x810000},
      {{64, 64, 20, FLOAT, 1, DEFERRED}, 0x80000, 0},
      {{64, 64, 33, FLOAT, 1, DEFERRED}, 0xc0000, 0},
  };
  for (const Row& row : rows) {
    CAPTURE(&row - rows);
    const CUDA_ARRAY3D_DESCRIPTOR& d = row.array;
    const ArrayOf array(d.Format, d.NumChannels, d.Width, d.Height, d.Depth, d.Flags);
    const Mipmap mipmap(d, 9);
    CUDA_ARRAY_MEMORY_REQUIREMENTS memory{};
    CUDA_ARRAY_SPARSE_PROPERTIES sparse;
    CU(cuArrayGetMemoryRequirements(&memory, array.handle, gpu.device));
    CHECK(memory.size == row.bytes);
    CHECK(memory.alignment == TILE_BYTES);
    CU(cuMipmappedArrayGetMemoryRequirements(&memory, mipmap.handle, gpu.device));
    if (row.bytes_of_levels != 0) CHECK(memory.size == row.bytes_of_levels);
    CU_IS(cuArrayGetSparseProperties(&sparse, array.handle), CUDA_ERROR_INVALID_VALUE);
    CU_IS(cuArrayGetMemoryRequirements(&memory, mipmap.level(1), gpu.device),
          CUDA_ERROR_INVALID_VALUE);
  }

  const std::vector<float> written = counting<float>(300 * 100, 1);
  TilePool pool(gpu.device);
  const ArrayOf one(FLOAT, 1, 300, 100, 0, DEFERRED), other(FLOAT, 1, 300, 100, 0, DEFERRED);
  map({tile_of(gpu, one.handle, {}, pool, TILE_BYTES),
       tile_of(gpu, other.handle, {}, pool, TILE_BYTES)});
  pool.release();  // what is mapped stays
  write_array(one.handle, written);
  CHECK(read_array<float>(other.handle) == written);
  {
    const Texture texture(resource(other.handle));
    CHECK(reds(look_up<Vector>(images.function("at_2d"), texture,
                               std::vector<Vector>{{299.5f, 99.5f}, {0.5f, 1.5f}})) ==
          std::vector<float>{30000, 301});
  }
  map({without_memory(tile_of(gpu, one.handle, {}, pool))});
  CHECK(read_array<float>(other.handle) == written);
}

TEST_CASE(
    "arrays mapped later, sparse arrays: what they need is asked without context and device") {
  const Gpu gpu;
  const ArrayOf later(FLOAT, 1, 64, 64, 0, DEFERRED), sparse(FLOAT, 1, 512, 512, 0, SPARSE);
  CUDA_ARRAY_MEMORY_REQUIREMENTS memory;
  CUDA_ARRAY_SPARSE_PROPERTIES tiles;
  CUcontext context;
  CU(cuCtxPopCurrent(&context));
  for (const CUdevice device : {-1, 0, 99}) {
    CU(cuArrayGetMemoryRequirements(&memory, later.handle, device));
  }
  CU(cuArrayGetSparseProperties(&tiles, sparse.handle));
  CU(cuCtxPushCurrent(context));
  CU_IS(cuArrayGetMemoryRequirements(&memory, nullptr, gpu.device), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuArrayGetMemoryRequirements(nullptr, later.handle, 0), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuArrayGetSparseProperties(&tiles, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("error: arrays mapped later: a copy from one into which nothing is mapped") {
  const Gpu gpu;
  TilePool pool(gpu.device);
  const ArrayOf array(FLOAT, 1, 64, 64, 0, DEFERRED);
  std::vector<float> data(64 * 64);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = array.handle;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = data.data();
  copy.WidthInBytes = 256;
  copy.Height = 64;
  CU_IS(cuMemcpy2D(&copy), CUDA_ERROR_LAUNCH_FAILED);
  CU_IS(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
  CUDA_ARRAY_MEMORY_REQUIREMENTS memory;
  CU_IS(cuArrayGetMemoryRequirements(&memory, array.handle, gpu.device), CUDA_ERROR_INVALID_VALUE);
  pool.release();
}
