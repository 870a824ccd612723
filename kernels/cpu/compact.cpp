// Lossless compression of bf16 weights to 12 bits.

#include "kernels/cpu/compact.hpp"

#include <atomic>

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/thread_pool.hpp"

#if defined(TROUPE_BF16_DOT)

namespace troupe::TROUPE_ISA {
namespace {

/// The shards of a packed matrix, uncompressed and compressed.
struct Shards {
  PanelLayout from;
  PanelLayout to;
  std::int64_t count;
  std::int64_t lines;  ///< of an uncompressed shard

  explicit Shards(WeightSpec spec) {
    from = panel_layout(spec);
    spec.is_compact = true;
    to = panel_layout(spec);
    count = from.num_panels * spec.k_shards;
    lines = from.padded_depth / 2 * kPairLines;
  }
  [[nodiscard]] std::int64_t main_bytes() const { return count * to.shard_bytes; }
};

__m512i exponents_of(__m512i line) {
  return _mm512_and_si512(_mm512_srli_epi16(line, 7), _mm512_set1_epi16(0xff));
}

/// Codes of exponents; sets a bit of `is_exception` for each exponent without a code.
__m512i codes_of(__m512i exponents, __m512i base, __mmask32& is_exception) {
  const __m512i codes = _mm512_maskz_sub_epi16(_mm512_test_epi16_mask(exponents, exponents),
                                               exponents, base);  // exponent 0: code 0
  const __m512i distance =
      _mm512_mask_sub_epi16(codes, _mm512_test_epi16_mask(exponents, exponents), codes,
                            _mm512_set1_epi16(1));  // codes 1 to 15 become 0 to 14
  is_exception = _mm512_cmpge_epu16_mask(distance, _mm512_set1_epi16(kExponentCodes - 1));
  return codes;
}

/// The range of exponents that have codes, chosen to minimise exceptions.
struct Window {
  std::int32_t exponent_base = 0;
  std::int64_t num_exceptions = 0;
};
Window choose_window(const std::byte* shard, std::int64_t num_lines) {
  // Estimated from a sample; the largest exponent is no guide, since a single weight may be far
  // larger.
  constexpr std::int64_t kSampled = 7;  // sample one line in this many: each line of a pair in turn
  std::int64_t counts[256] = {};
  for (std::int64_t i = 0; i < num_lines; i += kSampled) {
    alignas(64) std::uint16_t exponents[32];
    _mm512_store_si512(exponents, exponents_of(_mm512_loadu_si512(shard + i * 64)));
    for (const std::uint16_t exponent : exponents) ++counts[exponent];
  }
  Window best;
  std::int64_t most = 0;
  std::int64_t covered = 0;
  for (std::int32_t top = 1; top < 256; ++top) {  // the highest of equally good windows
    covered += counts[top];
    if (top > kExponentCodes - 1) covered -= counts[top - (kExponentCodes - 1)];
    if (covered < most) continue;
    most = covered;
    best.exponent_base = static_cast<std::int32_t>(max_of(0, top - (kExponentCodes - 1)));
  }
  const __m512i base = _mm512_set1_epi16(static_cast<short>(best.exponent_base));
  for (std::int64_t i = 0; i < num_lines; ++i) {
    __mmask32 is_exception;
    codes_of(exponents_of(_mm512_loadu_si512(shard + i * 64)), base, is_exception);
    best.num_exceptions += __builtin_popcount(is_exception);
  }
  return best;
}

void encode_shard(const std::byte* shard, std::int64_t num_lines, std::int32_t exponent_base,
                  std::byte* lines, CompactException* exception) {
  const __m512i base = _mm512_set1_epi16(static_cast<short>(exponent_base));
  const __m512i rest_bits = _mm512_set1_epi16(static_cast<short>(~kExponentBits));
  for (std::int64_t pair = 0; pair < num_lines / kPairLines; ++pair, lines += kCompactPairBytes) {
    __m512i codes = _mm512_setzero_si512();
    __m512i rest[kPairLines];
    for (int i = 0; i < kPairLines; ++i) {
      const std::byte* from = shard + (pair * kPairLines + i) * 64;
      const __m512i line = _mm512_loadu_si512(from);
      __mmask32 is_exception;
      const __m512i code = codes_of(exponents_of(line), base, is_exception);
      codes = _mm512_or_si512(
          codes, _mm512_sllv_epi16(_mm512_and_si512(code, _mm512_set1_epi16(kExponentCodes - 1)),
                                   _mm512_set1_epi16(static_cast<short>(4 * i))));
      rest[i] = _mm512_and_si512(line, rest_bits);
      for (; is_exception != 0; is_exception &= is_exception - 1) {
        const int position = __builtin_ctz(is_exception);
        exception->pair = static_cast<std::uint32_t>(pair);
        exception->position = static_cast<std::uint16_t>(i * 32 + position);
        std::memcpy(&exception->bits, from + position * 2, 2);
        ++exception;
      }
    }
    _mm512_store_si512(lines, _mm512_or_si512(rest[0], exchange_halves(rest[1])));
    _mm512_store_si512(lines + 64, _mm512_or_si512(rest[2], exchange_halves(rest[3])));
    _mm512_store_si512(lines + 128, codes);
  }
  exception->pair = kNoPair;
}

}  // namespace

std::int64_t compact_bytes(const OpContext& context, const WeightSpec& spec,
                           const std::byte* packed) noexcept {
  // The saving must be worth unpacking at every use.
  constexpr std::int64_t kMostOf8Parts = 7;
  if (spec.quantized != QuantizedType::kNone || spec.type != ElementType::kBF16 ||
      spec.mode != ComputeMode::kBF16)
    return 0;
  const Shards shards(spec);
  std::atomic<std::int64_t> num_exceptions{shards.count};  // each shard has a terminator
  context.pool->parallel_for(shards.count, [&](std::int64_t i) {
    const Window window = choose_window(packed + i * shards.from.shard_bytes, shards.lines);
    num_exceptions.fetch_add(window.num_exceptions, std::memory_order_relaxed);
  });
  const std::int64_t num_bytes =
      round_up(shards.main_bytes() +
                   num_exceptions.load() * static_cast<std::int64_t>(sizeof(CompactException)),
               64);
  return num_bytes * 8 <= packed_bytes(spec) * kMostOf8Parts ? num_bytes : 0;
}

void compact(const OpContext& context, const WeightSpec& spec, const std::byte* packed,
             std::byte* out) noexcept {
  const Shards shards(spec);
  const auto header = [&](std::int64_t i) {
    return reinterpret_cast<CompactShard*>(out + i * shards.to.shard_bytes);
  };
  context.pool->parallel_for(shards.count, [&](std::int64_t i) {
    const Window window = choose_window(packed + i * shards.from.shard_bytes, shards.lines);
    *header(i) = {window.exponent_base, window.num_exceptions};
  });
  std::int64_t end = shards.main_bytes();
  for (std::int64_t i = 0; i < shards.count; ++i) {
    const std::int64_t num_exceptions = header(i)->exceptions;
    header(i)->exceptions = end - i * shards.to.shard_bytes;
    end += (num_exceptions + 1) * static_cast<std::int64_t>(sizeof(CompactException));
  }
  context.pool->parallel_for(shards.count, [&](std::int64_t i) {
    auto* const to = reinterpret_cast<std::byte*>(header(i));
    encode_shard(packed + i * shards.from.shard_bytes, shards.lines, header(i)->exponent_base,
                 to + kCompactHeaderBytes,
                 reinterpret_cast<CompactException*>(to + header(i)->exceptions));
  });
}

}  // namespace troupe::TROUPE_ISA

#endif
