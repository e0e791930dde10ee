// SPDX-License-Identifier: Apache-2.0
// nvjpeg_program LIBNVJPEG gradient.jpg: a library that carries a CUDA 12 runtime inside decodes an
// image. With --no-decode it only starts: its kernels are machine code, which the software GPU does
// not run. The image is a progressive one: the decoder that newer GPUs have in hardware takes
// baseline ones only. It is reached by unknown interfaces, and rounds in another way.
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "runtime_api.h"

namespace {

constexpr int WIDTH = 64, HEIGHT = 48, RGB_INTERLEAVED = 5;

struct Image {  // nvjpegImage_t
  unsigned char* channel[4];
  size_t pitch[4];
};

void must(int result, const char* what) {
  if (result == SUCCESS) return;
  std::printf("FAILED %s: %d\n", what, result);
  std::exit(1);
}
#define MUST(call) must(call, #call)

// The picture is red from left to right, green from top to bottom; JPEG changes it a little.
bool is_gradient(const std::vector<unsigned char>& pixels) {
  for (int y = 0; y < HEIGHT; ++y) {
    for (int x = 0; x < WIDTH; ++x) {
      const int wanted[] = {x * 4, y * 5, 128};
      for (int i = 0; i < 3; ++i) {
        if (std::abs(pixels[static_cast<size_t>((y * WIDTH + x) * 3 + i)] - wanted[i]) > 24) {
          return false;
        }
      }
    }
  }
  return true;
}

unsigned checksum(const std::vector<unsigned char>& bytes) {
  unsigned hash = 0x811c9dc5;  // FNV-1a
  for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x01000193;
  return hash;
}

void decode(void* library, void* handle, void* state, const std::vector<unsigned char>& jpeg) {
  void* const driver = open_library("libcuda.so.1");
  const Function<int, uint64_t*, size_t> allocate{driver, "cuMemAlloc_v2"};
  const Function<int, void*, uint64_t, size_t> copy_back{driver, "cuMemcpyDtoH_v2"};
  const Function<int, uint64_t> release{driver, "cuMemFree_v2"};
  const Function<int> synchronize{driver, "cuCtxSynchronize"};
  const Function<int, void*, void*, const unsigned char*, size_t, int, Image*, Stream> run{
      library, "nvjpegDecode"};
  std::vector<unsigned char> pixels(WIDTH * HEIGHT * 3);
  uint64_t device;
  MUST(allocate(&device, pixels.size()));
  Image image{};
  image.channel[0] = reinterpret_cast<unsigned char*>(device);
  image.pitch[0] = WIDTH * 3;
  MUST(run(handle, state, jpeg.data(), jpeg.size(), RGB_INTERLEAVED, &image, nullptr));
  MUST(synchronize());
  MUST(copy_back(pixels.data(), device, pixels.size()));
  MUST(release(device));
  std::printf("decoded: %s (checksum %08x)\n", is_gradient(pixels) ? "ok" : "WRONG",
              checksum(pixels));
  if (!is_gradient(pixels)) std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: nvjpeg_program LIBNVJPEG gradient.jpg [--no-decode]\n");
    return 2;
  }
  void* const library = open_library(argv[1]);
  std::ifstream file(argv[2], std::ios::binary);
  const std::vector<unsigned char> jpeg(std::istreambuf_iterator<char>(file), {});
  const Function<int, int, int*> runtime_version{library, "nvjpegGetCudartProperty"};
  const Function<int, void**> create{library, "nvjpegCreateSimple"};
  const Function<int, void*, void**> create_state{library, "nvjpegJpegStateCreate"};
  const Function<int, void*> destroy_state{library, "nvjpegJpegStateDestroy"};
  const Function<int, void*> destroy{library, "nvjpegDestroy"};
  const Function<int, void*, const unsigned char*, size_t, int*, int*, int*, int*> image_info{
      library, "nvjpegGetImageInfo"};
  int major = 0;
  MUST(runtime_version(0, &major));
  std::printf("runtime inside: %d\n", major);
  void *handle, *state;
  MUST(create(&handle));
  MUST(create_state(handle, &state));
  int n_components, sampling, widths[4], heights[4];
  MUST(image_info(handle, jpeg.data(), jpeg.size(), &n_components, &sampling, widths, heights));
  const Function<int, int, unsigned*, int*> primary_state{open_library("libcuda.so.1"),
                                                          "cuDevicePrimaryCtxGetState"};
  unsigned flags;
  int active = 0;
  MUST(primary_state(0, &flags, &active));
  std::printf("its context on device 0: %s\n", active == 1 ? "ok" : "WRONG");
  std::printf("image: %d x %d\n", widths[0], heights[0]);
  if (argc == 3) decode(library, handle, state, jpeg);
  MUST(destroy_state(state));
  MUST(destroy(handle));
  std::printf(active == 1 ? "nvjpeg_program: all results correct\n"
                          : "nvjpeg_program: some results are wrong\n");
  return active == 1 ? 0 : 1;
}
