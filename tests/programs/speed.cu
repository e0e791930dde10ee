// SPDX-License-Identifier: Apache-2.0
// How fast a GPU, above all the software GPU, runs kernels. Prints "name value unit" lines:
//   speed lanes       one block, PTX instructions on one lane each, in millions per second
//   speed sgemm       C = A B of 512 x 512 floats in tiles of 16 x 16, seconds
//   speed vector_add  1,000,000 floats, seconds
// Times are those of a warm launch with its synchronisation; results are checked.
#include <chrono>
#include <cmath>
#include <cstring>
#include <vector>

#include "check.h"

static double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Launch twice and return how long the second one took.
template <class F>
static double seconds_of(F launch) {
  double seconds = 0;
  for (int i = 0; i < 2; ++i) {
    const auto start = std::chrono::steady_clock::now();
    launch();
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    seconds = seconds_since(start);
  }
  return seconds;
}

// Loops whose PTX is written down, so that what is counted is what runs.
#define LOOP(body)                                             \
  "{\n .reg .pred p; .reg .b32 t; .reg .f32 g;\nAGAIN:\n" body \
  " add.s32 %2, %2, -1;\n setp.ne.s32 p, %2, 0;\n @p bra AGAIN;\n}"
constexpr int LOOP_INSTRUCTIONS = 3;

constexpr int INTEGER_INSTRUCTIONS = 12 + LOOP_INSTRUCTIONS;
__global__ void integers(uint32_t* out, int n_rounds) {
  uint32_t x = threadIdx.x, y = 2 * threadIdx.x + 1;
  asm volatile(LOOP(" mad.lo.s32 %0, %0, 1664525, %1;\n xor.b32 %1, %1, %0;\n shl.b32 t, %1, 13;\n"
                    " add.s32 %0, %0, t;\n shr.u32 t, %0, 17;\n xor.b32 %0, %0, t;\n"
                    " and.b32 t, %0, 255;\n sub.s32 %1, %1, t;\n mul.lo.s32 %0, %0, 5;\n"
                    " or.b32 t, %0, 1;\n min.s32 t, t, %1;\n add.s32 %1, %1, t;\n")
               : "+r"(x), "+r"(y), "+r"(n_rounds));
  out[threadIdx.x] = x + y;
}

constexpr int FLOAT_INSTRUCTIONS = 12 + LOOP_INSTRUCTIONS;
__global__ void floats(uint32_t* out, int n_rounds) {
  float x = threadIdx.x * 0.001f, y = 1.0f;
  asm volatile(LOOP(" fma.rn.f32 %0, %0, 0f3F000000, %1;\n mul.f32 %1, %1, 0f3F400000;\n"
                    " add.f32 %1, %1, 0f3E800000;\n fma.rn.f32 g, %0, %1, %0;\n"
                    " sub.f32 g, g, %1;\n fma.rn.f32 %0, g, 0f3E000000, %0;\n"
                    " abs.f32 g, %0;\n mul.f32 %0, g, 0f3F000000;\n"
                    " fma.rn.f32 %1, %0, 0f3C000000, %1;\n max.f32 %0, %0, %1;\n"
                    " neg.f32 g, %1;\n fma.rn.f32 %0, g, 0f3D000000, %0;\n")
               : "+f"(x), "+f"(y), "+r"(n_rounds));
  out[threadIdx.x] = __float_as_uint(x + y);
}

constexpr int MEMORY_INSTRUCTIONS = 10 + LOOP_INSTRUCTIONS;
__global__ void accesses(uint32_t* out, int n_rounds) {
  __shared__ uint32_t cells[1024];
  cells[threadIdx.x] = threadIdx.x;
  __syncthreads();
  uint32_t x = threadIdx.x;
  const uint32_t cell = static_cast<uint32_t>(__cvta_generic_to_shared(cells + threadIdx.x));
  asm volatile(LOOP(" ld.shared.u32 t, [%3];\n add.s32 %0, %0, t;\n st.shared.u32 [%3], %0;\n"
                    " ld.global.u32 t, [%4];\n add.s32 %0, %0, t;\n st.global.u32 [%4], %0;\n"
                    " ld.global.f32 g, [%4+4096];\n ld.shared.f32 g, [%3];\n xor.b32 %0, %0, t;\n"
                    " st.shared.u32 [%3], t;\n")
               : "+r"(x), "+r"(x), "+r"(n_rounds)
               : "r"(cell), "l"(out + threadIdx.x)
               : "memory");
  out[threadIdx.x] = x;
}

static void lanes() {
  constexpr int N_THREADS = 1024, N_ROUNDS = 4000;
  struct Case {
    const char* name;
    void (*kernel)(uint32_t*, int);
    int n_instructions;
  };
  const Case cases[] = {{"integer_lanes", integers, INTEGER_INSTRUCTIONS},
                        {"float_lanes", floats, FLOAT_INSTRUCTIONS},
                        {"memory_lanes", accesses, MEMORY_INSTRUCTIONS}};
  uint32_t* out;
  CHECK(cudaMalloc(&out, 2 * N_THREADS * sizeof *out));
  for (const Case& c : cases) {
    CHECK(cudaMemset(out, 0, 2 * N_THREADS * sizeof *out));
    const double seconds = seconds_of([&] { c.kernel<<<1, N_THREADS>>>(out, N_ROUNDS); });
    uint32_t first = 0;
    CHECK(cudaMemcpy(&first, out + 1, sizeof first, cudaMemcpyDeviceToHost));
    printf("# %s: %08x\n", c.name, first);
    printf("%s %.1f M/s\n", c.name, 1e-6 * c.n_instructions * N_ROUNDS * N_THREADS / seconds);
  }
}

constexpr int N = 512, TILE = 16;
__global__ void sgemm(const float* a, const float* b, float* c) {
  __shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE];
  const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < N; k += TILE) {
    a_tile[threadIdx.y][threadIdx.x] = a[row * N + k + threadIdx.x];
    b_tile[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * N + column];
    __syncthreads();
    for (int i = 0; i < TILE; ++i) sum += a_tile[threadIdx.y][i] * b_tile[i][threadIdx.x];
    __syncthreads();
  }
  c[row * N + column] = sum;
}

static void multiply() {
  std::vector<float> a(N * N), b(N * N), c(N * N);
  for (int i = 0; i < N * N; ++i) a[i] = (i * 7 % 23) * 0.125f, b[i] = (i * 5 % 19) * 0.25f;
  const size_t n_bytes = c.size() * sizeof(float);
  float* device;
  CHECK(cudaMalloc(&device, 3 * n_bytes));
  CHECK(cudaMemcpy(device, a.data(), n_bytes, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(device + N * N, b.data(), n_bytes, cudaMemcpyHostToDevice));
  const double seconds = seconds_of([&] {
    sgemm<<<dim3(N / TILE, N / TILE), dim3(TILE, TILE)>>>(device, device + N * N,
                                                          device + 2 * N * N);
  });
  CHECK(cudaMemcpy(c.data(), device + 2 * N * N, n_bytes, cudaMemcpyDeviceToHost));
  bool same = true;
  for (int row = 0; row < N; row += 37)
    for (int column = 0; column < N; ++column) {
      float sum = 0;
      for (int k = 0; k < N; ++k) sum = fmaf(a[row * N + k], b[k * N + column], sum);
      same = same && sum == c[row * N + column];
    }
  report("# sgemm", same, checksum(c.data(), n_bytes));
  printf("sgemm_512 %.3f s\n", seconds);
}

__global__ void add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

static void vector_add() {
  constexpr int LENGTH = 1'000'000;
  std::vector<float> host(3 * LENGTH);
  for (int i = 0; i < 2 * LENGTH; ++i) host[i] = i % 1021 * 0.5f;
  float* device;
  CHECK(cudaMalloc(&device, host.size() * sizeof(float)));
  CHECK(cudaMemcpy(device, host.data(), host.size() * sizeof(float), cudaMemcpyHostToDevice));
  const double seconds = seconds_of([&] {
    add<<<(LENGTH + 255) / 256, 256>>>(device, device + LENGTH, device + 2 * LENGTH, LENGTH);
  });
  CHECK(cudaMemcpy(host.data(), device, host.size() * sizeof(float), cudaMemcpyDeviceToHost));
  bool same = true;
  for (int i = 0; i < LENGTH; ++i)
    same = same && host[2 * LENGTH + i] == host[i] + host[LENGTH + i];
  report("# vector add", same, checksum(&host[2 * LENGTH], LENGTH * sizeof(float)));
  printf("vector_add_1000000 %.4f s\n", seconds);
}

int main(int argc, char** argv) {
  const char* what = argc == 2 ? argv[1] : "";
  if (strcmp(what, "lanes") == 0) {
    lanes();
  } else if (strcmp(what, "sgemm") == 0) {
    multiply();
  } else if (strcmp(what, "vector_add") == 0) {
    vector_add();
  } else {
    fprintf(stderr, "usage: speed lanes|sgemm|vector_add\n");
    return 2;
  }
  return all_passed() ? 0 : 1;
}
