// SPDX-License-Identifier: Apache-2.0
// Intel SDM volume 1, 12.10.3: MOVNTDQA reads a whole line of write-combining memory at once, and
// is an ordinary load elsewhere; volume 1, 10.4.6.2: MOVNTDQ is ordered by SFENCE only.
#include "streaming.h"

#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace kvgpu::memory {

namespace {

constexpr size_t VECTOR_BYTES = sizeof(__m128i);

bool has_streaming_loads() {
  static const bool has = [] {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_SSE4_1) != 0;
  }();
  return has;
}

size_t bytes_to_alignment(const void* at, size_t limit_bytes) {
  const size_t over = reinterpret_cast<uintptr_t>(at) % VECTOR_BYTES;
  return std::min(over == 0 ? 0 : VECTOR_BYTES - over, limit_bytes);
}

__attribute__((target("sse4.1"))) void load_vectors(std::byte* to, const std::byte* from,
                                                    size_t n_vectors) {
  for (size_t i = 0; i < n_vectors; ++i) {
    // The intrinsic's parameter lacks a const.
    auto* const at = const_cast<__m128i*>(reinterpret_cast<const __m128i*>(from)) + i;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + i, _mm_stream_load_si128(at));
  }
}

}  // namespace

void stream_in(void* to, const void* from, size_t bytes) {
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  const size_t head = bytes_to_alignment(out, bytes);
  std::memcpy(out, in, head);
  const size_t n_vectors = (bytes - head) / VECTOR_BYTES;
  for (size_t i = 0; i < n_vectors; ++i) {
    const __m128i vector = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + head) + i);
    _mm_stream_si128(reinterpret_cast<__m128i*>(out + head) + i, vector);
  }
  const size_t done = head + n_vectors * VECTOR_BYTES;
  std::memcpy(out + done, in + done, bytes - done);
  _mm_sfence();
}

void stream_out(void* to, const void* from, size_t bytes) {
  _mm_lfence();  // not before whoever told us that the bytes are there
  auto* const out = static_cast<std::byte*>(to);
  const auto* const in = static_cast<const std::byte*>(from);
  if (!has_streaming_loads()) {
    std::memcpy(out, in, bytes);
    return;
  }
  const size_t head = bytes_to_alignment(in, bytes);
  std::memcpy(out, in, head);
  const size_t n_vectors = (bytes - head) / VECTOR_BYTES;
  load_vectors(out + head, in + head, n_vectors);
  const size_t done = head + n_vectors * VECTOR_BYTES;
  std::memcpy(out + done, in + done, bytes - done);
}

}  // namespace kvgpu::memory
