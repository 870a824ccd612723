// Attention with a bf16 unit: the pipeline of a tile's chunks.
#include "kernels/cpu/attention_bf16.hpp"

#include "kernels/cpu/simd.hpp"

#if defined(TROUPE_BF16_UNIT)

#include "kernels/cpu/attention_merge.hpp"
#include "kernels/cpu/attention_staging.hpp"
#include "kernels/cpu/bf16.hpp"

#if defined(TROUPE_BF16_TILES)
#include "kernels/cpu/attention_tile_unit.hpp"
#else
#include "kernels/cpu/attention_dot_unit.hpp"
#endif

namespace troupe::TROUPE_ISA {

static_assert(kLanes == kGroupTokens);

/// One chunk of one tile of rows in the pipeline.
struct TileChunk {
  const QueryTile* tile = nullptr;
  const std::uint16_t* queries;  ///< [ceil(head_dim / 32), kQueryTileRows, 32] in bf16
  std::int64_t chunk;
  StagedChunk* staged;
  float (*scores)[kChunkTokens];
  std::uint16_t* weights;  ///< [kChunkPairs, kQueryTileRows, kPairTokens] in bf16
  SoftmaxState state;
  // The range of tokens of the chunk that each row attends to; empty: last < first.
  std::int64_t first[kQueryTileRows];
  std::int64_t last[kQueryTileRows];
  std::int64_t tile_first;
  std::int64_t tile_last;

  [[nodiscard]] std::int64_t first_pair() const { return tile_first / kPairTokens; }
  [[nodiscard]] std::int64_t end_pair() const { return tile_last / kPairTokens + 1; }
  [[nodiscard]] std::int64_t num_pairs() const { return end_pair() - first_pair(); }
};

/// Scratch memory of Bf16Attention; large, so one per thread.
struct Bf16Scratch {
  /// Chunks that have scores or weights at a time.
  static constexpr int kNumItems = AttentionUnit::kWorksBesideVectors ? 2 : 1;
  alignas(64) float scores[kNumItems][kQueryTileRows][kChunkTokens];
  alignas(64) std::uint16_t weights[kNumItems][kQueryTileRows * kChunkTokens];
  /// [tile, ceil(head_dim / 32), kQueryTileRows, 32] in bf16, zeros behind a head.
  alignas(64) std::uint16_t queries[kQueryTileRows * kMaxDimsAtOnce];
  /// Staged keys of one chunk, where they cannot be read in place: [group, head_dim / 2, 16, 2] in
  /// bf16.
  alignas(64) std::byte keys[kChunkTokens * kMaxHeadDim * 2];
  StagedChunk chunks[2];
  /// Values of a pair of groups, 32 elements of each: double-buffered.
  alignas(64) std::byte slices[2][2 * 1024];
  TileState parts[kNumItems];
  TileTotals totals;
};
// On the stack of a thread, which may have 2 MiB.
static_assert(sizeof(Bf16Scratch) < std::size_t{5} << 18);

/// Attention for up to tiles_at_once tiles of rows of one sequence and KV head, in order of their
/// positions.
template <ElementType kType>
class Bf16Attention {
 public:
  Bf16Attention(const AttentionArgs& args, const QueryTile* tiles, int num_tiles,
                Bf16Scratch& scratch)
      : args_(args),
        cache_(args.cache),
        head_dim_(args.cache.head_dim),
        stager_(args.cache, tiles, num_tiles, scratch.keys),
        tiles_(tiles),
        num_tiles_(num_tiles),
        scratch_(scratch) {
    for (int t = 0; t < num_tiles; ++t) round_queries(tiles[t], queries_of(t));
  }

  /// All chunks of all tiles.
  void attend() {
    ChunkRange chunks = visible_chunks(tiles_[0]);
    chunks.end = visible_chunks(tiles_[num_tiles_ - 1]).end;
    // A slot is free again when its values are added, two items later.
    TileChunk items[3];
    std::int64_t num_items = 0;
    for (std::int64_t chunk = chunks.first; chunk < chunks.end; ++chunk) {
      for (int t = 0; t < num_tiles_; ++t) {
        const ChunkRange of_tile = visible_chunks(tiles_[t]);
        if (chunk < of_tile.first || chunk >= of_tile.end) continue;
        TileChunk& item = items[num_items % 3];
        const std::int64_t buffer = num_items % Bf16Scratch::kNumItems;
        SoftmaxState state = scratch_.parts[buffer].view();
        if (chunk == of_tile.first) {
          const SoftmaxState total = total_of(t);
          if (all_see_chunk(tiles_[t], chunk))
            state = total;
          else
            clear(total, tiles_[t].num_rows, head_dim_);
        }
        begin(item, t, chunk, buffer, state);
        advance(&item);
        ++num_items;
      }
    }
    advance(nullptr);
    advance(nullptr);
    for (int t = 0; t < num_tiles_; ++t) write_out(args_, tiles_[t], total_of(t));
  }

  /// One chunk of the first tile.
  void attend_chunk(std::int64_t chunk, const SoftmaxState& state) {
    TileChunk item;
    begin(item, 0, chunk, 0, state);
    if (item.tile_last >= item.tile_first) attend(item);
  }

 private:
  struct Nothing {
    void step() {}
  };
  /// The stages one after the other.
  void attend(const TileChunk& item) {
    Nothing nothing;
    score(item, nothing);
    weigh(item, 0, item.tile->num_rows);
    add_values(item, nothing);
  }
  /// Merges the item into the total of its tile, unless it was computed in place.
  void merge(const TileChunk& item) {
    const SoftmaxState total = total_of(item.tile - tiles_);
    if (item.state.out != total.out)
      merge_chunk(*item.tile, item.chunk, head_dim_, item.state, total);
  }
  /// Computes the weights of an item's rows, some at each step of the interleaved computation.
  class Weigher {
   public:
    Weigher(Bf16Attention& attention, const TileChunk* item, std::int64_t num_steps)
        : attention_(attention), item_(item), num_steps_(num_steps) {}
    TROUPE_INLINE void step() {
      if (item_ == nullptr) return;
      due_ += item_->tile->num_rows;
      for (; due_ >= kSoftmaxRows * num_steps_; due_ -= kSoftmaxRows * num_steps_) {
        attention_.weigh(*item_, next_row_, next_row_ + kSoftmaxRows);
        next_row_ += kSoftmaxRows;
      }
    }
    void finish() {
      if (item_ != nullptr) attention_.weigh(*item_, next_row_, item_->tile->num_rows);
    }

   private:
    Bf16Attention& attention_;
    const TileChunk* item_;
    std::int64_t num_steps_;
    std::int64_t due_ = 0;
    int next_row_ = 0;
  };

  [[nodiscard]] std::uint16_t* queries_of(std::int64_t t) const {
    return scratch_.queries + t * kQueryTileRows * round_up(head_dim_, 32);
  }
  [[nodiscard]] SoftmaxState total_of(std::int64_t t) const {
    return scratch_.totals.of(t, head_dim_);
  }

  void begin(TileChunk& item, int t, std::int64_t chunk, std::int64_t buffer,
             const SoftmaxState& state) {
    const QueryTile& tile = tiles_[t];
    item.tile = &tile;
    item.queries = queries_of(t);
    item.chunk = chunk;
    item.staged = &scratch_.chunks[chunk % 2];
    item.scores = scratch_.scores[buffer];
    item.weights = scratch_.weights[buffer];
    item.state = state;
    item.tile_first = kChunkTokens;
    item.tile_last = -1;
    const std::int64_t start = chunk * kChunkTokens;
    for (int row = 0; row < tile.num_rows; ++row) {
      item.first[row] = max_of(0, tile.first_visible[row] - start);
      item.last[row] = min_of(kChunkTokens - 1, tile.last_visible[row] - start);
      if (item.last[row] < item.first[row]) continue;
      item.tile_first = min_of(item.tile_first, item.first[row]);
      item.tile_last = max_of(item.tile_last, item.last[row]);
    }
  }

  /// The next item, if any, enters the pipeline; the others advance by one stage.
  void advance(const TileChunk* next) {
    if constexpr (!AttentionUnit::kWorksBesideVectors) {
      if (next == nullptr) return;
      attend(*next);
      return merge(*next);
    }
    const std::int64_t steps_per_pair = head_dim_ / 32;
    const auto num_steps = [&](const TileChunk* item) {
      return item == nullptr ? 0 : item->num_pairs() * steps_per_pair;
    };
    Weigher weigher(*this, scored_, num_steps(weighed_) + num_steps(next));
    if (weighed_ != nullptr) {
      add_values(*weighed_, weigher);
      merge(*weighed_);
    }
    if (next != nullptr) score(*next, weigher);
    weigher.finish();
    weighed_ = scored_;
    scored_ = next;
  }

  void round_queries(const QueryTile& tile, std::uint16_t* queries) const {
    for (std::int64_t row = 0; row < tile.num_rows; ++row) {
      for (std::int64_t d = 0; d < head_dim_; d += 32)
        round_to_bf16(tile.q[row] + d, min_of(32, head_dim_ - d), 32,
                      queries + (d * kQueryTileRows + row * 32));
    }
  }

  /// Prefetches the values of a group, which are needed after all scores, and the keys of a later
  /// one: few rows are bound by memory.
  TROUPE_INLINE void prefetch(const TileChunk& item, std::int64_t group) const {
    constexpr std::int64_t kGroupsAhead = 4;
    const std::int64_t bytes = head_dim_ * kGroupTokens * element_bytes(kType);
    const std::byte* values = item.staged->page_values[group];
    for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(values + i, 0, 2);
    // The next chunk is this thread's, too, if it has the whole tile.
    const QueryTile& tile = *item.tile;
    const std::int64_t start = item.chunk * kChunkTokens;
    const std::int64_t last =
        tile.is_whole ? tile.last_visible[tile.num_rows - 1] : start + item.tile_last;
    const std::int64_t position = start + (group + kGroupsAhead) * kGroupTokens;
    if (position > last) return;
    const std::int64_t block = tile.block_table[position / kGroupTokens];
    const std::byte* keys = key_block(cache_, block, tile.kv_head);
    for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(keys + i, 0, 2);
  }

  /// Unscaled scores of the tile's rows for its tokens of the chunk; the chunk is staged meanwhile.
  template <class Beside>
  void score(const TileChunk& item, Beside& beside) {
    StagedChunk& staged = *item.staged;
    const std::int64_t start = item.chunk * kChunkTokens;
    if (staged.start != start) stager_.begin(staged, start);
    const std::int64_t stride = stager_.key_stride();
    const bool prefetches =
        has_few_rows(item) && has_paired_pages(cache_) && cache_.block_size == kGroupTokens;
    const std::int64_t first_group = item.tile_first / kGroupTokens;
    const std::int64_t end_group = item.tile_last / kGroupTokens + 1;
    stager_.stage_keys(staged, item.first_pair());
    for (std::int64_t pair = item.first_pair(); pair < item.end_pair(); ++pair) {
      const std::int64_t group = 2 * pair;
      if (prefetches) {
        prefetch(item, max_of(group, first_group));
        if (group + 1 < end_group) prefetch(item, group + 1);
      }
      // Freshly stored data cannot be loaded as tiles for a while.
      if (pair + 1 < item.end_pair()) stager_.stage_keys(staged, pair + 1);
      // Scores of a group that no row attends to are not used: any keys will do.
      const std::byte* const keys = stager_.keys(staged, max_of(group, first_group));
      if (group + 1 < end_group)
        score_groups<2>(item, group, {keys, stager_.keys(staged, group + 1)}, stride, beside);
      else
        score_groups<1>(item, group, {keys, nullptr}, stride, beside);
      if (where_values_are(item) == Values::kStaged) stager_.stage_values(staged, pair);
    }
  }
  template <int kGroups, class Beside>
  void score_groups(const TileChunk& item, std::int64_t group, const std::byte* const (&keys)[2],
                    std::int64_t stride, Beside& beside) {
    unit_.template score<kGroups>(item.tile->num_rows, head_dim_, item.queries, keys, stride,
                                  item.scores[0] + group * kGroupTokens, beside);
  }

  [[nodiscard]] static bool has_few_rows(const TileChunk& item) {
    return item.tile->num_rows <= AttentionUnit::kFewRows;
  }
  enum class Values {
    kInPages,   ///< read in place
    kInSlices,  ///< staged where they are used: only this tile needs them, and they stay in cache
    kStaged,    ///< for all tiles
  };
  [[nodiscard]] Values where_values_are(const TileChunk& item) const {
    if (AttentionUnit::kReadsPages && stager_.reads_pages()) return Values::kInPages;
    return has_few_rows(item) ? Values::kInSlices : Values::kStaged;
  }

  /// The softmax of rows [begin, end), their weights in bf16; 0 for masked tokens.
  void weigh(const TileChunk& item, int begin, int end) const {
    // The weights of the group that starts with token i.
    const auto put = [&item](int row, std::int64_t i, Vec lanes) __attribute__((always_inline)) {
      std::uint16_t* to = item.weights + row * kPairTokens + (i & -kPairTokens) * kQueryTileRows +
                          (i & kGroupTokens);
      _mm256_store_si256(reinterpret_cast<__m256i*>(to),
                         reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(lanes.v)));
    };
    for (int row = begin; row < end; ++row) {
      const bool is_visible = item.first[row] <= item.last[row];
      const std::int64_t end_token = item.end_pair() * kPairTokens;
      const std::int64_t first = is_visible ? item.first[row] : end_token;
      std::int64_t i = item.first_pair() * kPairTokens;
      for (; i + kGroupTokens <= first; i += kGroupTokens) put(row, i, zero());
      if (!is_visible) continue;
      i = item.last[row] / kGroupTokens * kGroupTokens + kGroupTokens;
      for (; i < end_token; i += kGroupTokens) put(row, i, zero());
    }
    softmax_of_rows<kType>(args_, item.staged->scales, item.scores, item.first, item.last, begin,
                           end, item.state, put);
  }

  /// Whether a group that is partly masked for some row has a non-finite value; slots that were
  /// never written may. 8-bit numbers are always finite.
  [[nodiscard]] bool has_hidden_broken_value(const TileChunk& item) const {
    if constexpr (scale_bytes(kType) != 0) return false;
    std::int64_t common_first = 0;
    std::int64_t common_last = kChunkTokens - 1;
    for (int row = 0; row < item.tile->num_rows; ++row) {
      common_first = max_of(common_first, item.first[row]);
      common_last = min_of(common_last, item.last[row]);
    }
    // Staged data covers whole pairs, with tokens that none of these rows attends to.
    const StagedChunk& staged = *item.staged;
    const bool is_alone = where_values_are(item) == Values::kInSlices;
    const std::int64_t seen_first =
        is_alone ? item.tile_first : max_of(staged.first, item.first_pair() * kPairTokens);
    const std::int64_t seen_last =
        is_alone ? item.tile_last : min_of(staged.last, item.end_pair() * kPairTokens - 1);
    for (std::int64_t group = seen_first / kGroupTokens; group <= seen_last / kGroupTokens;
         ++group) {
      const std::int64_t first = group * kGroupTokens;
      if (first >= common_first && first + kGroupTokens - 1 <= common_last) continue;
      if (stager_.has_broken_value(staged, group, seen_first, seen_last)) return true;
    }
    return false;
  }
  /// out = weights times values.
  template <class Beside>
  void add_values(const TileChunk& item, Beside& beside) {
    const QueryTile& tile = *item.tile;
    if (!has_hidden_broken_value(item)) {
      return add_values(item, 0, tile.num_rows, item.tile_first, item.tile_last,
                        where_values_are(item), beside);
    }
    // A weight of 0 does not mask non-finite values: each row alone, with its visible tokens.
    Nothing nothing;
    for (int row = 0; row < tile.num_rows; ++row) {
      if (item.last[row] < item.first[row]) continue;
      add_values(item, row, 1, item.first[row], item.last[row], Values::kInSlices, nothing);
    }
  }
  template <class Beside>
  void add_values(const TileChunk& item, int first_row, int num_rows, std::int64_t first,
                  std::int64_t last, Values where, Beside& beside) {
    std::int64_t num_cols = 0;
    for (std::int64_t d = 0; d < head_dim_; d += num_cols) {
      num_cols = AttentionUnit::value_cols(num_rows, head_dim_ - d, where == Values::kInSlices);
      const auto values_of = [&](std::int64_t pair) {
        if (where == Values::kInPages) return stager_.values_in_pages(*item.staged, pair, d);
        if (where == Values::kStaged) return stager_.staged_values(*item.staged, pair, d);
        std::byte* slice = scratch_.slices[pair % 2];
        stager_.stage_slice(*item.staged, pair, d, first, last, num_rows == 1, slice);
        return stager_.in_tiles(slice);
      };
      unit_.add_values(num_rows, num_cols, first / kPairTokens, last / kPairTokens + 1,
                       item.weights + first_row * kPairTokens, values_of,
                       item.state.out + first_row * head_dim_ + d, head_dim_, beside);
    }
  }

  const AttentionArgs& args_;
  const KvCacheView& cache_;
  const std::int64_t head_dim_;
  const ChunkStager<kType> stager_;
  const QueryTile* const tiles_;
  const int num_tiles_;
  Bf16Scratch& scratch_;
  AttentionUnit unit_;
  const TileChunk* scored_ = nullptr;
  const TileChunk* weighed_ = nullptr;
};

namespace {

/// Calls f(Bf16Attention) for the cache's type.
template <class F>
void with_bf16_attention(const AttentionArgs& args, const QueryTile* tiles, int num_tiles,
                         const F& f) {
  Bf16Scratch scratch;
  const auto call = [&](auto type) {
    Bf16Attention<decltype(type)::value> attention(args, tiles, num_tiles, scratch);
    f(attention);
  };
  if (args.cache.type == ElementType::kI8) return call(ElementConstant<ElementType::kI8>{});
  if (args.cache.type == ElementType::kF8E4M3) return call(ElementConstant<ElementType::kF8E4M3>{});
  call(ElementConstant<ElementType::kBF16>{});
}

}  // namespace

void attend_in_bf16(const AttentionArgs& args, const QueryTile* tiles, int num_tiles) {
  with_bf16_attention(args, tiles, num_tiles, [](auto& attention) { attention.attend(); });
}

void attend_chunk_in_bf16(const AttentionArgs& args, const QueryTile& tile, std::int64_t chunk,
                          const SoftmaxState& state) {
  with_bf16_attention(args, &tile, 1,
                      [&](auto& attention) { attention.attend_chunk(chunk, state); });
}

}  // namespace troupe::TROUPE_ISA

#endif
