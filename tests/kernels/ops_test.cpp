// Norms, rotary embedding, and rows of embeddings.

#include <algorithm>
#include <functional>
#include <numbers>
#include <numeric>
#include <utility>

#include "tests/kernels/backend_tables.hpp"

namespace troupe {
namespace {

using namespace testing;

constexpr std::int64_t kRowCounts[] = {1, 2, 3, 5, 7, 16, 17, 33};
constexpr std::int64_t kWidths[] = {1, 7, 16, 33, 64, 100, 1024};

double at(const Floats& values, std::int64_t i) {
  return static_cast<double>(values[static_cast<std::size_t>(i)]);
}

BOOST_AUTO_TEST_CASE(rms_norm_equals_double_precision_and_rows_are_independent) {
  for (const OpTable* ops : all_backends()) {
    for (const std::int64_t m : kRowCounts) {
      for (const std::int64_t n : kWidths) {
        for (const float offset : {0.0f, 1.0f}) {
          const Floats x = random_floats(m * n, 1, 3.0f);
          const Floats weight = random_floats(n, 2);
          Floats out(x.size());
          ops->rms_norm(TestContext(), {.x = matrix(x, m, n),
                                        .weight = weight.data(),
                                        .weight_offset = offset,
                                        .eps = 1e-5f,
                                        .out = matrix(out, m, n)});
          std::vector<double> want;
          for (std::int64_t i = 0; i < m; ++i) {
            double squares = 0.0;
            for (std::int64_t j = 0; j < n; ++j) squares += at(x, i * n + j) * at(x, i * n + j);
            const double factor = 1.0 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
            for (std::int64_t j = 0; j < n; ++j) {
              want.push_back(at(x, i * n + j) * factor *
                             (at(weight, j) + static_cast<double>(offset)));
            }
          }
          BOOST_TEST(worst_error(out, want) < 2e-6, ops->name << " " << m << "x" << n);
          Floats last(static_cast<std::size_t>(n));
          const Floats x_last(x.end() - n, x.end());
          ops->rms_norm(TestContext(), {.x = matrix(x_last, 1, n),
                                        .weight = weight.data(),
                                        .weight_offset = offset,
                                        .eps = 1e-5f,
                                        .out = matrix(last, 1, n)});
          BOOST_TEST(same_bits(last.data(), out.data() + (m - 1) * n, n));
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(add_layer_norm_equals_double_precision_and_rows_are_independent) {
  for (const OpTable* ops : all_backends()) {
    for (const std::int64_t m : kRowCounts) {
      for (const std::int64_t n : kWidths) {
        const Floats x = random_floats(m * n, 1, 3.0f);
        Floats residual = random_floats(m * n, 2);
        const Floats weight = random_floats(n, 3);
        const Floats bias = random_floats(n, 4);
        std::vector<double> want;
        for (std::int64_t i = 0; i < m; ++i) {
          const auto sum = [&](std::int64_t j) {
            return at(x, i * n + j) + at(residual, i * n + j);
          };
          double mean = 0.0, variance = 0.0;
          for (std::int64_t j = 0; j < n; ++j) mean += sum(j) / static_cast<double>(n);
          for (std::int64_t j = 0; j < n; ++j)
            variance += (sum(j) - mean) * (sum(j) - mean) / static_cast<double>(n);
          for (std::int64_t j = 0; j < n; ++j)
            want.push_back((sum(j) - mean) / std::sqrt(variance + 1e-3) * at(weight, j) +
                           at(bias, j));
        }
        const auto norm = [&](const float* row_x, const float* row_residual, std::int64_t rows,
                              float* sum, float* out) {
          ops->add_layer_norm(TestContext(), {.x = {row_x, rows, n},
                                              .residual = {row_residual, rows, n},
                                              .weight = weight.data(),
                                              .bias = bias.data(),
                                              .eps = 1e-3f,
                                              .sum = {sum, rows, n},
                                              .out = {out, rows, n}});
        };
        Floats last(static_cast<std::size_t>(n));
        norm(x.data() + (m - 1) * n, residual.data() + (m - 1) * n, 1, nullptr, last.data());
        Floats sums = residual;
        Floats beside(sums.size());
        norm(x.data(), sums.data(), m, sums.data(), beside.data());
        for (std::size_t i = 0; i < sums.size(); ++i)
          BOOST_REQUIRE_EQUAL(sums[i], x[i] + residual[i]);
        norm(x.data(), residual.data(), m, nullptr, residual.data());  // in place
        BOOST_TEST(worst_error(residual, want) < 4e-6, ops->name << " " << m << "x" << n);
        BOOST_TEST(same_bits(last.data(), residual.data() + (m - 1) * n, n));
        BOOST_TEST(same_bits(beside.data(), residual.data(), m * n));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(gelu_equals_double_precision_over_the_whole_range) {
  for (const OpTable* ops : all_backends()) {
    Floats x;
    for (int i = -1300; i <= 1300; ++i) x.push_back(static_cast<float>(i) / 100.0f);
    const auto size = static_cast<std::int64_t>(x.size());
    for (const Gelu kind : {Gelu::kErf, Gelu::kTanh, Gelu::kSigmoid}) {
      Floats out = x;
      ops->gelu(TestContext(), {.gelu = kind, .out = matrix(out, 1, size)});
      for (std::size_t i = 0; i < x.size(); ++i) {
        const auto wide = static_cast<double>(x[i]);
        const double want = kind == Gelu::kTanh ? exact_gelu_tanh(wide)
                            : kind == Gelu::kErf
                                ? 0.5 * wide * std::erfc(-wide / std::numbers::sqrt2)
                                : wide / (1 + std::exp(-1.702 * wide));
        BOOST_REQUIRE_MESSAGE(
            std::abs(static_cast<double>(out[i]) - want) <=
                (kind == Gelu::kTanh ? 2e-6 : 5e-7) * std::max(1.0, std::abs(want)),
            ops->name << ": " << out[i] << ", expected " << want);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(rms_norm_in_place_inside_wider_rows_touches_nothing_else) {
  constexpr std::int64_t kRows = 3;
  constexpr std::int64_t kCols = 40;
  constexpr std::int64_t kStride = 70;
  for (const OpTable* ops : all_backends()) {
    Floats buffer = random_floats(kRows * kStride, 3);
    const Floats before = buffer;
    const Floats weight = random_floats(kCols, 4);
    const Matrix view{buffer.data() + 5, kRows, kCols, kStride};
    ops->rms_norm(TestContext(), {.x = view, .weight = weight.data(), .out = view});
    for (std::int64_t t = 0; t < kRows; ++t) {
      for (std::int64_t i = 0; i < kStride; ++i) {
        const bool inside = i >= 5 && i < 5 + kCols;
        BOOST_TEST((at(buffer, t * kStride + i) == at(before, t * kStride + i)) == !inside);
      }
      Floats row(kCols);
      ops->rms_norm(TestContext(), {.x = {before.data() + t * kStride + 5, 1, kCols},
                                    .weight = weight.data(),
                                    .out = matrix(row, 1, kCols)});
      BOOST_TEST(same_bits(row.data(), buffer.data() + t * kStride + 5, kCols));
    }
  }
}

BOOST_AUTO_TEST_CASE(add_rms_norm_is_an_addition_and_a_norm) {
  for (const OpTable* ops : all_backends()) {
    for (const std::int64_t n : kWidths) {
      constexpr std::int64_t kRows = 5;
      const Floats x = random_floats(kRows * n, 5);
      Floats residual = random_floats(kRows * n, 6);
      const Floats weight = random_floats(n, 7);
      Floats sum(x.size());
      Floats want(x.size());
      Floats out(x.size());
      std::ranges::transform(residual, x, sum.begin(), std::plus());
      ops->rms_norm(TestContext(), {.x = ConstMatrix(matrix(sum, kRows, n)),
                                    .weight = weight.data(),
                                    .weight_offset = 1.0f,
                                    .out = matrix(want, kRows, n)});
      ops->add_rms_norm(TestContext(), {.x = matrix(x, kRows, n),
                                        .residual = matrix(residual, kRows, n),
                                        .weight = weight.data(),
                                        .weight_offset = 1.0f,
                                        .out = matrix(out, kRows, n)});
      BOOST_TEST(same_bits(residual.data(), sum.data(), kRows * n));
      BOOST_TEST(same_bits(out.data(), want.data(), kRows * n));
      for (std::size_t i = 0; i < x.size(); ++i) BOOST_REQUIRE(std::isfinite(out[i]));
    }
  }
}

/// The tokens of a step, heads of q, k and v in one row each as a layer has them, and with what
/// they are made ready for attention.
struct RopeStep {
  static constexpr std::int64_t kHeads = 6;
  static constexpr std::int64_t kKvHeads = 3;
  static constexpr std::int64_t kBlockSize = 16;
  static constexpr std::int64_t kMaxPosition = 9;

  RopeStep(std::int64_t num_tokens, std::int64_t head_dim)
      : num_tokens(num_tokens),
        head_dim(head_dim),
        row_size((kHeads + 2 * kKvHeads) * head_dim),
        rows(random_floats(num_tokens * row_size, 12, 3.0f)),
        q_norm_weight(random_floats(head_dim, 13)),
        k_norm_weight(random_floats(head_dim, 14)) {
    for (const float angle : random_floats(kMaxPosition * head_dim / 2, 11, 3.0f)) {
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
    std::mt19937 random(15);
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      positions.push_back(static_cast<std::int32_t>(random() % kMaxPosition));
      slots.push_back(t);
    }
    std::shuffle(slots.begin(), slots.end(), random);
  }

  [[nodiscard]] KvCacheView cache_view(ElementType type) const {
    return {.type = type,
            .num_blocks = (num_tokens + kBlockSize - 1) / kBlockSize,
            .block_size = kBlockSize,
            .num_kv_heads = kKvHeads,
            .head_dim = head_dim};
  }
  /// `heads` of each token of x, which is laid out as rows are, from head `first` on.
  [[nodiscard]] Heads view(Floats& x, std::int64_t first, std::int64_t heads) const {
    return {x.data() + first * head_dim, num_tokens, heads, head_dim, row_size};
  }
  /// Everything for q, k and v in x but the cache.
  [[nodiscard]] RopeAndWriteKvArgs args(Floats& x) const {
    return {.q = view(x, 0, kHeads),
            .k = view(x, kHeads, kKvHeads),
            .v = view(x, kHeads + kKvHeads, kKvHeads),
            .norm_weight_offset = 1.0f,
            .norm_eps = 1e-5f,
            .positions = positions.data(),
            .cos = cos.data(),
            .sin = sin.data(),
            .slots = slots.data()};
  }

  std::int64_t num_tokens;
  std::int64_t head_dim;
  std::int64_t row_size;
  Floats rows;
  Floats q_norm_weight, k_norm_weight;
  Floats cos, sin;
  std::vector<std::int32_t> positions;
  std::vector<std::int64_t> slots;
};

/// The pages that are left by the operation, which were of 0xff before.
std::vector<std::byte> pages_after(const OpTable& ops, KvCacheView cache, RopeAndWriteKvArgs args,
                                   int num_threads = 2) {
  std::vector<std::byte> pages(static_cast<std::size_t>(cache.num_blocks * cache.block_bytes()),
                               std::byte{0xff});
  cache.data = pages.data();
  args.cache = cache;
  ops.rope_and_write_kv(TestContext(0, num_threads), args);
  return pages;
}

constexpr ElementType kCacheTypes[] = {ElementType::kF32, ElementType::kBF16, ElementType::kF16,
                                       ElementType::kI8, ElementType::kF8E4M3};

/// RMSNorm and RoPE of the queries of `step` in double precision.
std::vector<double> reference_queries(const RopeStep& step, std::int64_t rotary_dim,
                                      RopeStyle style, bool has_norm) {
  std::vector<double> want(step.rows.begin(), step.rows.end());
  const std::int64_t half = rotary_dim / 2;
  for (std::int64_t row = 0; row < step.num_tokens * RopeStep::kHeads; ++row) {
    const std::int64_t token = row / RopeStep::kHeads;
    double* const x = want.data() + token * step.row_size + row % RopeStep::kHeads * step.head_dim;
    if (has_norm) {
      double squares = 0.0;
      for (std::int64_t d = 0; d < step.head_dim; ++d) squares += x[d] * x[d];
      const double factor = 1.0 / std::sqrt(squares / static_cast<double>(step.head_dim) + 1e-5);
      for (std::int64_t d = 0; d < step.head_dim; ++d)
        x[d] *= factor * (at(step.q_norm_weight, d) + 1.0);
    }
    for (std::int64_t i = 0; i < half; ++i) {
      const std::int64_t angle = step.positions[static_cast<std::size_t>(token)] * half + i;
      const bool neox = style == RopeStyle::kNeox;
      double& first = x[neox ? i : 2 * i];
      double& second = x[neox ? half + i : 2 * i + 1];
      const double a = first;
      const double b = second;
      first = a * at(step.cos, angle) - b * at(step.sin, angle);
      second = b * at(step.cos, angle) + a * at(step.sin, angle);
    }
  }
  return want;
}

BOOST_AUTO_TEST_CASE(queries_are_normed_and_rotated_in_both_styles_and_the_rest_is_left) {
  const RopeStep step(19, 40);
  for (const OpTable* ops : all_backends()) {
    for (const RopeStyle style : {RopeStyle::kNeox, RopeStyle::kInterleaved}) {
      for (const std::int64_t rotary_dim : {0, 22, 40}) {
        for (const bool has_norm : {false, true}) {
          Floats rows = step.rows;
          RopeAndWriteKvArgs args = step.args(rows);
          args.rotary_dim = rotary_dim;
          args.style = style;
          if (rotary_dim == 0) args.positions = nullptr;
          if (has_norm) {
            args.q_norm_weight = step.q_norm_weight.data();
            args.k_norm_weight = step.k_norm_weight.data();
          }
          pages_after(*ops, step.cache_view(ElementType::kBF16), args);
          BOOST_TEST(worst_error(rows, reference_queries(step, rotary_dim, style, has_norm)) < 2e-6,
                     ops->name << " rotary_dim " << rotary_dim << " norm " << has_norm);
          const auto rest = [&](const Floats& x) {
            Floats found;
            for (std::int64_t t = 0; t < step.num_tokens; ++t) {
              const float* const row = x.data() + t * step.row_size;
              found.insert(found.end(), row + RopeStep::kHeads * step.head_dim,
                           row + step.row_size);
            }
            return found;
          };
          BOOST_CHECK(rest(rows) == rest(step.rows));
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_key_in_its_page_has_the_bits_of_the_same_row_as_a_query) {
  for (const std::int64_t head_dim : {40, 64}) {
    const RopeStep step(37, head_dim);
    for (const OpTable* ops : all_backends()) {
      for (const ElementType type : kCacheTypes) {
        for (const RopeStyle style : {RopeStyle::kNeox, RopeStyle::kInterleaved}) {
          for (const std::int64_t rotary_dim : {std::int64_t{0}, std::int64_t{22}, head_dim}) {
            for (const bool has_norm : {false, true}) {
              const KvCacheView cache = step.cache_view(type);
              Floats rows = step.rows;
              RopeAndWriteKvArgs args = step.args(rows);
              args.rotary_dim = rotary_dim;
              args.style = style;
              if (has_norm) args.k_norm_weight = step.k_norm_weight.data();
              const auto got = pages_after(*ops, cache, args);
              // The keys as queries, then written as they are.
              Floats keys = step.rows;
              args.q = step.view(keys, RopeStep::kHeads, RopeStep::kKvHeads);
              args.q_norm_weight = std::exchange(args.k_norm_weight, nullptr);
              pages_after(*ops, cache, args);
              args = step.args(keys);
              const auto want = pages_after(*ops, cache, args);
              BOOST_CHECK_MESSAGE(got == want, ops->name << " type " << int(type) << " rotary_dim "
                                                         << rotary_dim << " norm " << has_norm);
            }
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(tokens_have_the_same_queries_and_pages_alone_and_together) {
  // Enough heads and tokens for several threads.
  const RopeStep step(37, 128);
  for (const OpTable* ops : all_backends()) {
    for (const ElementType type : kCacheTypes) {
      KvCacheView cache = step.cache_view(type);
      const auto args_for = [&](Floats& rows) {
        RopeAndWriteKvArgs args = step.args(rows);
        args.q_norm_weight = step.q_norm_weight.data();
        args.k_norm_weight = step.k_norm_weight.data();
        args.rotary_dim = step.head_dim;
        return args;
      };
      Floats one_by_one = step.rows;
      std::vector<std::byte> pages = pages_after(*ops, cache, {});
      cache.data = pages.data();
      for (std::int64_t t = 0; t < step.num_tokens; ++t) {
        RopeAndWriteKvArgs args = args_for(one_by_one);
        args.cache = cache;
        args.q = {args.q.row(t, 0), 1, RopeStep::kHeads, step.head_dim, step.row_size};
        args.k = {args.k.row(t, 0), 1, RopeStep::kKvHeads, step.head_dim, step.row_size};
        args.v = {args.v.row(t, 0), 1, RopeStep::kKvHeads, step.head_dim, step.row_size};
        args.positions += t;
        args.slots += t;
        ops->rope_and_write_kv(TestContext(), args);
      }
      for (const int num_threads : {1, 2, 4}) {
        Floats together = step.rows;
        const auto got = pages_after(*ops, step.cache_view(type), args_for(together), num_threads);
        BOOST_CHECK_MESSAGE(got == pages, ops->name << " type " << int(type));
        BOOST_CHECK_MESSAGE(together == one_by_one, ops->name << " type " << int(type));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_negative_slot_leaves_the_cache_alone_and_its_query_is_ready) {
  RopeStep step(20, 64);
  for (const OpTable* ops : all_backends()) {
    for (const ElementType type : kCacheTypes) {
      const KvCacheView cache = step.cache_view(type);
      const auto run = [&](Floats& rows, const std::vector<std::int64_t>& slots) {
        RopeAndWriteKvArgs args = step.args(rows);
        args.k_norm_weight = step.k_norm_weight.data();
        args.rotary_dim = step.head_dim;
        args.slots = slots.data();
        return pages_after(*ops, cache, args);
      };
      Floats all = step.rows;
      run(all, step.slots);
      Floats none = step.rows;
      const std::vector<std::int64_t> no_slots(step.slots.size(), -1);
      const auto untouched = run(none, no_slots);
      BOOST_CHECK(std::ranges::all_of(untouched, [](std::byte b) { return b == std::byte{0xff}; }));
      BOOST_CHECK(none == all);

      // Tokens without a slot among others: as if their heads held other numbers.
      std::vector<std::int64_t> some_slots = step.slots;
      for (const std::size_t t : {0, 3, 17}) some_slots[t] = -1;
      Floats rows = step.rows;
      const auto some = run(rows, some_slots);
      BOOST_CHECK(rows == all);
      Floats other_rows = step.rows;
      for (const std::int64_t t : {0, 3, 17}) {
        std::fill_n(other_rows.begin() + t * step.row_size, step.row_size, 7.0f);
      }
      BOOST_CHECK_MESSAGE(some == run(other_rows, some_slots), ops->name << " type " << int(type));
    }
  }
}

BOOST_AUTO_TEST_CASE(embeddings_are_scaled_rows_of_the_table) {
  for (const OpTable* ops : all_backends()) {
    for (const ElementType type : {ElementType::kF32, ElementType::kBF16, ElementType::kF16}) {
      constexpr std::int64_t kDim = 37;
      const StoredWeights table(type, 11, kDim, 16);
      const std::vector<std::int32_t> ids = {10, 0, 3, 3};
      Floats out(4 * kDim);
      ops->embedding(
          TestContext(),
          {.table = table.view(), .ids = ids.data(), .scale = 1.5f, .out = matrix(out, 4, kDim)});
      for (std::size_t i = 0; i < out.size(); ++i) {
        const auto row = static_cast<std::size_t>(ids[i / kDim]);
        BOOST_REQUIRE_EQUAL(out[i], table.values[row * kDim + i % kDim] * 1.5f);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_bias_is_added_to_each_row_and_to_nothing_beside_it) {
  constexpr std::int64_t kDim = 37;
  constexpr std::int64_t kStride = 40;
  const Floats before = random_floats(5 * kStride, 1);
  const Floats bias = random_floats(kDim, 2);
  for (const OpTable* ops : all_backends()) {
    Floats out = before;
    ops->add_bias(TestContext(), {.bias = bias.data(), .out = {out.data(), 5, kDim, kStride}});
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t col = i % kStride;
      BOOST_REQUIRE_EQUAL(out[i], col < kDim ? before[i] + bias[col] : before[i]);
    }
  }
}

BOOST_AUTO_TEST_CASE(rows_are_scaled_and_capped_in_place_and_nothing_beside_them) {
  constexpr std::int64_t kDim = 37;
  constexpr std::int64_t kStride = 40;
  const Floats before = random_floats(5 * kStride, 1, 30.0f);
  for (const OpTable* ops : all_backends()) {
    for (const float softcap : {0.0f, 20.0f}) {
      Floats out = before;
      ops->scale(TestContext(),
                 {.scale = 0.7f, .softcap = softcap, .out = {out.data(), 5, kDim, kStride}});
      for (std::size_t i = 0; i < out.size(); ++i) {
        const auto scaled = static_cast<double>(before[i] * 0.7f);
        const auto cap = static_cast<double>(softcap);
        const double want = i % kStride >= kDim ? static_cast<double>(before[i])
                            : softcap > 0       ? cap * std::tanh(scaled / cap)
                                                : scaled;
        BOOST_REQUIRE_MESSAGE(std::abs(static_cast<double>(out[i]) - want) <=
                                  (softcap > 0 && i % kStride < kDim ? 1e-5 : 0.0),
                              ops->name << ": " << out[i] << ", expected " << want);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(rows_are_added_with_the_gate_of_each) {
  constexpr std::int64_t kDim = 37;
  constexpr std::int64_t kStride = 40;
  const Floats before = random_floats(5 * kStride, 1);
  const Floats x = random_floats(5 * kDim, 2);
  const Floats gate = {0.0f, -3.0f, 2.5f, -200.0f, 200.0f};
  for (const OpTable* ops : all_backends()) {
    Floats out = before;
    ops->add_gated(TestContext(), {.x = matrix(x, 5, kDim),
                                   .gate = matrix(gate, 5, 1),
                                   .out = {out.data(), 5, kDim, kStride}});
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t row = i / kStride;
      const std::size_t col = i % kStride;
      double want = static_cast<double>(before[i]);
      if (col < kDim)
        want += static_cast<double>(x[row * kDim + col]) /
                (1 + std::exp(-static_cast<double>(gate[row])));
      BOOST_REQUIRE_MESSAGE(std::abs(static_cast<double>(out[i]) - want) <= 1e-6,
                            ops->name << ": " << out[i] << ", expected " << want);
    }
  }
}

BOOST_AUTO_TEST_CASE(add_rms_norm_without_a_weight_gives_the_sum) {
  constexpr std::int64_t kDim = 37;
  const Floats x = random_floats(5 * kDim, 1);
  const Floats before = random_floats(5 * kDim, 2);
  for (const OpTable* ops : all_backends()) {
    Floats residual = before;
    Floats out(residual.size());
    ops->add_rms_norm(TestContext(), {.x = matrix(x, 5, kDim),
                                      .residual = matrix(residual, 5, kDim),
                                      .out = matrix(out, 5, kDim)});
    for (std::size_t i = 0; i < out.size(); ++i) BOOST_REQUIRE_EQUAL(out[i], before[i] + x[i]);
    BOOST_TEST(same_bits(out.data(), residual.data(), 5 * kDim));
  }
}

BOOST_AUTO_TEST_CASE(rows_are_gathered_in_the_order_asked_for) {
  constexpr std::int64_t kDim = 37;
  const Floats x = random_floats(11 * kDim, 1);
  const std::vector<std::int32_t> rows = {10, 0, 3, 3};
  for (const OpTable* ops : all_backends()) {
    Floats out(4 * kDim);
    ops->gather_rows(TestContext(),
                     {.x = matrix(x, 11, kDim), .rows = rows.data(), .out = matrix(out, 4, kDim)});
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto row = static_cast<std::size_t>(rows[i / kDim]);
      BOOST_REQUIRE_EQUAL(out[i], x[row * kDim + i % kDim]);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_mean_of_rows_adds_them_in_the_order_asked_for) {
  constexpr std::int64_t kDim = 37;
  const Floats x = random_floats(6 * kDim, 1);
  const std::vector<std::int32_t> rows = {4, 0, 5, 1, 1, 2};
  for (const OpTable* ops : all_backends()) {
    Floats out(2 * kDim);
    ops->mean_rows(
        TestContext(),
        {.x = matrix(x, 6, kDim), .rows = rows.data(), .count = 3, .out = matrix(out, 2, kDim)});
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto value = [&](std::size_t j) {
        return x[static_cast<std::size_t>(rows[i / kDim * 3 + j]) * kDim + i % kDim];
      };
      BOOST_REQUIRE_EQUAL(out[i], (value(0) + value(1) + value(2)) * (1.0f / 3.0f));
    }
  }
}

BOOST_AUTO_TEST_CASE(rows_are_copied_to_where_they_belong_and_the_others_stay) {
  constexpr std::int64_t kDim = 37;
  const Floats x = random_floats(5 * kDim, 1);
  const Floats before = random_floats(6 * kDim, 2);
  const std::vector<std::int32_t> from = {3, 4, 3};
  const std::vector<std::int32_t> to = {4, 0, 5};
  for (const OpTable* ops : all_backends()) {
    Floats out = before;
    ops->copy_rows(TestContext(), {.x = matrix(x, 5, kDim),
                                   .from = from.data(),
                                   .to = to.data(),
                                   .count = 3,
                                   .out = matrix(out, 6, kDim)});
    Floats want = before;
    for (std::size_t i = 0; i < to.size(); ++i)
      std::copy_n(x.begin() + from[i] * kDim, kDim, want.begin() + to[i] * kDim);
    BOOST_TEST(same_bits(out.data(), want.data(), 6 * kDim), ops->name);
  }
}

}  // namespace
}  // namespace troupe
