// SPDX-License-Identifier: Apache-2.0
// What threads do together and how code flows: warps, blocks, grids, atomics, calls, tables.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "results.h"

namespace cg = cooperative_groups;

constexpr int N_THREADS = 128, N_BLOCKS = 8, N = N_THREADS * N_BLOCKS;
constexpr int N_WORDS = 12;  // results per thread
constexpr unsigned ALL = 0xffffffff;

/// Where a thread puts its results, one after the other.
struct Results {
  unsigned* to;
  __device__ explicit Results(unsigned* all)
      : to(all + (blockIdx.x * blockDim.x + threadIdx.x) * N_WORDS) {}
  __device__ void operator<<(unsigned word) { *to++ = word; }
};

__device__ unsigned mixed(unsigned x) {
  x = (x ^ x >> 16) * 0x7feb352d;
  x = (x ^ x >> 15) * 0x846ca68b;
  return x ^ x >> 16;
}

__device__ unsigned number() { return mixed(blockIdx.x * blockDim.x + threadIdx.x); }

__global__ void shuffles(unsigned* to) {
  Results out(to);
  const unsigned x = number();
  out << __shfl_sync(ALL, x, x & 63);
  out << __shfl_sync(ALL, x, x & 7, 8);
  out << __shfl_up_sync(ALL, x, 3);
  out << __shfl_up_sync(ALL, x, 5, 16);
  out << __shfl_down_sync(ALL, x, 7);
  out << __shfl_down_sync(ALL, x, 1, 4);
  out << __shfl_xor_sync(ALL, x, 17);
  out << __shfl_xor_sync(ALL, x, 9, 8);
  const double wide = __shfl_sync(ALL, x * 1.5, 31 - threadIdx.x % 32);
  out << __double2hiint(wide);
  if (threadIdx.x % 32 < 20) out << __shfl_xor_sync(0xfffff, x, 2);
}

__global__ void votes(unsigned* to) {
  Results out(to);
  const unsigned x = number();
  out << __ballot_sync(ALL, x & 1);
  out << __any_sync(ALL, x % 40 == 0);
  out << __all_sync(ALL, x % 40 != 0);
  out << __match_any_sync(ALL, x % 5);
  out << __match_any_sync(ALL, uint64_t{x % 3} << 40);
  int same;
  out << __match_all_sync(ALL, blockIdx.x, &same);
  out << same;
  out << __match_all_sync(ALL, x & 1, &same);
  out << __reduce_add_sync(ALL, x);
  out << __reduce_min_sync(ALL, static_cast<int>(x));
  out << __reduce_max_sync(ALL, x);
  out << (__reduce_and_sync(ALL, x | 0xff) ^ __reduce_or_sync(ALL, x & 0xffff) ^
          __reduce_xor_sync(ALL, x));
}

__global__ void divergence(unsigned* to) {
  Results out(to);
  const unsigned x = number();
  unsigned n = 0;
  for (unsigned i = 0; i < x % 17; ++i) n += i * x;  // a trip count per thread
  out << n;
  switch (x % 9) {
    case 0:
      n = 5;
      break;
    case 1:
      n ^= x;
      [[fallthrough]];
    case 2:
      n += 3;
      break;
    case 3:
      n = __popc(n);
      break;
    case 4:
      n <<= 3;
      break;
    case 5:
      n = ~n;
      break;
    case 6:
      n -= 100;
      break;
    default:
      n *= 7;
  }
  out << n;
  __syncwarp();
  out << __activemask();
  if (x & 1) {
    __syncwarp(__ballot_sync(__activemask(), true));
    if (x & 2) n += 1000;
  } else {
    do n = mixed(n);
    while (n & 3);
  }
  out << n;
  if (x % 3 == 0) return;
  out << (n | 1);
}

__global__ void barriers(unsigned* to) {
  Results out(to);
  __shared__ unsigned cells[N_THREADS];
  const unsigned x = number(), i = threadIdx.x;
  cells[i] = x;
  __syncthreads();
  for (unsigned step = 1; step < N_THREADS; step *= 2) {  // prefix sums
    const unsigned before = i >= step ? cells[i - step] : 0;
    __syncthreads();
    cells[i] += before;
    __syncthreads();
  }
  out << cells[i];
  out << cells[N_THREADS - 1 - i];
  out << __syncthreads_count(x & 1);
  out << __syncthreads_and(x != 0);
  out << __syncthreads_or(x == 1);
}

__global__ void groups(unsigned* to) {
  Results out(to);
  const unsigned x = number();
  const cg::thread_block block = cg::this_thread_block();
  const auto warp = cg::tiled_partition<32>(block);
  const auto tile = cg::tiled_partition<8>(block);
  out << cg::reduce(warp, x, cg::plus<unsigned>());
  out << cg::reduce(tile, x, cg::greater<unsigned>());
  out << cg::reduce(tile, x, cg::bit_xor<unsigned>());
  out << cg::inclusive_scan(warp, x, cg::plus<unsigned>());
  out << cg::exclusive_scan(tile, x & 0xff, cg::plus<unsigned>());
  out << tile.shfl(x, 3) + tile.meta_group_rank() * 10 + block.thread_rank();
  out << tile.ballot(x & 1);
  if (x % 3) {
    const auto active = cg::coalesced_threads();
    out << active.size() * 100 + active.thread_rank();
    out << active.shfl(x, 0);
    const auto labelled = cg::labeled_partition(active, x % 4);
    out << cg::reduce(labelled, 1u, cg::plus<unsigned>());
  }
  block.sync();
}

__global__ void of_grid(unsigned* to, unsigned* cells) {
  Results out(to);
  const cg::grid_group grid = cg::this_grid();
  const unsigned i = grid.thread_rank();
  cells[i] = number();
  for (int round = 0; round < 5; ++round) {
    grid.sync();
    const unsigned other = cells[(i * 7 + round) % N];
    grid.sync();
    cells[i] = mixed(cells[i] + other);
  }
  out << cells[i];
  out << static_cast<unsigned>(grid.size());
}

// Whatever the order is, the sums are the same: all terms and partial sums are exact.
struct Totals {
  unsigned add, sub, max, and_, or_, xor_, inc, dec, umin, n_cas;
  int min, no_padding;
  unsigned long long add64, max64, xor64;
  float add_f32, tiny_f32;
  double add_f64, tiny_f64;
  __half2 add_f16;
  __nv_bfloat162 add_bf16;
};
__global__ void atomics(Totals* t) {
  __shared__ unsigned shared_sum;
  if (threadIdx.x == 0) shared_sum = 0;
  __syncthreads();
  const unsigned x = number();
  atomicAdd(&shared_sum, x);
  atomicSub(&t->sub, x);
  atomicMax(&t->max, x);
  atomicMin(&t->min, static_cast<int>(x));
  atomicMin(&t->umin, x);
  atomicAnd(&t->and_, x | 0xf0);
  atomicOr(&t->or_, x & 0x0f0f);
  atomicXor(&t->xor_, x);
  atomicInc(&t->inc, 100);
  atomicDec(&t->dec, 77);
  atomicAdd(&t->add64, uint64_t{x} << 20);
  atomicMax(&t->max64, uint64_t{x} << 30);
  atomicXor(&t->xor64, uint64_t{x} << 31);
  atomicAdd(&t->add_f32, static_cast<float>(x % 1000) * 0.25f);
  atomicAdd(&t->tiny_f32, __uint_as_float(x % 100));  // subnormal numbers
  atomicAdd(&t->add_f64, static_cast<double>(x) * 0.125);
  atomicAdd(&t->tiny_f64, __longlong_as_double(x));
  atomicAdd(&t->add_f16, __floats2half2_rn(x & 1, 0.5f));
  atomicAdd(&t->add_bf16, __floats2bfloat162_rn(x % 64 == 0, 0.0625f));
  for (unsigned old = t->n_cas, seen;; old = seen)
    if ((seen = atomicCAS(&t->n_cas, old, old + x)) == old) break;
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(&t->add, shared_sum);
}

// What an atomic operation of one thread makes of numbers that are special.
__global__ void atomic_specials(float* f, double* d) {
  const float values[] = {0.0f,     -0.0f,     1e-45f,   -1e-45f, 1e-40f,
                          INFINITY, -INFINITY, nanf(""), 3.4e38f, -3.4e38f};
  const unsigned i = threadIdx.x;
  if (i >= 100) return;
  f[i] = values[i % 10];
  atomicAdd(&f[i], values[i / 10]);
  __shared__ float shared[100];
  shared[i] = values[i % 10];
  atomicAdd(&shared[i], values[i / 10]);
  f[100 + i] = shared[i];
  d[i] = i % 2 ? 4.9e-324 * i : -4.9e-324 * i;
  atomicAdd(&d[i], 4.9e-324 * 3);
}

__device__ __noinline__ unsigned ackermann(unsigned m, unsigned n) {
  if (m == 0) return n + 1;
  return n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}

struct Shape {
  unsigned side;
  __device__ explicit Shape(unsigned n) : side(n) {}
  __device__ virtual unsigned area() const = 0;
  __device__ virtual unsigned corners() const { return 0; }
};
struct Square : Shape {
  using Shape::Shape;
  __device__ unsigned area() const override { return side * side; }
  __device__ unsigned corners() const override { return 4; }
};
struct Circle : Shape {
  using Shape::Shape;
  __device__ unsigned area() const override { return side * side * 355 / 113; }
};

using Function = unsigned (*)(unsigned);
__device__ __noinline__ unsigned twice(unsigned x) { return 2 * x; }
__device__ __noinline__ unsigned squared(unsigned x) { return x * x; }
__device__ __noinline__ unsigned reversed(unsigned x) { return __brev(x); }
__device__ Function functions[] = {twice, squared, reversed, mixed};
__constant__ unsigned weights[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};

__global__ void calls(unsigned* to) {
  Results out(to);
  const unsigned x = number();
  out << ackermann(2, x % 6);
  out << functions[x % 4](x);
  const Square square(x % 1000);
  const Circle circle(x % 999);
  const Shape* shape = x & 1 ? static_cast<const Shape*>(&square) : &circle;
  out << shape->area();
  out << shape->corners();
  unsigned local[24];  // of which the index is known at run time only
  for (unsigned i = 0; i < 24; ++i) local[i] = weights[(i + x) % 16] * i;
  for (unsigned i = 1; i < 24; ++i)  // insertion sort
    for (unsigned k = i; k > 0 && local[k - 1] > local[k]; --k) {
      const unsigned t = local[k];
      local[k] = local[k - 1], local[k - 1] = t;
    }
  out << local[x % 24];
  out << local[12];
  const auto bytes = reinterpret_cast<const unsigned char*>(local);
  out << bytes[x % 96] * 256 + reinterpret_cast<const unsigned short*>(local)[x % 48];
}

constexpr int SIDE = 64, TILE = 16;
__global__ void product(const float* a, const float* b, float* c) {
  __shared__ float of_a[TILE][TILE], of_b[TILE][TILE];
  const unsigned row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < SIDE; k += TILE) {
    of_a[threadIdx.y][threadIdx.x] = a[row * SIDE + k + threadIdx.x];
    of_b[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * SIDE + column];
    __syncthreads();
    for (int i = 0; i < TILE; ++i) sum = fmaf(of_a[threadIdx.y][i], of_b[i][threadIdx.x], sum);
    __syncthreads();
  }
  c[row * SIDE + column] = sum;
}

__global__ void say(const double* values) {
  const double x = values[0];
  printf("%d %5d|%-5d|%05d %+d %u %x %X %#o %lld %llu %hd\n", -7, 42, 42, 42, 42, 4000000000u,
         0xbeef, 0xbeef, 8, -5000000000ll, 10000000000000000000ull, 99);
  printf("%f %.3f %10.2f|%-10.2f|%e %.2E %g %G %a\n", x, x, x, x, x, x, x * 1e-10, x * 1e20, x);
  printf("%f %f %f %s %10s|%-4s|%.2s %c%c %% %*d\n", values[1], values[2], -values[1], "text", "ab",
         "cd", "xyz", 'k', 'v', 6, 12);
}

static void run_words(const char* name, void (*kernel)(unsigned*)) {
  unsigned* to = on_device(std::vector<unsigned>(N * N_WORDS));
  kernel<<<N_BLOCKS, N_THREADS>>>(to);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  print_checksum(name, taken_back(to, N * N_WORDS));
}

static void run_grid() {
  unsigned* to = on_device(std::vector<unsigned>(N * N_WORDS));
  unsigned* cells = on_device(std::vector<unsigned>(N));
  void* arguments[] = {&to, &cells};
  CHECK(cudaLaunchCooperativeKernel(of_grid, N_BLOCKS, N_THREADS, arguments));
  CHECK(cudaDeviceSynchronize());
  print_checksum("grid", taken_back(to, N * N_WORDS));
  CHECK(cudaFree(cells));
}

static void run_atomics() {
  Totals totals;
  memset(&totals, 0, sizeof totals);
  totals.and_ = totals.umin = ALL;
  Totals* to = on_device(std::vector<Totals>{totals});
  atomics<<<N_BLOCKS, N_THREADS>>>(to);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  print_checksum("atomics", taken_back(to, 1));
  float* f = on_device(std::vector<float>(200));
  double* d = on_device(std::vector<double>(100));
  atomic_specials<<<1, N_THREADS>>>(f, d);
  CHECK(cudaGetLastError());
  print_checksum("atomics on special f32", taken_back(f, 200));
  print_checksum("atomics on special f64", taken_back(d, 100));
}

static void run_product() {
  std::vector<float> a(SIDE * SIDE), b(SIDE * SIDE);
  for (int i = 0; i < SIDE * SIDE; ++i) {
    a[i] = static_cast<float>(scrambled(i) >> 40) * 0x1p-20f - 8;
    b[i] = static_cast<float>(scrambled(i + 99999) >> 40) * 0x1p-20f - 8;
  }
  float *da = on_device(a), *db = on_device(b), *dc = on_device(a);
  product<<<dim3(SIDE / TILE, SIDE / TILE), dim3(TILE, TILE)>>>(da, db, dc);
  CHECK(cudaGetLastError());
  print_checksum("matrix product", taken_back(dc, a.size()));
  CHECK(cudaFree(da));
  CHECK(cudaFree(db));
}

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  run_words("shuffles", shuffles);
  run_words("votes", votes);
  run_words("divergence", divergence);
  run_words("barriers", barriers);
  run_words("groups", groups);
  run_grid();
  run_atomics();
  CHECK(cudaDeviceSetLimit(cudaLimitStackSize, 16384));
  run_words("calls", calls);
  run_product();
  double* values = on_device(std::vector<double>{3.14159265358979, INFINITY, NAN});
  say<<<1, 1>>>(values);
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaFree(values));
  return finish("threads");
}
