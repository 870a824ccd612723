#pragma once
// One vector of f32 in the instruction set of the translation unit: 16 lanes with AVX-512, 8 with
// AVX2, 1 in plain C++. Everything is in the namespace of the set (TROUPE_ISA) and uses no std
// templates, so that code of one set cannot be linked into another.

#include <cstdint>

#include "kernels/cpu/convert.hpp"

// Fully unrolls a loop with a constant trip count over vectors, which must become registers.
#if defined(__clang__)
#define TROUPE_UNROLL _Pragma("unroll")
#else
#define TROUPE_UNROLL _Pragma("GCC unroll 32")
#endif

// The set's bf16 unit, if it has one: with tiles, or with vectors.
#if defined(__AMX_BF16__) || defined(TROUPE_EMULATE_TILES)
#define TROUPE_BF16_TILES
#elif defined(__AVX512BF16__)
#define TROUPE_BF16_DOT
#endif
#if defined(TROUPE_BF16_TILES) || defined(TROUPE_BF16_DOT)
#define TROUPE_BF16_UNIT
#endif

#if defined(__AVX512F__)
#include "kernels/cpu/simd_avx512.hpp"
#elif defined(__AVX2__)
#include "kernels/cpu/simd_avx2.hpp"
#else
#include "kernels/cpu/simd_scalar.hpp"
#endif

namespace troupe::TROUPE_ISA {

TROUPE_INLINE std::int64_t min_of(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
TROUPE_INLINE std::int64_t max_of(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
TROUPE_INLINE std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
TROUPE_INLINE std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

inline constexpr float kInfinity = __builtin_inff();

/// Whether a result of whole vectors should be written with non_temporal_store: it is too large to
/// be found in a core's cache later, so reading it into the cache for the write would only evict
/// useful data. Strides in floats.
TROUPE_INLINE bool should_bypass_caches(const float* data, std::int64_t num_rows,
                                        std::int64_t row_stride) {
  constexpr std::int64_t kCacheBytes = std::int64_t{1} << 20;
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(data) % 64 == 0 && row_stride % 16 == 0;
  return is_aligned && num_rows * row_stride * 4 > kCacheBytes;
}

/// kLanes elements from element i on, widened; for kF8E4M3 1/256 of them.
template <ElementType kType>
TROUPE_INLINE Vec load_as(const void* array, std::int64_t i) {
  constexpr std::int64_t kBytes = element_bytes(kType);
  const char* first = static_cast<const char*>(array) + i * kBytes;
  if constexpr (kType == ElementType::kF32) return load(reinterpret_cast<const float*>(first));
  if constexpr (kType == ElementType::kBF16) return load_bf16(first);
  if constexpr (kType == ElementType::kF16) return load_f16(first);
  if constexpr (kType == ElementType::kI8) return load_i8(first);
  if constexpr (kType == ElementType::kF8E4M3) return load_f8e4m3(first);
}

/// The first n < kLanes elements from element i on, widened; the other lanes are zero. Reads no
/// further.
template <ElementType kType>
TROUPE_INLINE Vec load_first_as(const void* array, std::int64_t i, std::int64_t n) {
  alignas(64) float lanes[kLanes] = {};
  for (std::int64_t lane = 0; lane < n; ++lane) lanes[lane] = load_element<kType>(array, i + lane);
  return load(lanes);
}

/// Calls f(ElementType constant) for the run-time type, so that loops are compiled per type.
template <ElementType kType>
struct ElementConstant {
  static constexpr ElementType value = kType;
};
template <class F>
TROUPE_INLINE void with_element_type(ElementType type, const F& f) {
  switch (type) {
    case ElementType::kF32:
      return f(ElementConstant<ElementType::kF32>{});
    case ElementType::kBF16:
      return f(ElementConstant<ElementType::kBF16>{});
    case ElementType::kF16:
      return f(ElementConstant<ElementType::kF16>{});
    case ElementType::kI8:
    case ElementType::kF8E4M3:
      return;  // not a weight type
  }
}
/// As above for the types of a KV cache.
template <class F>
TROUPE_INLINE void with_cache_type(ElementType type, const F& f) {
  if (type == ElementType::kI8) return f(ElementConstant<ElementType::kI8>{});
  if (type == ElementType::kF8E4M3) return f(ElementConstant<ElementType::kF8E4M3>{});
  with_element_type(type, f);
}

/// Calls f(offset, load, store) over [0, n) in vectors: `load(p)` and `store(p, v)` access only
/// existing lanes. The last vector may be partial; its lanes compute the same as anywhere else.
template <class F>
TROUPE_INLINE void for_each_vector(std::int64_t n, const F& f) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    f(
        i, [](const float* p) { return load(p); }, [](float* p, Vec v) { store(p, v); });
  }
  if (i < n) {
    const std::int64_t rest = n - i;
    f(
        i, [rest](const float* p) { return load_first(p, rest); },
        [rest](float* p, Vec v) { store_first(p, v, rest); });
  }
}

}  // namespace troupe::TROUPE_ISA
