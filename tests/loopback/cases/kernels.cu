// SPDX-License-Identifier: Apache-2.0
// What the cases launch.

extern "C" __global__ void add_one(int* data, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] += 1;
}

extern "C" __global__ void copy_int(const int* from, int* to) { *to = *from; }

// Waits until the host opens the gate: a stream that is busy for as long as a case likes.
extern "C" __global__ void wait_for_gate(const volatile int* gate) {
  while (*gate == 0) {
  }
}

struct Mixed {
  char a;
  double b;
  short c;
};

extern "C" __global__ void mixed_params(char first, double second, Mixed third, int* out) {
  out[0] = first;
  out[1] = static_cast<int>(second);
  out[2] = third.a;
  out[3] = static_cast<int>(third.b);
  out[4] = third.c;
}

extern "C" __global__ void write_to(int* address) { *address = 1; }

struct Many {
  int values[4000];
};

extern "C" __global__ void many_params(const Many many, int* out) {
  int sum = 0;
  for (int i = 0; i < 3999; ++i) sum += many.values[i];
  out[0] = sum;
  out[1] = many.values[3999];
}

__device__ int counter = 7;

extern "C" __global__ void read_counter(int* out) { *out = counter; }

// What it leaves tells in which order such launches ran.
extern "C" __global__ void mix(unsigned* to, const unsigned* from) { *to = *to * 31 + *from; }

extern "C" __global__ void take_time(unsigned us) {
  unsigned long long begun, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begun < 1000ull * us);
}

// How much shared memory the launch asked for, and how often it came.
extern "C" __global__ void shared_bytes(int* out) {
  asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(out[0]));
  ++out[1];
}
