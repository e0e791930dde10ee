// SPDX-License-Identifier: Apache-2.0
// Floating-point operations and conversions against their oracles.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <algorithm>
#include <limits>

#include "software_gpu_cases.h"

using namespace software_gpu_test;

TEST_CASE("f32") {
  check({{"add.f32 %f9, %f1, %f2;", Result::F, ORACLE { UNUSED; return ::b(f(a) + f(b));
}
}
, {"sub.rn.f32 %f9, %f1, %f2;", Result::F, ORACLE{UNUSED;
return ::b(f(a) - f(b));
}
}
, {"mul.f32 %f9, %f1, 0f40490FDB;", Result::F, ORACLE{UNUSED;
return ::b(f(a) * 3.14159274f);
}
}
, {"fma.rn.f32 %f9, %f1, %f2, %f3;", Result::F, ORACLE{return ::b(std::fma(f(a), f(b), f(c)));
}
}
, {"div.rn.f32 %f9, %f1, %f2;", Result::F, ORACLE{UNUSED;
return ::b(f(a) / f(b));
}
}
, {"sqrt.rn.f32 %f9, %f1;", Result::F, ORACLE{UNUSED;
return ::b(std::sqrt(f(a)));
}
}
, {"rcp.rn.f32 %f9, %f1;", Result::F, ORACLE{UNUSED;
return ::b(1.0f / f(a));
}
}
, {"neg.f32 %f9, %f1;", Result::F, ORACLE{UNUSED;
return u32(a) ^ 0x80000000u;
}
}
, {"abs.f32 %f9, %f1;", Result::F, ORACLE{UNUSED;
return u32(a) & 0x7fffffffu;
}
}
, {"min.f32 %f9, %f1, %f2;", Result::F, ORACLE{UNUSED;
if (f(a) == 0 && f(b) == 0) return u32(a | b);
return ::b(std::fmin(f(a), f(b)));
}
}
, {"max.NaN.f32 %f9, %f1, %f2;", Result::F, ORACLE{UNUSED;
if (f(a) == 0 && f(b) == 0) return u32(a & b);
return std::isnan(f(a)) || std::isnan(f(b)) ? ::b(NAN) : ::b(std::fmax(f(a), f(b)));
}
}
, {"add.sat.f32 %f9, %f1, %f2;", Result::F, ORACLE{UNUSED;
const float s = f(a) + f(b);
return ::b(s > 0 ? std::min(s, 1.0f) : 0.0f);
}
}
, {"add.ftz.f32 %f9, %f1, 0f00000000;", Result::F, ORACLE{UNUSED;
const float s = f(a) + 0.0f;
return ::b(std::fabs(s) < 1.17549435e-38f ? 0.0f : s);
}
}
, {"mul.rz.f32 %f9, %f1, %f2;", Result::F, ORACLE{UNUSED;
const double exact = double{f(a)} * f(b);
float r = float(exact);
if (std::isinf(r) && !std::isinf(exact)) r = std::copysign(std::numeric_limits<float>::max(), r);
if (std::fabs(double{r}) > std::fabs(exact)) r = std::nextafter(r, 0.0f);
return ::b(r);
}
}
, {"copysign.f32 %f9, %f1, %f2;", Result::F, ORACLE{UNUSED;
return (u32(a) & 0x80000000u) | (u32(b) & 0x7fffffffu);
}
}
, {"setp.lt.f32 %p9, %f1, %f2;", Result::P, ORACLE{UNUSED;
return f(a) < f(b);
}
}
, {"setp.neu.f32 %p9, %f1, %f2;", Result::P, ORACLE{UNUSED;
return f(a) != f(b);
}
}
, {"setp.ne.f32 %p9, %f1, %f2;", Result::P, ORACLE{UNUSED;
return f(a) < f(b) || f(a) > f(b);
}
}
, {"setp.nan.f32 %p9, %f1, %f2;", Result::P, ORACLE{UNUSED;
return std::isnan(f(a)) || std::isnan(f(b));
}
}
, {"testp.subnormal.f32 %p9, %f1;", Result::P, ORACLE{UNUSED;
return (u32(a) & 0x7f800000) == 0 && (u32(a) & 0x7fffff) != 0;
}
}
, {"ex2.approx.f32 %f9, 0f40400000;", Result::F, ORACLE{UNUSED;
return ::b(8.0f);
}
}
, {
  "lg2.approx.f32 %f9, 0f42000000;", Result::F, ORACLE {
    UNUSED;
    return ::b(5.0f);
  }
}
},
        float_inputs());
}

TEST_CASE("f64") {
  check({{"add.f64 %d9, %d1, %d2;", Result::D, ORACLE { UNUSED; return ::b(d(a) + d(b));
}
}
, {"mul.f64 %d9, %d1, %d2;", Result::D, ORACLE{UNUSED;
return ::b(d(a) * d(b));
}
}
, {"fma.rn.f64 %d9, %d1, %d2, %d3;", Result::D, ORACLE{return ::b(std::fma(d(a), d(b), d(c)));
}
}
, {"div.rn.f64 %d9, %d1, %d2;", Result::D, ORACLE{UNUSED;
return ::b(d(a) / d(b));
}
}
, {"sqrt.rn.f64 %d9, %d1;", Result::D, ORACLE{UNUSED;
return ::b(std::sqrt(d(a)));
}
}
, {"cvt.rn.f32.f64 %f9, %d1;", Result::F, ORACLE{UNUSED;
return ::b(static_cast<float>(d(a)));
}
}
, {"cvt.rzi.s64.f64 %rd9, %d1;", Result::RD, ORACLE{UNUSED;
const double v = std::trunc(d(a));
return std::isnan(v) ? 0
       : v >= 0x1p63 ? u64(INT64_MAX)
       : v < -0x1p63 ? u64(INT64_MIN)
                     : u64(s64(v));
}
}
, {"cvt.rni.s32.f64 %r9, %d1;", Result::R, ORACLE{UNUSED;
return u32(clamped(std::nearbyint(d(a)), INT32_MIN, INT32_MAX));
}
}
, {
  "setp.ge.f64 %p9, %d1, %d2;", Result::P, ORACLE {
    UNUSED;
    return d(a) >= d(b);
  }
}
},
        double_inputs());
}

TEST_CASE("conversions") {
  check({{"cvt.s32.s8 %r9, %r1;", Result::R, ORACLE { UNUSED; return u32(s32(int8_t(a)));
}
}
, {"cvt.u32.u8 %r9, %r1;", Result::R, ORACLE{UNUSED;
return u8(a);
}
}
, {"cvt.s64.s32 %rd9, %r1;", Result::RD, ORACLE{UNUSED;
return u64(s64{s32(a)});
}
}
, {"cvt.u64.u32 %rd9, %r1;", Result::RD, ORACLE{UNUSED;
return u32(a);
}
}
, {"cvt.sat.s8.s32 %r9, %r1;", Result::R, ORACLE{UNUSED;
return u32(std::clamp(s32(a), -128, 127));
}
}
, {"cvt.sat.u8.s32 %r9, %r1;", Result::R, ORACLE{UNUSED;
return u32(std::clamp(s32(a), 0, 255));
}
}
, {"cvt.rn.f32.s32 %f9, %r1;", Result::F, ORACLE{UNUSED;
return ::b(static_cast<float>(s32(a)));
}
}
, {"cvt.rn.f32.u64 %f9, %rd1;", Result::F, ORACLE{UNUSED;
return ::b(static_cast<float>(a));
}
}
, {
  "cvt.rn.f64.s64 %d9, %rd1;", Result::D, ORACLE {
    UNUSED;
    return ::b(static_cast<double>(s64(a)));
  }
}
},
        integer_inputs());
  check({{"cvt.rzi.s32.f32 %r9, %f1;", Result::R, ORACLE { UNUSED; return u32(clamped(std::trunc(double{f(a)}), INT32_MIN, INT32_MAX));
  }
  }
  , {"cvt.rmi.s32.f32 %r9, %f1;", Result::R, ORACLE{UNUSED;
  return u32(clamped(std::floor(double{f(a)}), INT32_MIN, INT32_MAX));
  }
  }
  , {"cvt.rpi.f32.f32 %f9, %f1;", Result::F, ORACLE{UNUSED;
  return ::b(std::ceil(f(a)));
  }
  }
  , {"cvt.rzi.u32.f32 %r9, %f1;", Result::R, ORACLE{UNUSED;
  return u32(clamped(std::trunc(double{f(a)}), 0, UINT32_MAX));
  }
  }
  , {"cvt.f64.f32 %d9, %f1;", Result::D, ORACLE{UNUSED;
  return ::b(double{f(a)});
  }
  }
  , {
    "cvt.rn.bf16.f32 %h9, %f1;", Result::H, ORACLE {
      UNUSED;
      const u32 x = u32(a);
      return std::isnan(f(a)) ? 0x7fff : u16((x + 0x7fff + (x >> 16 & 1)) >> 16);
    }
  }
  },
        float_inputs());
  }

  TEST_CASE("f16 survives the way to f32 and back") {
    std::vector<Input> all;
    for (u64 i = 0; i < 65536; ++i) all.push_back({i, 0, 0});
  check({{"cvt.f32.f16 %f8, %h1; cvt.rn.f16.f32 %h9, %f8;", Result::H,
          ORACLE { UNUSED; return (a & 0x7fff) > 0x7c00 ? 0x7fff : a;
  }
  }
  , {
    "cvt.f32.f16 %f9, %h1;", Result::F, ORACLE {
      UNUSED;
      const int e = int(a >> 10 & 31), m = int(a & 1023);
      const float s = a & 0x8000 ? -1.0f : 1.0f;
      if (e == 31) return ::b(m ? NAN : s * INFINITY);
      return ::b(s * std::ldexp(float(e ? m + 1024 : m), (e ? e : 1) - 25));
    }
  }
  },
        all);
  }
