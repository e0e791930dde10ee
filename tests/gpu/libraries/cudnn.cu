// SPDX-License-Identifier: Apache-2.0
// cuDNN: a convolution forward and its gradient of the data, softmax.
#include <cudnn.h>

#include <algorithm>

#include "library.h"

namespace {

constexpr int BATCH = 2, CHANNELS = 3, SIZE = 20, FILTERS = 4, WINDOW = 3, OUT = SIZE - WINDOW + 1;
const float ONE = 1, ZERO = 0;

size_t image_at(int n, int c, int y, int x) {
  return ((static_cast<size_t>(n) * CHANNELS + c) * SIZE + y) * SIZE + x;
}
size_t filter_at(int f, int c, int y, int x) {
  return ((static_cast<size_t>(f) * CHANNELS + c) * WINDOW + y) * WINDOW + x;
}
size_t out_at(int n, int f, int y, int x) {
  return ((static_cast<size_t>(n) * FILTERS + f) * OUT + y) * OUT + x;
}

/// `body` for each product of a pixel and a weight: indices of the result, pixel and weight.
template <class Body>
void each_product(Body body) {
  for (int n = 0; n < BATCH; ++n)
    for (int f = 0; f < FILTERS; ++f)
      for (int y = 0; y < OUT; ++y)
        for (int x = 0; x < OUT; ++x)
          for (int c = 0; c < CHANNELS; ++c)
            for (int dy = 0; dy < WINDOW; ++dy)
              for (int dx = 0; dx < WINDOW; ++dx)
                body(out_at(n, f, y, x), image_at(n, c, y + dy, x + dx), filter_at(f, c, dy, dx));
}

struct Descriptors {
  cudnnTensorDescriptor_t image, out;
  cudnnFilterDescriptor_t filter;
  cudnnConvolutionDescriptor_t convolution;
};

Descriptors describe() {
  Descriptors d;
  CALL(cudnnCreateTensorDescriptor(&d.image));
  CALL(cudnnCreateTensorDescriptor(&d.out));
  CALL(cudnnCreateFilterDescriptor(&d.filter));
  CALL(cudnnCreateConvolutionDescriptor(&d.convolution));
  CALL(cudnnSetTensor4dDescriptor(d.image, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, BATCH, CHANNELS,
                                  SIZE, SIZE));
  CALL(cudnnSetTensor4dDescriptor(d.out, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, BATCH, FILTERS, OUT,
                                  OUT));
  CALL(cudnnSetFilter4dDescriptor(d.filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, FILTERS, CHANNELS,
                                  WINDOW, WINDOW));
  CALL(cudnnSetConvolution2dDescriptor(d.convolution, 0, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                       CUDNN_DATA_FLOAT));
  return d;
}

void convolution(cudnnHandle_t dnn) {
  const auto image = numbers<float>(image_at(BATCH, 0, 0, 0)),
             filter = numbers<float>(filter_at(FILTERS, 0, 0, 0), 2);
  const size_t n_out = out_at(BATCH, 0, 0, 0);
  const Device<float> dimage(image), dfilter(filter), result(n_out), gradient(image.size());
  const Descriptors d = describe();
  std::vector<double> wanted(n_out), wanted_gradient(image.size());
  each_product([&](size_t o, size_t i, size_t f) {
    wanted[o] += static_cast<double>(image[i]) * filter[f];
  });
  each_product([&](size_t o, size_t i, size_t f) { wanted_gradient[i] += wanted[o] * filter[f]; });

  const auto forward = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
  size_t n_bytes = 0;
  CALL(cudnnGetConvolutionForwardWorkspaceSize(dnn, d.image, d.filter, d.convolution, d.out,
                                               forward, &n_bytes));
  const Device<char> workspace(n_bytes + 1);
  CALL(cudnnConvolutionForward(dnn, &ONE, d.image, dimage.get(), d.filter, dfilter.get(),
                               d.convolution, forward, workspace.get(), n_bytes, &ZERO, d.out,
                               result.get()));
  expect_near("cudnnConvolutionForward", result.read(), wanted, 1e-2);  // may use TF32
  const auto backward = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
  CALL(cudnnGetConvolutionBackwardDataWorkspaceSize(dnn, d.filter, d.out, d.convolution, d.image,
                                                    backward, &n_bytes));
  const Device<char> more_workspace(n_bytes + 1);
  CALL(cudnnConvolutionBackwardData(dnn, &ONE, d.filter, dfilter.get(), d.out, result.get(),
                                    d.convolution, backward, more_workspace.get(), n_bytes, &ZERO,
                                    d.image, gradient.get()));
  expect_near("cudnnConvolutionBackwardData", gradient.read(), wanted_gradient, 5e-2);
}

void softmax(cudnnHandle_t dnn) {
  const auto image = numbers<float>(image_at(BATCH, 0, 0, 0));
  const Device<float> dimage(image), out(image.size());
  const Descriptors d = describe();
  CALL(cudnnSoftmaxForward(dnn, CUDNN_SOFTMAX_ACCURATE, CUDNN_SOFTMAX_MODE_CHANNEL, &ONE, d.image,
                           dimage.get(), &ZERO, d.image, out.get()));
  const auto found = out.read();
  std::vector<double> totals(BATCH * SIZE * SIZE);
  for (int n = 0; n < BATCH; ++n)
    for (int c = 0; c < CHANNELS; ++c)
      for (int y = 0; y < SIZE; ++y)
        for (int x = 0; x < SIZE; ++x)
          totals[(n * SIZE + y) * SIZE + x] += found[image_at(n, c, y, x)];
  expect_near("cudnnSoftmaxForward", totals, std::vector<double>(totals.size(), 1.0), 1e-5);
}

}  // namespace

int main() {
  cudnnHandle_t dnn;
  CALL(cudnnCreate(&dnn));
  convolution(dnn);
  softmax(dnn);
  CALL(cudnnDestroy(dnn));
  return finish("cudnn");
}
