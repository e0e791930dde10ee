// SPDX-License-Identifier: Apache-2.0
// Integer operations, bits and comparison against their oracles.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <algorithm>

#include "software_gpu_cases.h"

using namespace software_gpu_test;

namespace {

template <class T>
u64 permuted(T a, T b, T selector) {
  u64 result = 0;
  const u64 both = u64{b} << 32 | a;
  for (int i = 0; i < 4; ++i) {
    const u32 nibble = selector >> (i * 4) & 15;
    u64 byte = both >> ((nibble & 7) * 8) & 255;
    if (nibble & 8) byte = (byte >> 7) * 255;
    result |= byte << (i * 8);
  }
  return result;
}

}  // namespace

TEST_CASE("integer arithmetic") {
  check({{"add.s32 %r9, %r1, %r2;", Result::R, ORACLE { UNUSED; return u32(a + b);
}
}
, {"add.u64 %rd9, %rd1, %rd2;", Result::RD, ORACLE{UNUSED;
return a + b;
}
}
, {"add.u16 %h9, %h1, %h2;", Result::H, ORACLE{UNUSED;
return u16(a + b);
}
}
, {"add.sat.s32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return u32(std::clamp<s64>(s64{s32(a)} + s32(b), INT32_MIN, INT32_MAX));
}
}
, {"sub.s32 %r9, %r1, 7;", Result::R, ORACLE{UNUSED;
return u32(a - 7);
}
}
, {"sub.s64 %rd9, %rd1, %rd2;", Result::RD, ORACLE{UNUSED;
return a - b;
}
}
, {"mul.lo.s32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return u32(a * b);
}
}
, {"mul.hi.s32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return u32(s64{s32(a)} * s32(b) >> 32);
}
}
, {"mul.hi.u64 %rd9, %rd1, %rd2;", Result::RD, ORACLE{UNUSED;
return u64((unsigned __int128)a * b >> 64);
}
}
, {"mul.hi.s64 %rd9, %rd1, %rd2;", Result::RD, ORACLE{UNUSED;
return u64((i128)s64(a) * s64(b) >> 64);
}
}
, {"mul.wide.s32 %rd9, %r1, %r2;", Result::RD, ORACLE{UNUSED;
return u64(s64{s32(a)} * s32(b));
}
}
, {"mul.wide.u16 %r9, %h1, %h2;", Result::R, ORACLE{UNUSED;
return u32(u16(a)) * u16(b);
}
}
, {"mad.lo.s32 %r9, %r1, %r2, %r3;", Result::R, ORACLE{return u32(a * b + c);
}
}
, {"mad.wide.u32 %rd9, %r1, %r2, %rd3;", Result::RD, ORACLE{return u64(u32(a)) * u32(b) + c;
}
}
, {"mad.hi.u32 %r9, %r1, %r2, %r3;", Result::R, ORACLE{return u32((u64(u32(a)) * u32(b) >> 32) + c);
}
}
, {"div.s32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return s32(b) == 0 ? UINT32_MAX : u32(s64{s32(a)} / s32(b));
}
}
, {"div.u64 %rd9, %rd1, %rd2;", Result::RD, ORACLE{UNUSED;
return b == 0 ? UINT64_MAX : a / b;
}
}
, {"rem.s32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return s32(b) == 0 ? u32(a) : u32(s64{s32(a)} % s32(b));
}
}
, {"rem.u32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return u32(b) == 0 ? u32(a) : u32(a) % u32(b);
}
}
, {"min.s32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return u32(std::min(s32(a), s32(b)));
}
}
, {"max.u32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return std::max(u32(a), u32(b));
}
}
, {"max.s64 %rd9, %rd1, %rd2;", Result::RD, ORACLE{UNUSED;
return u64(std::max(s64(a), s64(b)));
}
}
, {"neg.s32 %r9, %r1;", Result::R, ORACLE{UNUSED;
return u32(0 - a);
}
}
, {"abs.s32 %r9, %r1;", Result::R, ORACLE{UNUSED;
return s32(a) < 0 ? u32(0 - a) : u32(a);
}
}
, {"sad.u32 %r9, %r1, %r2, %r3;", Result::R,
   ORACLE{return u32((u32(a) < u32(b) ? u32(b) - u32(a) : u32(a) - u32(b)) + u32(c));
}
}
, {"add.cc.u32 %r9, %r1, %r2; addc.u32 %r9, %r3, 0;", Result::R,
   ORACLE{return u32(u32(c) + ((u64(u32(a)) + u32(b)) >> 32));
}
}
, {"sub.cc.u32 %r9, %r1, %r2; subc.u32 %r9, %r3, 0;", Result::R,
   ORACLE{return u32(u32(c) - (u32(a) < u32(b)));
}
}
, {
  "mad.lo.cc.u32 %r8, %r1, %r2, %r3; madc.hi.u32 %r9, %r1, %r2, 0;", Result::R, ORACLE {
    return u32((u64(u32(a)) * u32(b) + u32(c)) >> 32);
  }
}
},
        integer_inputs());
}

TEST_CASE("bits") {
  check({{"and.b32 %r9, %r1, %r2;", Result::R, ORACLE { UNUSED; return u32(a & b);
}
}
, {"or.b64 %rd9, %rd1, %rd2;", Result::RD, ORACLE{UNUSED;
return a | b;
}
}
, {"xor.b16 %h9, %h1, %h2;", Result::H, ORACLE{UNUSED;
return u16(a ^ b);
}
}
, {"not.b32 %r9, %r1;", Result::R, ORACLE{UNUSED;
return u32(~a);
}
}
, {"and.pred %p9, %p1, %p2;", Result::P, ORACLE{return u32(a) != 0 && s32(b) > s32(c);
}
}
, {"not.pred %p9, %p2;", Result::P, ORACLE{UNUSED;
return !(s32(b) > s32(c));
}
}
, {"shl.b32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return u32(b) > 31 ? 0 : u32(a << u32(b));
}
}
, {"shl.b64 %rd9, %rd1, %r2;", Result::RD, ORACLE{UNUSED;
return u32(b) > 63 ? 0 : a << u32(b);
}
}
, {"shr.u32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return u32(b) > 31 ? 0 : u32(a) >> u32(b);
}
}
, {"shr.s32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return u32(s32(a) >> std::min(u32(b), 31u));
}
}
, {"shr.s64 %rd9, %rd1, %r2;", Result::RD, ORACLE{UNUSED;
return u64(s64(a) >> std::min(u32(b), 63u));
}
}
, {"shf.l.wrap.b32 %r9, %r1, %r2, %r3;", Result::R,
   ORACLE{return u32(((u64(u32(b)) << 32 | u32(a)) << (c & 31)) >> 32);
}
}
, {"shf.r.clamp.b32 %r9, %r1, %r2, %r3;", Result::R,
   ORACLE{return u32((u64(u32(b)) << 32 | u32(a)) >> std::min(u32(c), 32u));
}
}
, {"popc.b32 %r9, %r1;", Result::R, ORACLE{UNUSED;
return u64(__builtin_popcount(u32(a)));
}
}
, {"popc.b64 %r9, %rd1;", Result::R, ORACLE{UNUSED;
return u64(__builtin_popcountll(a));
}
}
, {"clz.b32 %r9, %r1;", Result::R, ORACLE{UNUSED;
return u32(a) ? u64(__builtin_clz(u32(a))) : 32;
}
}
, {"clz.b64 %r9, %rd1;", Result::R, ORACLE{UNUSED;
return a ? u64(__builtin_clzll(a)) : 64;
}
}
, {"brev.b32 %r9, %r1;", Result::R, ORACLE{UNUSED;
u32 r = 0;
for (int i = 0; i < 32; ++i) r = r << 1 | (a >> i & 1);
return r;
}
}
, {"bfind.u32 %r9, %r1;", Result::R, ORACLE{UNUSED;
return u32(a) ? u64(31 - __builtin_clz(u32(a))) : UINT32_MAX;
}
}
, {"bfind.s32 %r9, %r1;", Result::R, ORACLE{UNUSED;
const u32 x = s32(a) < 0 ? ~u32(a) : u32(a);
return x ? u64(31 - __builtin_clz(x)) : UINT32_MAX;
}
}
, {"bfe.u32 %r9, %r1, 5, 9;", Result::R, ORACLE{UNUSED;
return a >> 5 & 511;
}
}
, {"bfe.s32 %r9, %r1, 5, 9;", Result::R, ORACLE{UNUSED;
return u32(s32(u32(a) << 18) >> 23);
}
}
, {"bfe.u64 %rd9, %rd1, 40, 24;", Result::RD, ORACLE{UNUSED;
return a >> 40;
}
}
, {"bfi.b32 %r9, %r1, %r2, 8, 4;", Result::R, ORACLE{UNUSED;
return u32((b & ~0xf00ull) | (a & 15) << 8);
}
}
, {"lop3.b32 %r9, %r1, %r2, %r3, 0x96;", Result::R, ORACLE{return u32(a ^ b ^ c);
}
}
, {"lop3.b32 %r9, %r1, %r2, %r3, 0xe8;", Result::R, ORACLE{return u32((a & b) | (a & c) | (b & c));
}
}
, {"prmt.b32 %r9, %r1, %r2, %r3;", Result::R, ORACLE{return permuted(u32(a), u32(b), u32(c));
}
}
, {"mov.b64 %rd9, {%r1, %r2};", Result::RD, ORACLE{UNUSED;
return b << 32 | u32(a);
}
}
, {"mov.b32 {%h8, %h9}, %r1;", Result::H, ORACLE{UNUSED;
return u16(a >> 16);
}
}
, {
  "cnot.b32 %r9, %r1;", Result::R, ORACLE {
    UNUSED;
    return u32(a) == 0;
  }
}
},
        integer_inputs());
}

TEST_CASE("comparison and selection") {
  check({{"setp.lt.s32 %p9, %r1, %r2;", Result::P, ORACLE { UNUSED; return s32(a) < s32(b);
}
}
, {"setp.hs.u32 %p9, %r1, %r2;", Result::P, ORACLE{UNUSED;
return u32(a) >= u32(b);
}
}
, {"setp.eq.s64 %p9, %rd1, %rd2;", Result::P, ORACLE{UNUSED;
return a == b;
}
}
, {"setp.gt.and.s16 %p9, %h1, %h2, !%p2;", Result::P,
   ORACLE{return s16(a) > s16(b) && !(s32(b) > s32(c));
}
}
, {"setp.le.or.u32 %p8|%p9, %r1, %r2, %p2;", Result::P,
   ORACLE{return !(u32(a) <= u32(b)) || s32(b) > s32(c);
}
}
, {"set.ne.u32.s32 %r9, %r1, %r2;", Result::R, ORACLE{UNUSED;
return u32(a) != u32(b) ? UINT32_MAX : 0;
}
}
, {"selp.b32 %r9, %r1, %r3, %p2;", Result::R, ORACLE{return s32(b) > s32(c) ? u32(a) : u32(c);
}
}
, {"mov.u32 %r9, %r1; @%p2 mov.u32 %r9, %r3;", Result::R,
   ORACLE{return s32(b) > s32(c) ? u32(c) : u32(a);
}
}
, {
  "slct.s32.s32 %r9, %r1, %r2, %r3;", Result::R, ORACLE { return s32(c) >= 0 ? u32(a) : u32(b); }
}
},
        integer_inputs());
}
