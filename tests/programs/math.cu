// SPDX-License-Identifier: Apache-2.0
// The mathematical functions. Those of double and many of float are made of plain arithmetic and
// agree bit for bit; what rests on an instruction that hardware approximates (ex2, lg2, sin, cos,
// rcp, rsqrt, sqrt of float) may differ by the stated number of units in the last place.
#include <string>

#include "results.h"

constexpr int N = 64;

template <class T>
std::vector<T> inputs(int column) {
  std::vector<T> values = {T(0),        T(-0.0),      T(1),     T(-1),  T(0.5),
                           T(INFINITY), T(-INFINITY), T(1e-30), T(1e30)};
  for (int i = static_cast<int>(values.size()); i < N; ++i) {
    const double unit = static_cast<double>(scrambled(i * 2 + column) >> 11) * 0x1p-53;
    const double wide = unit * 20 - 10;
    values.push_back(static_cast<T>(i % 4 == 0 ? wide * 20 : i % 4 == 1 ? unit : wide));
  }
  return values;
}

template <class Op, class T>
__global__ void apply(T* to, const T* a, const T* b) {
  const int i = threadIdx.x;
  const T result = Op::apply(a[i], b[i]);
  to[i] = result == result ? result : T(NAN);
}

template <class Op, class T>
void run(const std::string& name, int n_ulp) {
  T* a = on_device(inputs<T>(0));
  T* b = on_device(inputs<T>(1));
  T* to = on_device(std::vector<T>(N));
  apply<Op, T><<<1, N>>>(to, a, b);
  CHECK(cudaGetLastError());
  print_values(name.c_str(), n_ulp, taken_back(to, N));
  CHECK(cudaFree(a));
  CHECK(cudaFree(b));
}

// Each entry: a name, the tolerance in ulp, an expression of a and b.
// clang-format off
#define FLOAT(X)                                                                              \
  X(expf, 1, expf(a)) X(exp2f, 1, exp2f(a)) X(exp10f, 1, exp10f(a)) X(expm1f, 0, expm1f(a))   \
  X(logf, 0, logf(fabsf(a))) X(log2f, 0, log2f(fabsf(a))) X(log10f, 0, log10f(fabsf(a)))      \
  X(log1pf, 0, log1pf(fabsf(a))) X(sinf, 0, sinf(a)) X(cosf, 0, cosf(a)) X(tanf, 0, tanf(a))  \
  X(sinpif, 0, sinpif(a)) X(asinf, 0, asinf(a)) X(acosf, 0, acosf(a)) X(atanf, 0, atanf(a))   \
  X(atan2f, 0, atan2f(a, b)) X(sinhf, 2, sinhf(a)) X(coshf, 1, coshf(a)) X(tanhf, 1, tanhf(a)) \
  X(asinhf, 1, asinhf(a)) X(acoshf, 0, acoshf(fabsf(a))) X(powf, 0, powf(fabsf(a), b))        \
  X(cbrtf, 1, cbrtf(a)) X(hypotf, 0, hypotf(a, b)) X(erff, 0, erff(a)) X(erfcf, 2, erfcf(a))  \
  X(lgammaf, 1, lgammaf(a)) X(tgammaf, 2, tgammaf(a)) X(j0f, 1, j0f(a)) X(rsqrtf, 1, rsqrtf(fabsf(a))) \
  X(__expf, 1, __expf(a)) X(__exp10f, 2, __exp10f(a)) X(__powf, 32, __powf(fabsf(a), b))       \
  X(__fdividef, 1, __fdividef(a, b)) X(__sinf_plus_4, 1, 4 + __sinf(fmodf(a, 3))) \
  X(__cosf_plus_4, 1, 4 + __cosf(fmodf(a, 3))) X(__logf, 2, __logf(2 + fabsf(a))) \
  X(__log2f, 1, __log2f(2 + fabsf(a))) X(__frsqrt_rn, 0, __frsqrt_rn(fabsf(a)))
#define DOUBLE(X)                                                                             \
  X(exp, 0, exp(a)) X(exp2, 0, exp2(a)) X(exp10, 0, exp10(a)) X(expm1, 0, expm1(a))           \
  X(log, 0, log(fabs(a))) X(log2, 0, log2(fabs(a))) X(log10, 0, log10(fabs(a)))               \
  X(log1p, 0, log1p(fabs(a))) X(sin, 0, sin(a)) X(cos, 0, cos(a)) X(tan, 0, tan(a))           \
  X(sinpi, 0, sinpi(a)) X(asin, 0, asin(a)) X(acos, 0, acos(a)) X(atan, 0, atan(a))           \
  X(atan2, 0, atan2(a, b)) X(sinh, 0, sinh(a)) X(cosh, 0, cosh(a)) X(tanh, 0, tanh(a))        \
  X(asinh, 0, asinh(a)) X(acosh, 0, acosh(fabs(a))) X(pow, 0, pow(fabs(a), b))                \
  X(cbrt, 0, cbrt(a)) X(hypot, 0, hypot(a, b)) X(erf, 0, erf(a)) X(erfc, 0, erfc(a))          \
  X(lgamma, 0, lgamma(a)) X(tgamma, 0, tgamma(a)) X(j0, 0, j0(a)) X(rsqrt, 0, rsqrt(fabs(a)))

// clang-format on

#define DEFINE(name, n_ulp, expression)                    \
  struct name##_of {                                       \
    template <class T>                                     \
    __device__ static T apply(T a, [[maybe_unused]] T b) { \
      return expression;                                   \
    }                                                      \
  };
FLOAT(DEFINE)
DOUBLE(DEFINE)

int main() {
#define RUN_FLOAT(name, n_ulp, expression) run<name##_of, float>(#name, n_ulp);
#define RUN_DOUBLE(name, n_ulp, expression) run<name##_of, double>(#name, n_ulp);
  FLOAT(RUN_FLOAT)
  DOUBLE(RUN_DOUBLE)
  return finish("math");
}
