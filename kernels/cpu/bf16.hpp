#pragma once
// Rounding to bf16 with AVX512_BF16.

#include "kernels/cpu/simd.hpp"

namespace troupe::TROUPE_ISA {

/// to[0, n) = x[0, n) as bf16, round to nearest even; to[n, padded) = 0. Subnormal numbers become
/// zero, as in the bf16 units.
TROUPE_INLINE void round_to_bf16(const float* x, std::int64_t n, std::int64_t padded,
                                 std::uint16_t* to) {
  std::int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m512bh halves =
        _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + i + 16), _mm512_loadu_ps(x + i));
    _mm512_storeu_si512(to + i, reinterpret_cast<__m512i>(halves));
  }
  const auto first = [](std::int64_t count) {
    const std::int64_t lanes = max_of(0, min_of(16, count));
    return static_cast<__mmask16>((1u << lanes) - 1u);
  };
  for (; i < padded; i += 16) {
    const __m256bh halves = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(first(n - i), x + i));
    _mm256_mask_storeu_epi16(to + i, first(padded - i), reinterpret_cast<__m256i>(halves));
  }
}

}  // namespace troupe::TROUPE_ISA
