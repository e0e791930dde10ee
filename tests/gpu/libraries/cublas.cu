// SPDX-License-Identifier: Apache-2.0
// cuBLAS and cuBLASLt: products of several types, batched, with an epilogue, with a workspace.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "library.h"

namespace {

constexpr int M = 96, N = 80, K = 64;

void plain_products(cublasHandle_t blas) {
  const auto a = numbers<float>(M * K, 1), b = numbers<float>(K * N, 2);
  const auto wanted = product(a, b, M, N, K);
  const Device<float> da(a), db(b), dc(M * N);
  const float one = 1, zero = 0;
  CALL(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &one, da.get(), M, db.get(), K, &zero,
                   dc.get(), M));
  expect_near("cublasSgemm", dc.read(), wanted, 1e-4);
  const Device<double> xa(std::vector<double>(a.begin(), a.end())),
      xb(std::vector<double>(b.begin(), b.end())), xc(M * N);
  const double done = 1, dzero = 0;
  CALL(cublasDgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &done, xa.get(), M, xb.get(), K, &dzero,
                   xc.get(), M));
  expect_near("cublasDgemm", xc.read(), wanted, 1e-12);
}

template <class T>
void short_product(cublasHandle_t blas, const char* name, cudaDataType type, double tolerance) {
  const auto a = numbers<float>(M * K, 3), b = numbers<float>(K * N, 4);
  std::vector<T> ta(a.begin(), a.end()), tb(b.begin(), b.end());
  std::vector<float> ra(ta.begin(), ta.end()), rb(tb.begin(), tb.end());
  const Device<T> da(ta), db(tb);
  const Device<float> dc(M * N);
  const float one = 1, zero = 0;
  CALL(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &one, da.get(), type, M, db.get(),
                    type, K, &zero, dc.get(), CUDA_R_32F, M, CUBLAS_COMPUTE_32F,
                    CUBLAS_GEMM_DEFAULT));
  expect_near(name, dc.read(), product(ra, rb, M, N, K), tolerance);
}

void batched_product(cublasHandle_t blas) {
  constexpr int COUNT = 16;
  const auto a = numbers<float>(M * K * COUNT, 5), b = numbers<float>(K * N * COUNT, 6);
  const Device<float> da(a), db(b), dc(static_cast<size_t>(M) * N * COUNT);
  const float one = 1, zero = 0;
  CALL(cublasSgemmStridedBatched(blas, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &one, da.get(), M, M * K,
                                 db.get(), K, K * N, &zero, dc.get(), M, M * N, COUNT));
  std::vector<double> wanted;
  for (int i = 0; i < COUNT; ++i) {
    const std::vector<float> one_a(a.begin() + i * M * K, a.begin() + (i + 1) * M * K),
        one_b(b.begin() + i * K * N, b.begin() + (i + 1) * K * N);
    const auto part = product(one_a, one_b, M, N, K);
    wanted.insert(wanted.end(), part.begin(), part.end());
  }
  expect_near("cublasSgemmStridedBatched", dc.read(), wanted, 1e-4);
}

void product_with_epilogue() {
  const auto a = numbers<float>(M * K, 7), b = numbers<float>(K * N, 8),
             bias = numbers<float>(M, 9);
  auto wanted = product(a, b, M, N, K);
  for (int j = 0; j < N; ++j)
    for (int i = 0; i < M; ++i) wanted[i + j * M] = std::max(0.0, wanted[i + j * M] + bias[i]);
  const Device<float> da(a), db(b), dbias(bias), dc(M * N);
  constexpr size_t WORKSPACE_BYTES = 4 << 20;
  const Device<char> workspace(WORKSPACE_BYTES);
  cublasLtHandle_t lt;
  cublasLtMatmulDesc_t operation;
  cublasLtMatrixLayout_t la, lb, lc;
  cublasLtMatmulPreference_t preference;
  CALL(cublasLtCreate(&lt));
  CALL(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_RELU_BIAS;
  float* const bias_pointer = dbias.get();
  CALL(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                      sizeof epilogue));
  CALL(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_pointer,
                                      sizeof bias_pointer));
  CALL(cublasLtMatrixLayoutCreate(&la, CUDA_R_32F, M, K, M));
  CALL(cublasLtMatrixLayoutCreate(&lb, CUDA_R_32F, K, N, K));
  CALL(cublasLtMatrixLayoutCreate(&lc, CUDA_R_32F, M, N, M));
  CALL(cublasLtMatmulPreferenceCreate(&preference));
  CALL(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &WORKSPACE_BYTES, sizeof WORKSPACE_BYTES));
  cublasLtMatmulHeuristicResult_t found;
  int n_found = 0;
  CALL(cublasLtMatmulAlgoGetHeuristic(lt, operation, la, lb, lc, lc, preference, 1, &found,
                                      &n_found));
  const float one = 1, zero = 0;
  CALL(cublasLtMatmul(lt, operation, &one, da.get(), la, db.get(), lb, &zero, dc.get(), lc,
                      dc.get(), lc, &found.algo, workspace.get(), WORKSPACE_BYTES, nullptr));
  expect_near("cublasLtMatmul, bias and ReLU", dc.read(), wanted, 1e-2);  // may use TF32
  CALL(cublasLtDestroy(lt));
}

}  // namespace

int main() {
  cublasHandle_t blas;
  CALL(cublasCreate(&blas));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  CALL(cublasSetStream(blas, stream));
  plain_products(blas);
  short_product<__half>(blas, "cublasGemmEx, half", CUDA_R_16F, 1e-3);
  short_product<__nv_bfloat16>(blas, "cublasGemmEx, bfloat16", CUDA_R_16BF, 1e-3);
  batched_product(blas);
  product_with_epilogue();
  CALL(cublasDestroy(blas));
  return finish("cublas");
}
