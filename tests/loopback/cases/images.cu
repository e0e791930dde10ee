// SPDX-License-Identifier: Apache-2.0
// What the cases with textures and surfaces launch. Each texture kernel reads one place per thread.

#define THREAD (blockIdx.x * blockDim.x + threadIdx.x)

extern "C" __global__ void at_1d(cudaTextureObject_t t, const float4* at, float4* out) {
  out[THREAD] = tex1D<float4>(t, at[THREAD].x);
}
extern "C" __global__ void at_2d(cudaTextureObject_t t, const float4* at, float4* out) {
  out[THREAD] = tex2D<float4>(t, at[THREAD].x, at[THREAD].y);
}
extern "C" __global__ void at_2d_integers(cudaTextureObject_t t, const float4* at, uint4* out) {
  out[THREAD] = tex2D<uint4>(t, at[THREAD].x, at[THREAD].y);
}
extern "C" __global__ void at_3d(cudaTextureObject_t t, const float4* at, float4* out) {
  out[THREAD] = tex3D<float4>(t, at[THREAD].x, at[THREAD].y, at[THREAD].z);
}
// The layer is in w.
extern "C" __global__ void in_layer_1d(cudaTextureObject_t t, const float4* at, float4* out) {
  out[THREAD] = tex1DLayered<float4>(t, at[THREAD].x, static_cast<int>(at[THREAD].w));
}
extern "C" __global__ void in_layer_2d(cudaTextureObject_t t, const float4* at, float4* out) {
  const float4 p = at[THREAD];
  out[THREAD] = tex2DLayered<float4>(t, p.x, p.y, static_cast<int>(p.w));
}
extern "C" __global__ void on_cube(cudaTextureObject_t t, const float4* at, float4* out) {
  out[THREAD] = texCubemap<float4>(t, at[THREAD].x, at[THREAD].y, at[THREAD].z);
}
extern "C" __global__ void on_cubes(cudaTextureObject_t t, const float4* at, float4* out) {
  const float4 p = at[THREAD];
  out[THREAD] = texCubemapLayered<float4>(t, p.x, p.y, p.z, static_cast<int>(p.w));
}
// The level is in w.
extern "C" __global__ void at_level(cudaTextureObject_t t, const float4* at, float4* out) {
  out[THREAD] = tex2DLod<float4>(t, at[THREAD].x, at[THREAD].y, at[THREAD].w);
}
// Both gradients: z along x, w along y.
extern "C" __global__ void by_gradient(cudaTextureObject_t t, const float4* at, float4* out) {
  const float4 p = at[THREAD];
  out[THREAD] = tex2DGrad<float4>(t, p.x, p.y, make_float2(p.z, 0), make_float2(0, p.w));
}
// The first gradient is w along z, the other none.
extern "C" __global__ void on_cube_by_gradient(cudaTextureObject_t t, const float4* at,
                                               float4* out) {
  const float4 p = at[THREAD];
  const float4 step = make_float4(0, 0, p.w, 0), none = make_float4(0, 0, 0, 0);
  out[THREAD] = texCubemapGrad<float4>(t, p.x, p.y, p.z, step, none);
}
extern "C" __global__ void gather_green(cudaTextureObject_t t, const float4* at, float4* out) {
  out[THREAD] = tex2Dgather<float4>(t, at[THREAD].x, at[THREAD].y, 1);
}
extern "C" __global__ void fetch_floats(cudaTextureObject_t t, const int* at, float* out) {
  out[THREAD] = tex1Dfetch<float>(t, at[THREAD]);
}
extern "C" __global__ void fetch_bytes(cudaTextureObject_t t, const int* at, unsigned char* out) {
  out[THREAD] = tex1Dfetch<unsigned char>(t, at[THREAD]);
}

// One thread per element of a block as large as the surface: adds 1 to what it finds.
extern "C" __global__ void step_1d(cudaSurfaceObject_t s) {
  const int x = threadIdx.x * 4;
  surf1Dwrite(surf1Dread<int>(s, x) + 1, s, x);
}
extern "C" __global__ void step_2d(cudaSurfaceObject_t s) {
  const int x = threadIdx.x * 8;
  int2 value = surf2Dread<int2>(s, x, threadIdx.y);
  value.x += 1;
  value.y += 2;
  surf2Dwrite(value, s, x, threadIdx.y);
}
extern "C" __global__ void step_3d(cudaSurfaceObject_t s) {
  const int x = threadIdx.x * 2;
  const short value = surf3Dread<short>(s, x, threadIdx.y, threadIdx.z);
  surf3Dwrite(static_cast<short>(value + 1), s, x, threadIdx.y, threadIdx.z);
}
extern "C" __global__ void step_layers(cudaSurfaceObject_t s) {
  const uint4 value = surf2DLayeredread<uint4>(s, threadIdx.x * 16, threadIdx.y, threadIdx.z);
  surf2DLayeredwrite(make_uint4(value.x + 1, value.y + 2, value.z + 3, value.w + 4), s,
                     threadIdx.x * 16, threadIdx.y, threadIdx.z);
}
extern "C" __global__ void step_faces(cudaSurfaceObject_t s) {
  const int x = threadIdx.x;
  const unsigned char value = surfCubemapread<unsigned char>(s, x, threadIdx.y, threadIdx.z);
  surfCubemapwrite(static_cast<unsigned char>(value + 1), s, x, threadIdx.y, threadIdx.z);
}

// Reads and writes at x and y, which may be outside.
extern "C" __global__ void at_edge(cudaSurfaceObject_t s, int x, int y, int* out) {
  out[0] = surf2Dread<int>(s, x * 4, y, cudaBoundaryModeClamp);
  out[1] = surf2Dread<int>(s, x * 4, y, cudaBoundaryModeZero);
  surf2Dwrite(1000, s, x * 4, y, cudaBoundaryModeZero);
}
extern "C" __global__ void clamped_write(cudaSurfaceObject_t s, int x, int y, int value) {
  surf2Dwrite(value, s, x * 4, y, cudaBoundaryModeClamp);
}
extern "C" __global__ void trapping_read(cudaSurfaceObject_t s, int x, int* out) {
  out[0] = surf2Dread<int>(s, x * 4, 0, cudaBoundaryModeTrap);
}
