// SPDX-License-Identifier: Apache-2.0
// A plain CUDA program: vector add, tiled matrix product, reduction with atomics, two streams with
// events and pinned memory, a captured graph. All numbers are exactly representable, so every
// result is compared with the CPU's bit by bit.
#include <vector>

#include "check.h"

__global__ void add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

constexpr int TILE = 16;

__global__ void multiply(const float* a, const float* b, float* c, int n) {
  __shared__ float tile_a[TILE][TILE], tile_b[TILE][TILE];
  const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < n; k += TILE) {
    tile_a[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
    tile_b[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
    __syncthreads();
    for (int i = 0; i < TILE; ++i) sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}

__global__ void reduce(const unsigned* values, unsigned long long* sum, unsigned* max, int n) {
  __shared__ unsigned long long partial;
  if (threadIdx.x == 0) partial = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    atomicAdd(&partial, static_cast<unsigned long long>(values[i]));
    atomicMax(max, values[i]);
  }
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(sum, partial);
}

__global__ void scale(float* values, float factor, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] *= factor;
}

__global__ void increment(unsigned* values, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] += i;
}

static void vector_add() {
  constexpr int N = 1'000'000;
  std::vector<float> a(N), b(N), c(N);
  for (int i = 0; i < N; ++i) a[i] = i % 1024 * 0.5f, b[i] = i % 777 * 0.25f;
  float *da, *db, *dc;
  CHECK(cudaMalloc(&da, N * sizeof(float)));
  CHECK(cudaMalloc(&db, N * sizeof(float)));
  CHECK(cudaMalloc(&dc, N * sizeof(float)));
  CHECK(cudaMemcpy(da, a.data(), N * sizeof(float), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(db, b.data(), N * sizeof(float), cudaMemcpyHostToDevice));
  add<<<(N + 255) / 256, 256>>>(da, db, dc, N);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(c.data(), dc, N * sizeof(float), cudaMemcpyDeviceToHost));
  bool right = true;
  for (int i = 0; i < N; ++i) right = right && c[i] == a[i] + b[i];
  report("vector add", right, checksum(c.data(), N * sizeof(float)));
  CHECK(cudaFree(da));
  CHECK(cudaFree(db));
  CHECK(cudaFree(dc));
}

static void matrix_product() {
  constexpr int N = 256;
  std::vector<float> a(N * N), b(N * N), c(N * N);
  for (int i = 0; i < N * N; ++i)
    a[i] = static_cast<float>(i % 13 - 6), b[i] = static_cast<float>(i % 7 - 3);
  float *da, *db, *dc;
  const size_t n_bytes = N * N * sizeof(float);
  CHECK(cudaMalloc(&da, n_bytes));
  CHECK(cudaMalloc(&db, n_bytes));
  CHECK(cudaMalloc(&dc, n_bytes));
  CHECK(cudaMemcpy(da, a.data(), n_bytes, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(db, b.data(), n_bytes, cudaMemcpyHostToDevice));
  multiply<<<dim3(N / TILE, N / TILE), dim3(TILE, TILE)>>>(da, db, dc, N);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(c.data(), dc, n_bytes, cudaMemcpyDeviceToHost));
  bool right = true;
  for (int row = 0; row < N; ++row) {
    for (int column = 0; column < N; ++column) {
      float sum = 0;
      for (int k = 0; k < N; ++k) sum += a[row * N + k] * b[k * N + column];
      right = right && c[row * N + column] == sum;
    }
  }
  report("matrix product", right, checksum(c.data(), n_bytes));
  CHECK(cudaFree(da));
  CHECK(cudaFree(db));
  CHECK(cudaFree(dc));
}

static void reduction() {
  constexpr int N = 100'000;
  std::vector<unsigned> values(N);
  unsigned long long sum = 0, device_sum = 0;
  unsigned max = 0, device_max = 0;
  for (int i = 0; i < N; ++i) {
    values[i] = static_cast<unsigned>(i) * 2654435761u >> 8;
    sum += values[i];
    max = values[i] > max ? values[i] : max;
  }
  unsigned *dv, *dm;
  unsigned long long* ds;
  CHECK(cudaMalloc(&dv, N * sizeof(unsigned)));
  CHECK(cudaMalloc(&dm, sizeof(unsigned)));
  CHECK(cudaMalloc(&ds, sizeof(unsigned long long)));
  CHECK(cudaMemset(dm, 0, sizeof(unsigned)));
  CHECK(cudaMemset(ds, 0, sizeof(unsigned long long)));
  CHECK(cudaMemcpy(dv, values.data(), N * sizeof(unsigned), cudaMemcpyHostToDevice));
  reduce<<<32, 128>>>(dv, ds, dm, N);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(&device_sum, ds, sizeof device_sum, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(&device_max, dm, sizeof device_max, cudaMemcpyDeviceToHost));
  report("reduction with atomics", device_sum == sum && device_max == max, device_sum ^ device_max);
  CHECK(cudaFree(dv));
  CHECK(cudaFree(dm));
  CHECK(cudaFree(ds));
}

static void two_streams() {
  constexpr int N = 1 << 18;
  constexpr size_t N_BYTES = N * sizeof(float);
  float *in, *out, *device;
  CHECK(cudaMallocHost(&in, N_BYTES));
  CHECK(cudaMallocHost(&out, N_BYTES));
  CHECK(cudaMalloc(&device, N_BYTES));
  for (int i = 0; i < N; ++i) in[i] = static_cast<float>(i % 4096), out[i] = -1;
  cudaStream_t first, second;
  cudaEvent_t start, computed, end;
  CHECK(cudaStreamCreate(&first));
  CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&computed));
  CHECK(cudaEventCreate(&end));
  CHECK(cudaEventRecord(start, first));
  CHECK(cudaMemcpyAsync(device, in, N_BYTES, cudaMemcpyHostToDevice, first));
  scale<<<N / 256, 256, 0, first>>>(device, 2.0f, N);
  scale<<<N / 256, 256, 0, first>>>(device, 1.5f, N);
  CHECK(cudaGetLastError());
  CHECK(cudaEventRecord(computed, first));
  CHECK(cudaStreamWaitEvent(second, computed, 0));
  CHECK(cudaMemcpyAsync(out, device, N_BYTES, cudaMemcpyDeviceToHost, second));
  CHECK(cudaEventRecord(end, second));
  CHECK(cudaEventSynchronize(end));
  bool right = true;
  for (int i = 0; i < N; ++i) right = right && out[i] == in[i] * 3.0f;
  report("two streams", right, checksum(out, N_BYTES));
  float whole_ms = -1, part_ms = -1;
  CHECK(cudaEventElapsedTime(&whole_ms, start, end));
  CHECK(cudaEventElapsedTime(&part_ms, start, computed));
  report("event times", part_ms > 0 && whole_ms >= part_ms && whole_ms < 60'000);
  CHECK(cudaEventQuery(computed));
  CHECK(cudaEventDestroy(start));
  CHECK(cudaEventDestroy(computed));
  CHECK(cudaEventDestroy(end));
  CHECK(cudaStreamDestroy(first));
  CHECK(cudaStreamDestroy(second));
  CHECK(cudaFree(device));
  CHECK(cudaFreeHost(in));
  CHECK(cudaFreeHost(out));
}

static void captured_graph() {
  constexpr int N = 4096;
  constexpr unsigned LAUNCHES = 100;
  unsigned* device;
  CHECK(cudaMalloc(&device, N * sizeof(unsigned)));
  CHECK(cudaMemset(device, 0, N * sizeof(unsigned)));
  CHECK(cudaDeviceSynchronize());
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  increment<<<N / 256, 256, 0, stream>>>(device, N);
  increment<<<N / 256, 256, 0, stream>>>(device, N);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (unsigned i = 0; i < LAUNCHES; ++i) CHECK(cudaGraphLaunch(exec, stream));
  CHECK(cudaStreamSynchronize(stream));
  std::vector<unsigned> values(N);
  CHECK(cudaMemcpy(values.data(), device, N * sizeof(unsigned), cudaMemcpyDeviceToHost));
  bool right = true;
  for (unsigned i = 0; i < N; ++i) right = right && values[i] == 2 * LAUNCHES * i;
  report("captured graph, 100 launches", right, checksum(values.data(), N * sizeof(unsigned)));
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(device));
}

int main() {
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  printf("# device: %s\n", properties.name);
  vector_add();
  matrix_product();
  reduction();
  two_streams();
  captured_graph();
  return finish("demo");
}
