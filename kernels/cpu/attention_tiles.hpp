#pragma once
// attend_chunk with the bf16 unit of AMX, for caches in bf16 and in 8 bits: scores are products of
// tiles of queries and keys, outputs products of tiles of weights (of the softmax) and values, both
// rounded to bf16 on their way in; numbers of 8 bits are exact in bf16. Values are taken 16 tokens
// at a time, counted from position 0, whatever the block size, so that a row's sums always run in
// the same order.

#include "kernels/cpu/attention_chunk.hpp"
#include "kernels/cpu/bf16.hpp"
#include "kernels/cpu/tiles.hpp"

namespace troupe::TROUPE_ISA {

inline constexpr std::int64_t kGroupTokens = 16;
inline constexpr std::int64_t kTileBytes = 1024;
static_assert(kLanes == kGroupTokens && kTileRows == 32);

/// 32 bytes from `from` on, each as its lane's lower byte with its sign.
TROUPE_INLINE __m512i load_bytes(const std::byte* from) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

/// 1/256 of 32 numbers of kF8E4M3: the bits with another exponent; those below 2^-6, which have
/// none, are looked up.
TROUPE_INLINE __m512i bf16_of_f8e4m3(__m512i bytes) {
  alignas(64) static constexpr std::uint16_t kSubnormal[32] = {
      0x0000, 0x3700, 0x3780, 0x37c0, 0x3800, 0x3820, 0x3840, 0x3860};  // m 2^-17
  const __m512i size = _mm512_and_si512(_mm512_slli_epi16(bytes, 4), _mm512_set1_epi16(0x07f0));
  const __m512i normal = _mm512_add_epi16(size, _mm512_set1_epi16(112 << 7));
  const __mmask32 is_subnormal = _mm512_testn_epi16_mask(bytes, _mm512_set1_epi16(0x78));
  const __m512i halves =
      _mm512_mask_permutexvar_epi16(normal, is_subnormal, bytes, _mm512_load_si512(kSubnormal));
  const __m512i sign = _mm512_set1_epi16(static_cast<short>(0x8000));
  return _mm512_ternarylogic_epi64(halves, bytes, sign, 0xf8);  // halves | (bytes & sign)
}

/// to[0, count) = from[0, count) in bf16, exactly; of kF8E4M3 1/256 of it. Pre: count is a multiple
/// of 32.
template <ElementType kType>
TROUPE_INLINE void widen_to_bf16(const std::byte* from, std::int64_t count, std::byte* to) {
  for (std::int64_t i = 0; i < count; i += 32) {
    if constexpr (kType == ElementType::kF8E4M3) {
      _mm512_storeu_si512(to + i * 2, bf16_of_f8e4m3(load_bytes(from + i)));
    } else {
      const __m512bh halves =
          _mm512_cvtne2ps_pbh(load_as<kType>(from, i + 16).v, load_as<kType>(from, i).v);
      _mm512_storeu_si512(to + i * 2, reinterpret_cast<__m512i>(halves));
    }
  }
}

/// attend_chunk for one tile of rows. It owns nothing; see attend_chunk for what it computes.
template <ElementType kType>
class TileAttention {
 public:
  TileAttention(const AttentionArgs& args, const QueryTile& tile, std::int64_t chunk,
                ChunkScratch& scratch, const SoftmaxState& state)
      : args_(args),
        cache_(args.cache),
        tile_(tile),
        chunk_start_(chunk * kChunkTokens),
        head_dim_(args.cache.head_dim),
        scratch_(scratch),
        state_(state) {
    for (int row = 0; row < tile.num_rows; ++row) {
      first_[row] = max_of(0, tile.first_visible[row] - chunk_start_);
      last_[row] = min_of(kChunkTokens - 1, tile.last_visible[row] - chunk_start_);
      if (last_[row] < first_[row]) continue;
      tile_first_ = min_of(tile_first_, first_[row]);
      tile_last_ = max_of(tile_last_, last_[row]);
    }
  }

  void run() {
    if (tile_last_ < tile_first_) return;
    first_group_ = tile_first_ / kGroupTokens;
    end_group_ = tile_last_ / kGroupTokens + 1;
    if (scratch_.queries_of != &tile_) round_queries();
    scratch_.queries_of = &tile_;
    if constexpr (kIsScaled) {
      gather_scales(tile_, cache_, chunk_start_, tile_first_, tile_last_, scratch_);
    }
    score();
    for (int row = 0; row < tile_.num_rows; ++row) weigh(row);
    if (has_hidden_broken_value()) {
      // A weight of 0 does not keep out what is not finite: each row alone, with what it sees.
      configure(1, kGroupTokens);
      for (int row = 0; row < tile_.num_rows; ++row) {
        if (last_[row] >= first_[row]) add_values(row, 1, first_[row], last_[row], true);
      }
    } else {
      configure(tile_.num_rows, kGroupTokens);
      add_values(0, tile_.num_rows, tile_first_, tile_last_, kIsScaled || !has_tiled_pages(cache_));
    }
    release_tiles();
  }

 private:
  /// Numbers of 8 bits, which have scales, are staged in bf16 on their way into tiles.
  static constexpr bool kIsScaled = scale_bytes(kType) != 0;
  static constexpr std::int64_t kNumberBytes = element_bytes(kType);

  /// Tiles 4 and 5 hold rows of queries or weights, `depth` numbers each, 6 and 7 keys or values of
  /// that depth; the sums are 0, 1 (of 4 with 6, 7) and 2, 3 (of 5). Up to 16 rows need no 5.
  static void configure(int num_rows, std::int64_t depth) {
    const int upper_rows = num_rows < 16 ? num_rows : 16;
    const int lower_rows = num_rows <= 16 ? upper_rows : num_rows - 16;
    TileConfig config;
    for (int i = 0; i < 8; ++i) {
      const bool lower = i == 2 || i == 3 || i == 5;
      config.row_bytes[i] = static_cast<std::uint16_t>(i == 4 || i == 5 ? depth * 2 : 64);
      config.num_rows[i] =
          static_cast<std::uint8_t>(i >= 6 ? depth / 2 : (lower ? lower_rows : upper_rows));
    }
    load_tile_config(config);
  }

  /// q as [head_dim / 32, kTileRows, 32] in bf16.
  void round_queries() {
    for (int row = 0; row < tile_.num_rows; ++row) {
      for (std::int64_t d = 0; d < head_dim_; d += 32) {
        round_to_bf16(tile_.q[row] + d, 32, 32, scratch_.queries + (d * kTileRows + row * 32));
      }
    }
  }

  /// Where the group's keys or values lie in their block.
  TROUPE_INLINE const std::byte* keys_of(std::int64_t group) const {
    const std::int64_t position = chunk_start_ + group * kGroupTokens;
    return key_block(cache_, tile_.block_table[position / cache_.block_size], tile_.kv_head) +
           key_number(cache_, position % cache_.block_size, 0) * kNumberBytes;
  }
  TROUPE_INLINE const std::byte* values_of(std::int64_t group) const {
    const std::int64_t position = chunk_start_ + group * kGroupTokens;
    return value_block(cache_, tile_.block_table[position / cache_.block_size], tile_.kv_head) +
           value_number(cache_, position % cache_.block_size, 0) * kNumberBytes;
  }
  /// The group's tokens among [first, last], at their numbers in it: f(number, block of keys, block
  /// of values, number in the block).
  template <class F>
  void for_each_token(std::int64_t group, std::int64_t first, std::int64_t last, const F& f) const {
    for (std::int64_t i = 0; i < kGroupTokens; ++i) {
      const std::int64_t token = group * kGroupTokens + i;
      if (token < first || token > last) continue;
      const std::int64_t position = chunk_start_ + token;
      const std::int64_t block = tile_.block_table[position / cache_.block_size];
      f(i, key_block(cache_, block, tile_.kv_head), value_block(cache_, block, tile_.kv_head),
        position % cache_.block_size);
    }
  }

  /// A number as bf16, which it is or which holds it exactly.
  TROUPE_INLINE static void stage_number(const std::byte* numbers, std::int64_t number,
                                         std::byte* to) {
    if constexpr (kIsScaled) {
      const std::uint16_t half = to_bf16(load_element<kType>(numbers, number));
      std::memcpy(to, &half, 2);
    } else {
      std::memcpy(to, numbers + number * 2, 2);
    }
  }

  /// The keys of the group and, if there is one, the next, as tiles of bf16 in pages, for pages
  /// that hold numbers of 8 bits: rows of 16 tokens. It returns where; the place before stays as it
  /// is.
  const std::byte* widen_keys(std::int64_t group) const {
    std::byte* const first = scratch_.widened_keys[(group - first_group_) / 2 % 2];
    std::byte* to = first;
    const std::int64_t end = min_of(group + 2, end_group_);
    for (; group < end; ++group) {
      const std::byte* keys = keys_of(group);
      for (std::int64_t pair = 0; pair < head_dim_ / 2; ++pair, to += 64)
        widen_to_bf16<kType>(keys + pair * cache_.block_size * 2, 2 * kGroupTokens, to);
    }
    return first;
  }

  /// The group's keys as pages of 16 tokens would hold them, for blocks that do not hold groups.
  const std::byte* stage_keys(std::int64_t group) const {
    for_each_token(group, tile_first_, tile_last_,
                   [&](std::int64_t i, const std::byte* keys, const std::byte*, std::int64_t t) {
                     for (std::int64_t d = 0; d < head_dim_; ++d) {
                       stage_number(keys, key_number(cache_, t, d),
                                    scratch_.staged_keys + ((d / 2 * 16 + i) * 2 + d % 2) * 2);
                     }
                   });
    return scratch_.staged_keys;
  }

  /// Asks for what the next groups need: for a few rows, memory is what they wait for.
  TROUPE_INLINE void prefetch(std::int64_t group) const {
    constexpr std::int64_t kGroupsAhead = 4;
    const std::int64_t bytes = head_dim_ * kGroupTokens * kNumberBytes;
    const std::byte* values = values_of(group);
    for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(values + i, 0, 2);
    const std::int64_t next = group + kGroupsAhead;
    const std::int64_t last =
        tile_.is_whole ? tile_.last_visible[tile_.num_rows - 1] - chunk_start_ : tile_last_;
    if (next * kGroupTokens > last) return;
    const std::byte* keys = keys_of(next);
    for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(keys + i, 0, 2);
  }

  /// Unscaled scores of all rows for the groups.
  void score() {
    configure(tile_.num_rows, 32);
    const bool tiled = has_tiled_pages(cache_);
    const bool prefetches = tile_.num_rows <= 16 && tiled && cache_.block_size == kGroupTokens;
    const std::int64_t stride = tiled && !kIsScaled ? cache_.block_size * 4 : 64;
    if (!tiled) {
      for (std::int64_t group = first_group_; group < end_group_; ++group)
        score_groups<1>(stage_keys(group), nullptr, stride, group);
      return;
    }
    const std::byte* widened = nullptr;
    if constexpr (kIsScaled) widened = widen_keys(first_group_);
    for (std::int64_t group = first_group_; group < end_group_; group += 2) {
      const bool is_pair = group + 1 < end_group_;
      if (prefetches) {
        prefetch(group);
        if (is_pair) prefetch(group + 1);
      }
      const std::byte* keys;
      const std::byte* next_keys = nullptr;
      if constexpr (kIsScaled) {
        keys = widened;
        next_keys = widened + head_dim_ * kGroupTokens * 2;
        // What was just stored cannot be loaded as tiles for a while.
        if (group + 2 < end_group_) widened = widen_keys(group + 2);
      } else {
        keys = keys_of(group);
        if (is_pair) next_keys = keys_of(group + 1);
      }
      if (is_pair)
        score_groups<2>(keys, next_keys, stride, group);
      else
        score_groups<1>(keys, nullptr, stride, group);
    }
  }

  template <int kGroups>
  void score_groups(const std::byte* keys, const std::byte* next_keys, std::int64_t stride,
                    std::int64_t group) {
    const bool lower = tile_.num_rows > 16;
    TROUPE_TILE_ZERO(0);
    TROUPE_TILE_ZERO(1);
    TROUPE_TILE_ZERO(2);
    TROUPE_TILE_ZERO(3);
    for (std::int64_t d = 0; d < head_dim_; d += 32) {
      const std::uint16_t* queries = scratch_.queries + d * kTileRows;
      TROUPE_TILE_LOAD(4, queries, 64);
      TROUPE_TILE_LOAD(6, keys + d / 2 * stride, stride);
      TROUPE_TILE_DOT(0, 4, 6);
      if constexpr (kGroups == 2) {
        TROUPE_TILE_LOAD(7, next_keys + d / 2 * stride, stride);
        TROUPE_TILE_DOT(1, 4, 7);
      }
      if (!lower) continue;
      TROUPE_TILE_LOAD(5, queries + 16 * 32, 64);
      TROUPE_TILE_DOT(2, 5, 6);
      if constexpr (kGroups == 2) TROUPE_TILE_DOT(3, 5, 7);
    }
    constexpr std::int64_t kStride = kChunkTokens * 4;
    float* scores = scratch_.scores[0] + group * kGroupTokens;
    TROUPE_TILE_STORE(0, scores, kStride);
    if constexpr (kGroups == 2) TROUPE_TILE_STORE(1, scores + kGroupTokens, kStride);
    if (!lower) return;
    scores = scratch_.scores[16] + group * kGroupTokens;
    TROUPE_TILE_STORE(2, scores, kStride);
    if constexpr (kGroups == 2) TROUPE_TILE_STORE(3, scores + kGroupTokens, kStride);
  }

  /// The row's softmax, its weights as [group, kTileRows, 16] in bf16; 0 for what it does not see.
  void weigh(int row) {
    std::int64_t group = first_group_;
    const auto put = [&](Vec weights) __attribute__((always_inline)) {
      _mm256_store_si256(
          reinterpret_cast<__m256i*>(scratch_.weights + (group * kTileRows + row) * kGroupTokens),
          reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(weights.v)));
      ++group;
    };
    if (last_[row] >= first_[row]) {
      while (group < first_[row] / kGroupTokens) put(zero());
      softmax_scores<kType>(
          args_, scratch_, scratch_.scores[row], first_[row], last_[row], &state_.max[row],
          &state_.sum[row], [&](std::int64_t, Vec weights) __attribute__((always_inline)) {
            put(weights);
          });
    }
    while (group < end_group_) put(zero());
  }

  /// Whether a group that some row sees only a part of has a value that is not finite; what was
  /// never written may be such. Numbers of 8 bits are finite, whatever their bits.
  bool has_hidden_broken_value() const {
    if constexpr (kIsScaled) return false;
    std::int64_t common_first = 0;
    std::int64_t common_last = kChunkTokens - 1;
    for (int row = 0; row < tile_.num_rows; ++row) {
      common_first = max_of(common_first, first_[row]);
      common_last = min_of(common_last, last_[row]);
    }
    for (std::int64_t group = first_group_; group < end_group_; ++group) {
      const std::int64_t first = group * kGroupTokens;
      if (first >= common_first && first + kGroupTokens - 1 <= common_last) continue;
      if (has_tiled_pages(cache_)) {
        if (has_broken_number(values_of(group), head_dim_ * kGroupTokens)) return true;
        continue;
      }
      bool broken = false;
      for_each_token(group, tile_first_, tile_last_,
                     [&](std::int64_t, const std::byte*, const std::byte* values, std::int64_t t) {
                       const std::byte* token = values + value_number(cache_, t, 0) * 2;
                       broken = broken || has_broken_number(token, head_dim_);
                     });
      if (broken) return true;
    }
    return false;
  }
  /// Pre: count is a multiple of 32.
  static bool has_broken_number(const std::byte* halves, std::int64_t count) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 broken = 0;
    for (std::int64_t i = 0; i < count * 2; i += 64) {
      const __m512i exponents = _mm512_and_si512(_mm512_loadu_si512(halves + i), exponent);
      broken |= _mm512_cmpeq_epi16_mask(exponents, exponent);
    }
    return broken != 0;
  }

  /// out[first_row ...] = weights times values; of values only the tokens in [first, last] where
  /// they must be staged: for a row alone, from blocks that do not hold groups, or in bf16.
  void add_values(int first_row, int num_rows, std::int64_t first, std::int64_t last, bool staged) {
    const bool lower = num_rows > 16;
    const std::int64_t stride = staged ? 2 * 64 : head_dim_ * 4;
    for (std::int64_t d = 0; d < head_dim_; d += 32) {
      TROUPE_TILE_ZERO(0);
      TROUPE_TILE_ZERO(1);
      TROUPE_TILE_ZERO(2);
      TROUPE_TILE_ZERO(3);
      const std::int64_t end = last / kGroupTokens + 1;
      const std::byte* next = staged ? stage_values(first / kGroupTokens, d, first, last) : nullptr;
      for (std::int64_t group = first / kGroupTokens; group < end; ++group) {
        const std::byte* values = staged ? next : values_of(group) + d * 4;
        if (staged && group + 1 < end) next = stage_values(group + 1, d, first, last);
        const std::uint16_t* weights =
            scratch_.weights + (group * kTileRows + first_row) * kGroupTokens;
        TROUPE_TILE_LOAD(4, weights, kGroupTokens * 2);
        TROUPE_TILE_LOAD(6, values, stride);
        TROUPE_TILE_LOAD(7, values + 64, stride);
        TROUPE_TILE_DOT(0, 4, 6);
        TROUPE_TILE_DOT(1, 4, 7);
        if (!lower) continue;
        TROUPE_TILE_LOAD(5, weights + 16 * kGroupTokens, kGroupTokens * 2);
        TROUPE_TILE_DOT(2, 5, 6);
        TROUPE_TILE_DOT(3, 5, 7);
      }
      const std::int64_t out_stride = head_dim_ * 4;
      float* out = state_.out + first_row * head_dim_ + d;
      TROUPE_TILE_STORE(0, out, out_stride);
      TROUPE_TILE_STORE(1, out + 16, out_stride);
      if (!lower) continue;
      TROUPE_TILE_STORE(2, out + 16 * head_dim_, out_stride);
      TROUPE_TILE_STORE(3, out + 16 * head_dim_ + 16, out_stride);
    }
  }

  /// Elements d to d + 31 of the group's values, zero outside of [first, last]: [8, 32, 2]. Those
  /// of the group before stay where they are.
  const std::byte* stage_values(std::int64_t group, std::int64_t d, std::int64_t first,
                                std::int64_t last) const {
    std::byte* const staged = scratch_.staged_values[group % 2];
    if constexpr (kIsScaled) {
      if (has_tiled_pages(cache_)) {
        // The weights of tokens outside are zero.
        const std::byte* values = values_of(group) + d * 2;
        for (std::int64_t pair = 0; pair < kGroupTokens / 2; ++pair)
          widen_to_bf16<kType>(values + pair * head_dim_ * 2, 64, staged + pair * 128);
        return staged;
      }
    }
    std::memset(staged, 0, sizeof scratch_.staged_values[0]);
    for_each_token(group, first, last,
                   [&](std::int64_t i, const std::byte*, const std::byte* values, std::int64_t t) {
                     for (std::int64_t e = 0; e < 32; ++e) {
                       stage_number(values, value_number(cache_, t, d + e),
                                    staged + ((i / 2 * 32 + e) * 2 + i % 2) * 2);
                     }
                   });
    return staged;
  }

  const AttentionArgs& args_;
  const KvCacheView& cache_;
  const QueryTile& tile_;
  std::int64_t chunk_start_;
  std::int64_t head_dim_;
  ChunkScratch& scratch_;
  const SoftmaxState& state_;
  std::int64_t first_[kTileRows];
  std::int64_t last_[kTileRows];
  std::int64_t tile_first_ = kChunkTokens;
  std::int64_t tile_last_ = -1;
  std::int64_t first_group_ = 0;
  std::int64_t end_group_ = 0;
};

}  // namespace troupe::TROUPE_ISA
