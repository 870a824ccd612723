#pragma once
// exp, tanh and derived functions for vectors: accurate to a few units in the last place over the
// whole range, the same in every lane.

#include "kernels/cpu/simd.hpp"

namespace troupe::TROUPE_ISA {

inline constexpr float kLog2E = 1.44269504088896341f;

/// exp(x): x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial for exp(r) (coefficients of Cephes'
/// expf), times 2^n. Below -104 the result is 0, above 89 infinity; NaN stays NaN; exp(0) is
/// exactly 1.
TROUPE_INLINE Vec exp(Vec x) {
  x = max(broadcast(-104.0f), min(broadcast(89.0f), x));
  const Vec n = round(x * broadcast(kLog2E));
  Vec r = fma(n, broadcast(-0.693359375f), x);
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vec p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  const Vec y = fma(p, r * r, r) + broadcast(1.0f);
  return scale_by_power_of_2(y, n);
}

/// 2^x for x <= 128, with half as many operations as exp: the polynomial of degree 5 with the
/// smallest relative error (8.3e-8) that is exactly 1 at 0. Below -126 the result is that of -126,
/// since CPUs are slow with subnormal numbers; NaN stays NaN.
TROUPE_INLINE Vec exp2(Vec x) {
  const Split power = split(max(broadcast(-126.0f), x));
  Vec p = broadcast(1.8671312822e-3f);
  p = fma(p, power.fraction, broadcast(9.0170277567e-3f));
  p = fma(p, power.fraction, broadcast(5.5799914935e-2f));
  p = fma(p, power.fraction, broadcast(2.4016444966e-1f));
  p = fma(p, power.fraction, broadcast(6.9315131185e-1f));
  p = fma(p, power.fraction, broadcast(1.0f));
  return scale_by_power_of_2(p, power.whole);
}

/// tanh(x): near zero an odd polynomial (coefficients of Cephes' tanhf), else 1 - 2 / (exp(2|x|) +
/// 1) with the sign of x.
TROUPE_INLINE Vec tanh(Vec x) {
  const Vec z = x * x;
  Vec p = broadcast(-5.70498872745e-3f);
  p = fma(p, z, broadcast(2.06390887954e-2f));
  p = fma(p, z, broadcast(-5.37397155531e-2f));
  p = fma(p, z, broadcast(1.33314422036e-1f));
  p = fma(p, z, broadcast(-3.33332819422e-1f));
  const Vec near_zero = fma(p * z, x, x);
  const Vec one = broadcast(1.0f);
  const Vec size = abs(x);
  const Vec far = one - broadcast(2.0f) / (exp(size + size) + one);
  const Vec signed_far = select(less(x, zero()), zero() - far, far);
  return select(less(size, broadcast(0.625f)), near_zero, signed_far);
}

/// x / (1 + exp(-x)).
TROUPE_INLINE Vec silu(Vec x) { return x / (broadcast(1.0f) + exp(zero() - x)); }

/// erfc(x) for x >= 0, with a relative error below 1.2e-7 beside that of exp (the Chebyshev fit of
/// Numerical Recipes, section 6.2).
TROUPE_INLINE Vec erfc_of_positive(Vec x) {
  const Vec t = broadcast(1.0f) / (broadcast(1.0f) + broadcast(0.5f) * x);
  Vec p = broadcast(0.17087277f);
  p = fma(p, t, broadcast(-0.82215223f));
  p = fma(p, t, broadcast(1.48851587f));
  p = fma(p, t, broadcast(-1.13520398f));
  p = fma(p, t, broadcast(0.27886807f));
  p = fma(p, t, broadcast(-0.18628806f));
  p = fma(p, t, broadcast(0.09678418f));
  p = fma(p, t, broadcast(0.37409196f));
  p = fma(p, t, broadcast(1.00002368f));
  p = fma(p, t, broadcast(-1.26551223f));
  return t * exp(p - x * x);
}

/// x / 2 (1 + erf(x / sqrt(2))).
TROUPE_INLINE Vec gelu_erf(Vec x) {
  const Vec tail = erfc_of_positive(abs(x) * broadcast(0.70710678118654752f));
  const Vec twice = select(less(x, zero()), tail, broadcast(2.0f) - tail);
  return broadcast(0.5f) * x * twice;
}

/// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
TROUPE_INLINE Vec gelu_tanh(Vec x) {
  const Vec cubic = broadcast(0.044715f) * (x * x) * x;
  const Vec inner = broadcast(0.79788456080286536f) * (x + cubic);
  return broadcast(0.5f) * x * (broadcast(1.0f) + tanh(inner));
}

/// x / (1 + exp(-alpha x)).
TROUPE_INLINE Vec swish(Vec x, float alpha) {
  return x / (broadcast(1.0f) + exp(broadcast(-alpha) * x));
}

/// x / (1 + exp(-1.702 x)).
TROUPE_INLINE Vec gelu_sigmoid(Vec x) { return swish(x, 1.702f); }

}  // namespace troupe::TROUPE_ISA
