#pragma once
// Epilogue of a block's sums: stores the product, or the gated activations.

#include <cstdint>

#include "kernels/cpu/math.hpp"
#include "kernels/cpu/matmul_layout.hpp"

namespace troupe::TROUPE_ISA {

/// The sums of one block of rows by one panel: those of shard s start at data + s * shard_stride,
/// those of a row at row * row_stride in them.
struct BlockSums {
  const float* data;
  std::int64_t shard_stride;
  std::int64_t row_stride;
  std::int64_t num_shards;

  /// A vector of a row's sums from column `col` on: the shards are added as a tree.
  [[nodiscard]] TROUPE_INLINE Vec at(std::int64_t row, std::int64_t col) const {
    const float* first = data + row * row_stride + col;
    Vec sum = load(first);
    if (num_shards >= 2) sum = sum + load(first + shard_stride);
    if (num_shards == 4)
      sum = sum + (load(first + 2 * shard_stride) + load(first + 3 * shard_stride));
    return sum;
  }
};

template <class Store>
TROUPE_INLINE void store_block(const Store& store, const BlockSums& sums, std::int64_t first_row,
                               std::int64_t num_rows, std::int64_t panel, std::int64_t panel_cols) {
  for (std::int64_t r = 0; r < num_rows; ++r)
    store.store_row(sums, r, first_row + r, panel, panel_cols);
}

/// out = sums + bias.
class StoreProduct {
 public:
  /// bias: may be null.
  StoreProduct(Matrix out, const float* bias)
      : out_(out),
        bias_(bias),
        bypasses_caches_(should_bypass_caches(out.data, out.num_rows, out.row_stride)) {}

  /// Row `row` of the product, from row r of the sums.
  TROUPE_INLINE void store_row(const BlockSums& sums, std::int64_t r, std::int64_t row,
                               std::int64_t panel, std::int64_t panel_cols) const {
    const std::int64_t first_col = panel * panel_cols;
    const std::int64_t num_cols = min_of(panel_cols, out_.num_cols - first_col);
    float* to = out_.row(row) + first_col;
    const auto number = [&](std::int64_t i, const auto& load_lanes) __attribute__((always_inline)) {
      const Vec sum = sums.at(r, i);
      return bias_ == nullptr ? sum : sum + load_lanes(bias_ + first_col + i);
    };
    if (bypasses_caches_ && num_cols == panel_cols) {
      const auto load_all = [](const float* p) { return load(p); };
      for (std::int64_t i = 0; i < panel_cols; i += kLanes)
        non_temporal_store(to + i, number(i, load_all));
      return;
    }
    for_each_vector(num_cols, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      store_lanes(to + i, number(i, load_lanes));
    });
  }
  /// Makes this thread's non-temporal stores visible to others.
  TROUPE_INLINE void finish() const {
    if (bypasses_caches_) finish_stores_around_caches();
  }

 private:
  Matrix out_;
  const float* bias_;
  bool bypasses_caches_;
};

/// Output of gated activations in f32.
struct WideRows {
  Matrix out;

  template <class StoreLanes>
  TROUPE_INLINE void put(std::int64_t row, std::int64_t col, Vec x,
                         const StoreLanes& store_lanes) const {
    store_lanes(out.row(row) + col, x);
  }
};

/// out = act(gate + bias + update) * (up + bias + update).
template <class Rows>
struct StoreGated {
  Rows out;
  Activation activation;
  SwishClamp clamp;
  const float* bias;  ///< of all gates, then of all `up`; may be null
  std::int64_t num_gates;
  ConstMatrix update;  ///< in the same order; without data: none
  Matrix copy;         ///< where `out` is left once more, in f32; without data: nowhere

  TROUPE_INLINE void store_row(const BlockSums& sums, std::int64_t r, std::int64_t row,
                               std::int64_t panel, std::int64_t panel_cols) const {
    const std::int64_t half = panel_cols / 2;
    const std::int64_t first_col = panel * half;
    for_each_vector(min_of(half, num_gates - first_col),
                    [&](std::int64_t i, auto load_lanes, auto store_lanes) {
                      Vec gate = sums.at(r, i);
                      Vec up = sums.at(r, half + i);
                      if (bias != nullptr) {
                        gate = gate + load_lanes(bias + first_col + i);
                        up = up + load_lanes(bias + num_gates + first_col + i);
                      }
                      if (update.data != nullptr) {
                        const float* const added = update.row(row) + first_col + i;
                        gate = gate + load_lanes(added);
                        up = up + load_lanes(added + num_gates);
                      }
                      if (activation == Activation::kClampedSwish) {
                        const Vec limit = broadcast(clamp.limit);
                        gate = swish(min(limit, gate), clamp.alpha);
                        up = max(zero() - limit, min(limit, up)) + broadcast(1.0f);
                      } else {
                        gate = activation == Activation::kSilu ? silu(gate) : gelu_tanh(gate);
                      }
                      out.put(row, first_col + i, gate * up, store_lanes);
                      if (copy.data != nullptr)
                        store_lanes(copy.row(row) + first_col + i, gate * up);
                    });
  }
  TROUPE_INLINE void finish() const {}
};

}  // namespace troupe::TROUPE_ISA
