// SPDX-License-Identifier: Apache-2.0
// cuSOLVER, dense: a system of equations, eigenvalues, singular values.
#include <cusolverDn.h>

#include <algorithm>

#include "library.h"

namespace {

constexpr int N = 120;

std::vector<double> symmetric() {
  const auto random = numbers<double>(N * N);
  std::vector<double> a(N * N);
  for (int i = 0; i < N; ++i)
    for (int j = 0; j < N; ++j)
      a[i + j * N] = random[i + j * N] + random[j + i * N] + (i == j ? 2.0 * N : 0);
  return a;
}

void solve(cusolverDnHandle_t solver) {
  const auto a = symmetric(), x = numbers<double>(N, 2);
  const Device<double> da(a), db(product(a, x, N, 1, N));
  const Device<int> pivots(N), info(1);
  int n_workspace = 0;
  CALL(cusolverDnDgetrf_bufferSize(solver, N, N, da.get(), N, &n_workspace));
  const Device<double> workspace(n_workspace);
  CALL(cusolverDnDgetrf(solver, N, N, da.get(), N, workspace.get(), pivots.get(), info.get()));
  report("cusolverDnDgetrf", info.read()[0] == 0);
  CALL(cusolverDnDgetrs(solver, CUBLAS_OP_N, N, 1, da.get(), N, pivots.get(), db.get(), N,
                        info.get()));
  expect_near("cusolverDnDgetrs", db.read(), x, 1e-10);
}

void eigenvalues(cusolverDnHandle_t solver) {
  const auto a = symmetric();
  const Device<double> da(a), values(N);
  const Device<int> info(1);
  int n_workspace = 0;
  CALL(cusolverDnDsyevd_bufferSize(solver, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, N,
                                   da.get(), N, values.get(), &n_workspace));
  const Device<double> workspace(n_workspace);
  CALL(cusolverDnDsyevd(solver, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, N, da.get(), N,
                        values.get(), workspace.get(), n_workspace, info.get()));
  const auto found = values.read();
  const auto vectors = da.read();
  const std::vector<double> last(vectors.end() - N, vectors.end());
  auto scaled = last;
  for (double& value : scaled) value *= found.back();
  expect_near("cusolverDnDsyevd", product(a, last, N, 1, N), scaled, 1e-9);
  double trace = 0, total = 0;
  for (int i = 0; i < N; ++i) trace += a[i + i * N];
  for (const double value : found) total += value;
  expect_near("cusolverDnDsyevd, trace", std::vector<double>{total}, std::vector<double>{trace},
              1e-8);
}

void singular_values(cusolverDnHandle_t solver) {
  const auto a = numbers<float>(N * N, 3);
  const Device<float> da(a), values(N);
  const Device<int> info(1);
  int n_workspace = 0;
  CALL(cusolverDnSgesvd_bufferSize(solver, N, N, &n_workspace));
  const Device<float> workspace(n_workspace);
  CALL(cusolverDnSgesvd(solver, 'N', 'N', N, N, da.get(), N, values.get(), nullptr, N, nullptr, N,
                        workspace.get(), n_workspace, nullptr, info.get()));
  double squares = 0, found = 0;
  for (const float value : a) squares += static_cast<double>(value) * value;
  for (const float value : values.read()) found += static_cast<double>(value) * value;
  expect_near("cusolverDnSgesvd", std::vector<double>{found / squares}, std::vector<double>{1},
              1e-5);
}

}  // namespace

int main() {
  cusolverDnHandle_t solver;
  CALL(cusolverDnCreate(&solver));
  solve(solver);
  eigenvalues(solver);
  singular_values(solver);
  CALL(cusolverDnDestroy(solver));
  return finish("cusolver");
}
