// The low-rank updates of adapters.
#include <vector>

#include "tests/kernels/backend_tables.hpp"

namespace troupe {
namespace {

using namespace testing;

constexpr ElementType kAdapterTypes[] = {ElementType::kF32, ElementType::kBF16};

/// Three pieces with gaps between their columns, whose ranks are no multiple of the step.
class TestAdapter {
 public:
  static constexpr std::int32_t kRanks[] = {3, 8, 5};
  static constexpr std::int32_t kFirstRanks[] = {0, 4, 12};
  static constexpr std::int64_t kFirstCols[] = {0, 40, 600};
  static constexpr std::int64_t kNumCols[] = {37, 513, 1100};
  static constexpr std::int32_t kNumRanks = 20;
  static constexpr std::int64_t kOutCols = 1701;

  TestAdapter(ElementType type, std::int64_t depth, std::uint32_t seed)
      : a_(type, kNumRanks, depth, seed) {
    weight_.a = a_.view().data;
    weight_.num_ranks = kNumRanks;
    weight_.num_pieces = 3;
    for (std::size_t i = 0; i < 3; ++i)
      b_.emplace_back(type, kRanks[i], kNumCols[i], seed + 10 + static_cast<std::uint32_t>(i));
    for (std::size_t i = 0; i < 3; ++i)
      weight_.pieces[i] = {.b = b_[i].view().data,
                           .first_rank = kFirstRanks[i],
                           .rank = kRanks[i],
                           .first_col = kFirstCols[i],
                           .num_cols = kNumCols[i],
                           .scaling = 0.5f + static_cast<float>(i)};
  }
  [[nodiscard]] const AdapterWeight& weight() const { return weight_; }
  /// What it adds to column `col` for a row of x.
  [[nodiscard]] double exact(const float* x, std::int64_t depth, std::int64_t col) const {
    double sum = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      const std::int64_t own = col - kFirstCols[i];
      if (own < 0 || own >= kNumCols[i]) continue;
      for (std::int64_t rank = 0; rank < kRanks[i]; ++rank) {
        double shrunk = 0;
        for (std::int64_t k = 0; k < depth; ++k)
          shrunk += double{x[k]} *
                    a_.values[static_cast<std::size_t>((kFirstRanks[i] + rank) * depth + k)];
        sum += double{weight_.pieces[i].scaling} * shrunk *
               b_[i].values[static_cast<std::size_t>(rank * kNumCols[i] + own)];
      }
    }
    return sum;
  }

 private:
  StoredWeights a_;
  std::vector<StoredWeights> b_;
  AdapterWeight weight_;
};

struct RowsOfAdapter {
  const AdapterWeight* weights = nullptr;  ///< by target
  std::vector<std::int32_t> rows;
};

/// `out` with the updates, for x of so many columns.
Floats updated(const OpTable& ops, ElementType type, const Floats& x, std::int64_t depth,
               std::int32_t k_shards, const std::vector<RowsOfAdapter>& adapters, Floats out) {
  std::vector<const AdapterWeight*> weights;
  std::vector<std::int32_t> first_row = {0};
  std::vector<std::int32_t> rows;
  std::vector<std::int32_t> adapter_of_row;
  for (const RowsOfAdapter& adapter : adapters) {
    adapter_of_row.insert(adapter_of_row.end(), adapter.rows.size(),
                          static_cast<std::int32_t>(weights.size()));
    weights.push_back(adapter.weights);
    rows.insert(rows.end(), adapter.rows.begin(), adapter.rows.end());
    first_row.push_back(static_cast<std::int32_t>(rows.size()));
  }
  const AdapterRows of_adapters{.adapters = weights.data(),
                                .first_row = first_row.data(),
                                .rows = rows.data(),
                                .adapter_of_row = adapter_of_row.data(),
                                .num_adapters = static_cast<std::int64_t>(weights.size()),
                                .num_rows = static_cast<std::int64_t>(rows.size())};
  const std::int64_t num_rows = static_cast<std::int64_t>(x.size()) / depth;
  Floats shrunk(rows.size() * TestAdapter::kNumRanks, -7.0f);
  const Matrix middle(shrunk.data(), of_adapters.num_rows, TestAdapter::kNumRanks);
  const TestContext context;
  ops.adapter_shrink(context, {.x = {x.data(), num_rows, depth},
                               .rows = of_adapters,
                               .target = 1,
                               .type = type,
                               .k_shards = k_shards,
                               .out = middle});
  ops.adapter_expand(context, {.x = middle,
                               .rows = of_adapters,
                               .target = 1,
                               .type = type,
                               .out = {out.data(), num_rows, TestAdapter::kOutCols}});
  return out;
}

BOOST_AUTO_TEST_CASE(adapters_update_their_rows_and_columns_with_the_same_bits_in_any_batch) {
  for (const OpTable* ops : all_backends()) {
    for (const ElementType type : kAdapterTypes) {
      for (const std::int32_t k_shards : {1, 2, 4}) {
        BOOST_TEST_CONTEXT(ops->name << ", type " << static_cast<int>(type) << ", " << k_shards
                                     << " shards") {
          const std::int64_t depth = 4 * 37;  // no shard is whole vectors
          const std::int64_t num_rows = is_emulated(*ops) ? 7 : 150;
          const TestAdapter first(type, depth, 1);
          const TestAdapter second(type, depth, 100);
          // Target 0 is not asked for; the third adapter does not update this target.
          const AdapterWeight of_first[] = {{}, first.weight()};
          const AdapterWeight of_second[] = {{}, second.weight()};
          const AdapterWeight of_none[] = {second.weight(), {}};
          std::vector<RowsOfAdapter> adapters = {{of_first, {}}, {of_none, {}}, {of_second, {}}};
          // Every fourth row has no adapter.
          for (std::int32_t row = 0; row < num_rows; ++row)
            if (row % 4 != 3) adapters[static_cast<std::size_t>(row % 4)].rows.push_back(row);
          const Floats x = random_floats(num_rows * depth, 7);
          const Floats before = random_floats(num_rows * TestAdapter::kOutCols, 8);
          const Floats all = updated(*ops, type, x, depth, k_shards, adapters, before);
          double largest = 0;
          bool untouched = true;
          for (std::int64_t row = 0; row < num_rows; ++row) {
            const TestAdapter* const own = row % 4 == 0 ? &first : row % 4 == 2 ? &second : nullptr;
            for (std::int64_t col = 0; col < TestAdapter::kOutCols; ++col) {
              const auto at = static_cast<std::size_t>(row * TestAdapter::kOutCols + col);
              const double added =
                  own == nullptr ? 0 : own->exact(x.data() + row * depth, depth, col);
              if (added == 0) untouched &= all[at] == before[at];
              largest = std::max(largest, std::abs(before[at] + added - all[at]));
            }
          }
          BOOST_TEST(largest < 1e-3);
          BOOST_TEST(untouched);
          // One row alone.
          for (const std::int32_t row : {0, 2, 4}) {
            const std::vector<RowsOfAdapter> alone = {{row % 4 == 0 ? of_first : of_second, {row}}};
            const Floats one = updated(*ops, type, x, depth, k_shards, alone, before);
            const auto begin = static_cast<std::ptrdiff_t>(row * TestAdapter::kOutCols);
            BOOST_CHECK(std::equal(one.begin() + begin, one.begin() + begin + TestAdapter::kOutCols,
                                   all.begin() + begin));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace troupe
