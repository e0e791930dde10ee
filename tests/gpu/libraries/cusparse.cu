// SPDX-License-Identifier: Apache-2.0
// cuSPARSE: a CSR matrix times a vector and times a matrix, a triangular system.
#include <cusparse.h>

#include "library.h"

namespace {

constexpr int N = 500, COLUMNS = 12;

struct Csr {
  std::vector<int> offsets{0}, columns;
  std::vector<double> values;
  std::vector<double> dense = std::vector<double>(static_cast<size_t>(N) * N);  // column-major
};

/// Lower triangular with a strong diagonal, few entries elsewhere.
Csr matrix() {
  Csr made;
  const auto random = numbers<double>(N * N);
  for (int row = 0; row < N; ++row) {
    for (int column = 0; column <= row; ++column) {
      const double value = row == column ? 4 : random[row * N + column];
      if (row != column && std::fabs(value) > 0.02) continue;
      made.columns.push_back(column);
      made.values.push_back(value);
      made.dense[row + static_cast<size_t>(column) * N] = value;
    }
    made.offsets.push_back(static_cast<int>(made.columns.size()));
  }
  return made;
}

}  // namespace

int main() {
  cusparseHandle_t sparse;
  CALL(cusparseCreate(&sparse));
  const Csr a = matrix();
  const auto x = numbers<double>(N * COLUMNS, 2);
  const Device<int> offsets(a.offsets), columns(a.columns);
  const Device<double> values(a.values), dx(x), dy(N * COLUMNS);
  cusparseSpMatDescr_t matrix_a;
  cusparseDnVecDescr_t vector_x, vector_y;
  cusparseDnMatDescr_t matrix_x, matrix_y;
  CALL(cusparseCreateCsr(&matrix_a, N, N, static_cast<int64_t>(a.values.size()), offsets.get(),
                         columns.get(), values.get(), CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I,
                         CUSPARSE_INDEX_BASE_ZERO, CUDA_R_64F));
  CALL(cusparseCreateDnVec(&vector_x, N, dx.get(), CUDA_R_64F));
  CALL(cusparseCreateDnVec(&vector_y, N, dy.get(), CUDA_R_64F));
  CALL(cusparseCreateDnMat(&matrix_x, N, COLUMNS, N, dx.get(), CUDA_R_64F, CUSPARSE_ORDER_COL));
  CALL(cusparseCreateDnMat(&matrix_y, N, COLUMNS, N, dy.get(), CUDA_R_64F, CUSPARSE_ORDER_COL));
  const double one = 1, zero = 0;
  const auto no = CUSPARSE_OPERATION_NON_TRANSPOSE;
  size_t n_bytes = 0;
  CALL(cusparseSpMM_bufferSize(sparse, no, no, &one, matrix_a, matrix_x, &zero, matrix_y,
                               CUDA_R_64F, CUSPARSE_SPMM_ALG_DEFAULT, &n_bytes));
  const Device<char> buffer(n_bytes + 1);
  CALL(cusparseSpMM(sparse, no, no, &one, matrix_a, matrix_x, &zero, matrix_y, CUDA_R_64F,
                    CUSPARSE_SPMM_ALG_DEFAULT, buffer.get()));
  expect_near("cusparseSpMM", dy.read(), product(a.dense, x, N, COLUMNS, N), 1e-12);
  CALL(cusparseSpMV_bufferSize(sparse, no, &one, matrix_a, vector_x, &zero, vector_y, CUDA_R_64F,
                               CUSPARSE_SPMV_ALG_DEFAULT, &n_bytes));
  const Device<char> vector_buffer(n_bytes + 1);
  CALL(cusparseSpMV(sparse, no, &one, matrix_a, vector_x, &zero, vector_y, CUDA_R_64F,
                    CUSPARSE_SPMV_ALG_DEFAULT, vector_buffer.get()));
  auto y = dy.read();
  y.resize(N);
  expect_near("cusparseSpMV", y, product(a.dense, x, N, 1, N), 1e-12);

  cusparseFillMode_t lower = CUSPARSE_FILL_MODE_LOWER;
  CALL(cusparseSpMatSetAttribute(matrix_a, CUSPARSE_SPMAT_FILL_MODE, &lower, sizeof lower));
  cusparseSpSVDescr_t system;
  CALL(cusparseSpSV_createDescr(&system));
  const Device<double> solution(N);
  cusparseDnVecDescr_t vector_s;
  CALL(cusparseCreateDnVec(&vector_s, N, solution.get(), CUDA_R_64F));
  CALL(cusparseSpSV_bufferSize(sparse, no, &one, matrix_a, vector_y, vector_s, CUDA_R_64F,
                               CUSPARSE_SPSV_ALG_DEFAULT, system, &n_bytes));
  const Device<char> system_buffer(n_bytes + 1);
  CALL(cusparseSpSV_analysis(sparse, no, &one, matrix_a, vector_y, vector_s, CUDA_R_64F,
                             CUSPARSE_SPSV_ALG_DEFAULT, system, system_buffer.get()));
  CALL(cusparseSpSV_solve(sparse, no, &one, matrix_a, vector_y, vector_s, CUDA_R_64F,
                          CUSPARSE_SPSV_ALG_DEFAULT, system));
  expect_near("cusparseSpSV", solution.read(), std::vector<double>(x.begin(), x.begin() + N),
              1e-12);
  CALL(cusparseSpSV_destroyDescr(system));
  CALL(cusparseDestroy(sparse));
  return finish("cusparse");
}
