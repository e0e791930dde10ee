// SPDX-License-Identifier: Apache-2.0
// Arrays and textures that a case makes, fills and reads.
#pragma once

#include <algorithm>
#include <cstring>

#include "support.h"

class ArrayOf {
 public:
  ArrayOf(CUarray_format format, unsigned n_channels, size_t width, size_t height = 0,
          size_t depth = 0, unsigned flags = 0) {
    descriptor = {width, height, depth, format, n_channels, flags};
    CU(cuArray3DCreate(&handle, &descriptor));
  }
  ArrayOf(const ArrayOf&) = delete;
  ArrayOf& operator=(const ArrayOf&) = delete;
  ~ArrayOf() { cuArrayDestroy(handle); }
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  CUarray handle = nullptr;
};

/// A copy of all of an array whose channels are T, its slices behind each other on the other side.
template <class T>
CUDA_MEMCPY3D whole(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  CUDA_MEMCPY3D copy{};
  copy.WidthInBytes = d.Width * d.NumChannels * sizeof(T);
  copy.Height = d.Height == 0 ? 1 : d.Height;
  copy.Depth = d.Depth == 0 ? 1 : d.Depth;
  copy.srcPitch = copy.dstPitch = copy.WidthInBytes;
  copy.srcHeight = copy.dstHeight = copy.Height;
  return copy;
}

template <class T>
void write_array(CUarray to, const std::vector<T>& from) {
  CUDA_ARRAY3D_DESCRIPTOR d;
  CU(cuArray3DGetDescriptor(&d, to));
  CUDA_MEMCPY3D copy = whole<T>(d);
  REQUIRE(from.size() * sizeof(T) == copy.WidthInBytes * copy.Height * copy.Depth);
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = from.data();
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = to;
  CU(cuMemcpy3D(&copy));
}

template <class T>
std::vector<T> read_array(CUarray from) {
  CUDA_ARRAY3D_DESCRIPTOR d;
  CU(cuArray3DGetDescriptor(&d, from));
  CUDA_MEMCPY3D copy = whole<T>(d);
  std::vector<T> to(copy.WidthInBytes * copy.Height * copy.Depth / sizeof(T));
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = from;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = to.data();
  CU(cuMemcpy3D(&copy));
  return to;
}

/// 0, 1, 2, …: what an element holds says where it lies.
template <class T>
std::vector<T> counting(size_t n, int first = 0) {
  std::vector<T> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<T>(first + static_cast<int>(i));
  return values;
}

// The module of images.cu.
class Images {
 public:
  Images();
  ~Images();
  CUfunction function(const char* name) const;
  CUmodule module = nullptr;
};

CUDA_RESOURCE_DESC resource(CUarray array);
CUDA_TEXTURE_DESC sampler(CUaddress_mode mode = CU_TR_ADDRESS_MODE_CLAMP,
                          CUfilter_mode filter = CU_TR_FILTER_MODE_POINT, unsigned flags = 0);

class Texture {
 public:
  explicit Texture(const CUDA_RESOURCE_DESC& from, const CUDA_TEXTURE_DESC& how = sampler(),
                   const CUDA_RESOURCE_VIEW_DESC* view = nullptr);
  Texture(const Texture&) = delete;
  Texture& operator=(const Texture&) = delete;
  ~Texture();
  CUtexObject handle = 0;
};

/// float4, uint4.
struct Vector {
  float x = 0, y = 0, z = 0, w = 0;
};
struct Integers {
  unsigned x = 0, y = 0, z = 0, w = 0;
};

/// What a kernel (texture, places, results), one thread for each place, reads.
template <class Result, class Place>
std::vector<Result> look_up(CUfunction function, const Texture& texture,
                            const std::vector<Place>& places) {
  CUdeviceptr from = 0, to = 0;
  std::vector<Result> results(places.size());
  CU(cuMemAlloc(&from, places.size() * sizeof(Place)));
  CU(cuMemAlloc(&to, results.size() * sizeof(Result)));
  CU(cuMemcpyHtoD(from, places.data(), places.size() * sizeof(Place)));
  CUtexObject handle = texture.handle;
  launch(function, nullptr, {&handle, &from, &to}, static_cast<unsigned>(places.size()));
  CU(cuMemcpyDtoH(results.data(), to, results.size() * sizeof(Result)));
  CU(cuMemFree(from));
  CU(cuMemFree(to));
  return results;
}

std::vector<float> reds(const std::vector<Vector>& texels);
