// SPDX-License-Identifier: Apache-2.0
// cuFFT: forth and back, a known spectrum, real and complex, one and two dimensions, batched.
#include <cufft.h>

#include "library.h"

namespace {

constexpr int N = 1000, ROWS = 48, COLUMNS = 60, BATCH = 7;
constexpr double TURN = 6.283185307179586;

void one_frequency() {
  std::vector<cufftDoubleComplex> wave(N);
  for (int i = 0; i < N; ++i) wave[i] = {cos(TURN * 5 * i / N), sin(TURN * 5 * i / N)};
  const Device<cufftDoubleComplex> data(wave);
  cufftHandle plan;
  CALL(cufftPlan1d(&plan, N, CUFFT_Z2Z, 1));
  CALL(cufftExecZ2Z(plan, data.get(), data.get(), CUFFT_FORWARD));
  std::vector<double> got, wanted(N);
  wanted[5] = N;
  for (const auto& value : data.read()) got.push_back(hypot(value.x, value.y));
  expect_near("cufftExecZ2Z", got, wanted, 1e-9);
  CALL(cufftDestroy(plan));
}

void there_and_back() {
  const auto image = numbers<float>(ROWS * COLUMNS);
  const Device<float> data(image);
  const Device<cufftComplex> spectrum(ROWS * (COLUMNS / 2 + 1));
  cufftHandle forth, back;
  CALL(cufftPlan2d(&forth, ROWS, COLUMNS, CUFFT_R2C));
  CALL(cufftPlan2d(&back, ROWS, COLUMNS, CUFFT_C2R));
  CALL(cufftExecR2C(forth, data.get(), spectrum.get()));
  double total = 0;
  for (const float value : image) total += value;
  expect_near("cufftExecR2C, sum", std::vector<double>{spectrum.read()[0].x},
              std::vector<double>{total}, 1e-3);
  CALL(cufftExecC2R(back, spectrum.get(), data.get()));
  auto got = data.read();
  for (float& value : got) value /= ROWS * COLUMNS;
  expect_near("cufftExecC2R", got, image, 1e-5);
  CALL(cufftDestroy(forth));
  CALL(cufftDestroy(back));
}

void batched() {
  std::vector<cufftComplex> values(N * BATCH);
  const auto random = numbers<float>(2 * N * BATCH);
  for (size_t i = 0; i < values.size(); ++i) values[i] = {random[2 * i], random[2 * i + 1]};
  const Device<cufftComplex> data(values);
  cufftHandle plan;
  int n = N;
  CALL(cufftPlanMany(&plan, 1, &n, nullptr, 1, N, nullptr, 1, N, CUFFT_C2C, BATCH));
  CALL(cufftExecC2C(plan, data.get(), data.get(), CUFFT_FORWARD));
  CALL(cufftExecC2C(plan, data.get(), data.get(), CUFFT_INVERSE));
  std::vector<float> got;
  for (const auto& value : data.read()) {
    got.push_back(value.x / N);
    got.push_back(value.y / N);
  }
  expect_near("cufftPlanMany", got, random, 1e-5);
  CALL(cufftDestroy(plan));
}

}  // namespace

int main() {
  one_frequency();
  there_and_back();
  batched();
  return finish("cufft");
}
