#pragma once
// Prepares keys and values of a chunk for a bf16 unit: in place in their pages, or as copies in a
// layout that the unit can read.

#include "kernels/cpu/attention_chunk.hpp"
#include "kernels/cpu/bf16.hpp"

namespace troupe::TROUPE_ISA {

inline constexpr std::int64_t kGroupTokens = 16;  ///< columns of a tile of scores
inline constexpr std::int64_t kPairTokens = 32;   ///< depth of a tile of weights
inline constexpr std::int64_t kChunkGroups = kChunkTokens / kGroupTokens;
inline constexpr std::int64_t kChunkPairs = kChunkTokens / kPairTokens;

/// 32 bytes from `from` on, each as its lane's lower byte with its sign.
TROUPE_INLINE __m512i load_bytes(const std::byte* from) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

/// 1/256 of 32 numbers of kF8E4M3: the same bits with another exponent; subnormals (below 2^-6) are
/// looked up.
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

/// 32 numbers in bf16, exactly; for kF8E4M3 1/256 of them.
template <ElementType kType>
TROUPE_INLINE __m512i widen_to_bf16(const std::byte* from) {
  if constexpr (kType == ElementType::kF8E4M3) {
    return bf16_of_f8e4m3(load_bytes(from));
  } else {
    const __m512bh halves =
        _mm512_cvtne2ps_pbh(load_as<kType>(from, 16).v, load_as<kType>(from, 0).v);
    return reinterpret_cast<__m512i>(halves);
  }
}

/// Values of a pair of groups as read by the unit: of each group 8 pairs of tokens, row_stride
/// bytes apart, each with 16 elements of both tokens; the next 16 elements are col_stride bytes
/// further.
struct GroupValues {
  const std::byte* groups[2];  ///< null: masked for all rows
  std::int64_t row_stride;
  std::int64_t col_stride;
};

/// The parts of a chunk shared by the tiles of rows.
struct StagedChunk {
  std::int64_t start = -1;  ///< position of its first token
  // Its tokens that some tile attends to.
  std::int64_t first = 0;
  std::int64_t last = -1;
  // One bit for each pair of groups that is staged.
  unsigned keys_staged = 0;
  unsigned values_staged = 0;
  // Partly visible groups in their pages, if pages hold whole groups.
  const std::byte* page_keys[kChunkGroups];
  const std::byte* page_values[kChunkGroups];
  ChunkScales scales;
  /// [kChunkPairs, head_dim / 16, 16 pairs of tokens, 16, 2] in bf16: tile after tile, an even
  /// number of them.
  alignas(64) std::byte values[kChunkTokens * kMaxHeadDim * 2];
};

/// Stages chunks for tiles of rows of one sequence and KV head, in order of their positions. Owns
/// nothing.
template <ElementType kType>
class ChunkStager {
 public:
  /// Of values: the pairs of a pair of groups by 16 elements.
  static constexpr std::int64_t kTileBytes = 1024;

  /// staged_keys: of one chunk, where they cannot be read in place, [group, head_dim / 2, 16, 2] in
  /// bf16.
  ChunkStager(const KvCacheView& cache, const QueryTile* tiles, int num_tiles,
              std::byte* staged_keys)
      : cache_(cache),
        head_dim_(cache.head_dim),
        padded_dim_(round_up(cache.head_dim, 32)),
        is_paired_(has_paired_pages(cache)),
        first_tile_(tiles[0]),
        last_tile_(tiles[num_tiles - 1]),
        staged_keys_(staged_keys) {}

  /// Begins a chunk, as far as all tiles attend to it; nothing of it is staged yet.
  void begin(StagedChunk& staged, std::int64_t start) const {
    staged.start = start;
    staged.first = max_of(0, first_tile_.first_visible[0] - start);
    staged.last =
        min_of(kChunkTokens - 1, last_tile_.last_visible[last_tile_.num_rows - 1] - start);
    staged.keys_staged = 0;
    staged.values_staged = 0;
    if (is_paired_) {
      for (std::int64_t group = staged.first / kGroupTokens; group <= staged.last / kGroupTokens;
           ++group) {
        const std::int64_t position = start + group * kGroupTokens;
        const std::int64_t t = position % cache_.block_size;
        staged.page_keys[group] = keys_at(position) + key_number(cache_, t, 0) * kNumberBytes;
        staged.page_values[group] = values_at(position) + value_number(cache_, t, 0) * kNumberBytes;
      }
    }
    if constexpr (kIsScaled)
      gather_scales(first_tile_, cache_, start, staged.first, staged.last, staged.scales);
  }

  /// The group's keys in the unit's layout, key_stride() bytes between pairs of elements. Pre:
  /// those of its pair are staged.
  [[nodiscard]] TROUPE_INLINE const std::byte* keys(const StagedChunk& staged,
                                                    std::int64_t group) const {
    return reads_pages() ? staged.page_keys[group]
                         : staged_keys_ + group * kGroupTokens * head_dim_ * 2;
  }
  [[nodiscard]] TROUPE_INLINE std::int64_t key_stride() const {
    return reads_pages() ? cache_.block_size * 4 : 64;
  }

  /// Whether keys, and values in pairs of tokens, can be read in place.
  [[nodiscard]] TROUPE_INLINE bool reads_pages() const { return is_paired_ && !kIsScaled; }
  /// The values of a pair of groups from element d on, in place. Pre: reads_pages().
  [[nodiscard]] TROUPE_INLINE GroupValues values_in_pages(const StagedChunk& staged,
                                                          std::int64_t pair, std::int64_t d) const {
    GroupValues values{{}, head_dim_ * 4, 64};
    for (std::int64_t i = 0; i < 2; ++i) {
      const std::int64_t group = 2 * pair + i;
      const bool is_seen =
          group * kGroupTokens <= staged.last && (group + 1) * kGroupTokens > staged.first;
      values.groups[i] = is_seen ? staged.page_values[group] + d * 4 : nullptr;
    }
    return values;
  }
  /// As above for those staged by stage_values.
  [[nodiscard]] TROUPE_INLINE GroupValues staged_values(const StagedChunk& staged,
                                                        std::int64_t pair, std::int64_t d) const {
    return in_tiles(staged.values + (pair * padded_dim_ + d) * kPairTokens * 2);
  }
  /// For two or more tiles.
  [[nodiscard]] TROUPE_INLINE static GroupValues in_tiles(const std::byte* tiles) {
    return {{tiles, tiles + kTileBytes / 2}, 64, kTileBytes};
  }

  /// Stages the keys of a pair of groups, if needed and not done yet.
  void stage_keys(StagedChunk& staged, std::int64_t pair) const {
    if (reads_pages() || (staged.keys_staged >> pair & 1) != 0) return;
    staged.keys_staged |= 1u << pair;
    for (std::int64_t group = 2 * pair; group < 2 * pair + 2; ++group) {
      if (group * kGroupTokens <= staged.last && (group + 1) * kGroupTokens > staged.first)
        stage_keys_of(staged, group);
    }
  }
  void stage_values(StagedChunk& staged, std::int64_t pair) const {
    if ((staged.values_staged >> pair & 1) != 0) return;
    staged.values_staged |= 1u << pair;
    for (std::int64_t d = 0; d < head_dim_; d += 32) {
      stage_slice(staged, pair, d, staged.first, staged.last, false,
                  staged.values + (pair * padded_dim_ + d) * kPairTokens * 2);
    }
  }

  /// Stages elements d ... d + 31 of the values of a pair of groups, as two tiles; zero where a
  /// head has less, and for tokens outside of [first, last], with `exactly` also in a group that is
  /// partly inside.
  void stage_slice(const StagedChunk& staged, std::int64_t pair, std::int64_t d, std::int64_t first,
                   std::int64_t last, bool exactly, std::byte* to) const {
    for (std::int64_t group = 2 * pair; group < 2 * pair + 2; ++group, to += kTileBytes / 2) {
      const std::int64_t begin = group * kGroupTokens;
      const std::int64_t end = begin + kGroupTokens;
      const bool is_seen = begin <= last && end > first;
      const bool is_all = begin >= first && end <= last + 1;
      if (is_paired_ && is_seen && (is_all || !exactly) && d + 32 <= head_dim_) {
        const std::byte* values = staged.page_values[group] + d * 2 * kNumberBytes;
        TROUPE_UNROLL
        for (std::int64_t row = 0; row < kGroupTokens / 2; ++row) {
          stage_vector(values, to + row * 64);
          stage_vector(values + 32 * kNumberBytes, to + kTileBytes + row * 64);
          values += head_dim_ * 2 * kNumberBytes;
        }
        continue;
      }
      std::memset(to, 0, kTileBytes / 2);
      std::memset(to + kTileBytes, 0, kTileBytes / 2);
      if (!is_seen) continue;
      for_each_token(staged.start, group, first, last, [&](std::int64_t i, std::int64_t position) {
        const std::byte* values = values_at(position);
        const std::int64_t t = position % cache_.block_size;
        for (std::int64_t e = 0; e < min_of(32, head_dim_ - d); ++e) {
          stage_number(values, value_number(cache_, t, d + e),
                       to + e / 16 * kTileBytes + i / 2 * 64 + (e % 16 * 2 + i % 2) * 2);
        }
      });
    }
  }

  /// Whether the group has a non-finite value, at least among its tokens in [first, last]. Only for
  /// kBF16.
  [[nodiscard]] bool has_broken_value(const StagedChunk& staged, std::int64_t group,
                                      std::int64_t first, std::int64_t last) const {
    if (is_paired_) return has_broken_number(staged.page_values[group], head_dim_ * kGroupTokens);
    bool broken = false;
    for_each_token(staged.start, group, first, last, [&](std::int64_t, std::int64_t position) {
      const std::int64_t number = value_number(cache_, position % cache_.block_size, 0);
      broken = broken || has_broken_number(values_at(position) + number * 2, head_dim_);
    });
    return broken;
  }

 private:
  /// 8-bit numbers, which have scales, are converted to bf16 when they are staged.
  static constexpr bool kIsScaled = scale_bytes(kType) != 0;
  static constexpr std::int64_t kNumberBytes = element_bytes(kType);

  /// The block of keys, or of values, of this position.
  [[nodiscard]] TROUPE_INLINE const std::byte* keys_at(std::int64_t position) const {
    return key_block(cache_, first_tile_.block_table[position / cache_.block_size],
                     first_tile_.kv_head);
  }
  [[nodiscard]] TROUPE_INLINE const std::byte* values_at(std::int64_t position) const {
    return value_block(cache_, first_tile_.block_table[position / cache_.block_size],
                       first_tile_.kv_head);
  }
  /// Calls f(index in the group, position) for the group's tokens among [first, last].
  template <class F>
  void for_each_token(std::int64_t start, std::int64_t group, std::int64_t first, std::int64_t last,
                      const F& f) const {
    for (std::int64_t i = 0; i < kGroupTokens; ++i) {
      const std::int64_t token = group * kGroupTokens + i;
      if (token >= first && token <= last) f(i, start + token);
    }
  }

  /// A number as bf16, exactly.
  TROUPE_INLINE static void stage_number(const std::byte* numbers, std::int64_t number,
                                         std::byte* to) {
    if constexpr (kIsScaled) {
      const std::uint16_t half = to_bf16(load_element<kType>(numbers, number));
      std::memcpy(to, &half, 2);
    } else {
      std::memcpy(to, numbers + number * 2, 2);
    }
  }
  /// 32 numbers as bf16.
  TROUPE_INLINE static void stage_vector(const std::byte* numbers, std::byte* to) {
    if constexpr (kIsScaled)
      _mm512_store_si512(to, widen_to_bf16<kType>(numbers));
    else
      _mm512_store_si512(to, _mm512_loadu_si512(numbers));
  }

  /// Stages the keys of a group in the layout of a page of 16 tokens in bf16.
  void stage_keys_of(const StagedChunk& staged, std::int64_t group) const {
    std::byte* to = staged_keys_ + group * kGroupTokens * head_dim_ * 2;
    if (is_paired_) {
      const std::byte* keys = staged.page_keys[group];
      for (std::int64_t pair = 0; pair < head_dim_ / 2; ++pair)
        stage_vector(keys + pair * cache_.block_size * 2 * kNumberBytes, to + pair * 64);
      return;
    }
    for_each_token(staged.start, group, staged.first, staged.last,
                   [&](std::int64_t i, std::int64_t position) {
                     const std::byte* keys = keys_at(position);
                     const std::int64_t t = position % cache_.block_size;
                     for (std::int64_t d = 0; d < head_dim_; ++d) {
                       stage_number(keys, key_number(cache_, t, d),
                                    to + ((d / 2 * kGroupTokens + i) * 2 + d % 2) * 2);
                     }
                   });
  }

  /// Pre: count is a multiple of 8.
  static bool has_broken_number(const std::byte* halves, std::int64_t count) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 broken = 0;
    std::int64_t i = 0;
    for (; i + 64 <= count * 2; i += 64) {
      const __m512i exponents = _mm512_and_si512(_mm512_loadu_si512(halves + i), exponent);
      broken |= _mm512_cmpeq_epi16_mask(exponents, exponent);
    }
    for (; i < count * 2; i += 16) {
      const __m128i of_eight = _mm512_castsi512_si128(exponent);
      const __m128i exponents =
          _mm_and_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves + i)), of_eight);
      broken |= _mm_cmpeq_epi16_mask(exponents, of_eight);
    }
    return broken != 0;
  }

  const KvCacheView& cache_;
  const std::int64_t head_dim_;
  const std::int64_t padded_dim_;
  const bool is_paired_;
  const QueryTile& first_tile_;
  const QueryTile& last_tile_;
  std::byte* const staged_keys_;
};

}  // namespace troupe::TROUPE_ISA
