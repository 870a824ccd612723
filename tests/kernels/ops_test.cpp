// Norms, rotary embedding, element-wise operations, and what is asked of logits.

#include <algorithm>
#include <numeric>

#include "tests/kernels/kernel_testing.hpp"

namespace troupe {
namespace {

using namespace testing;

constexpr std::int64_t kRowCounts[] = {1, 2, 3, 5, 7, 16, 17, 33};
constexpr std::int64_t kWidths[] = {1, 7, 16, 33, 64, 100, 1024};

double at(const Floats& values, std::int64_t i) {
  return static_cast<double>(values[static_cast<std::size_t>(i)]);
}

BOOST_AUTO_TEST_CASE(rms_norm_equals_double_precision_and_rows_are_independent) {
  for (const OpTable* ops : all_tables()) {
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

BOOST_AUTO_TEST_CASE(norms_of_heads_inside_a_wider_row_touch_nothing_else) {
  constexpr std::int64_t kTokens = 3;
  constexpr std::int64_t kHeads = 2;
  constexpr std::int64_t kDim = 20;
  constexpr std::int64_t kStride = 70;
  for (const OpTable* ops : all_tables()) {
    Floats buffer = random_floats(kTokens * kStride, 3);
    const Floats before = buffer;
    const Floats weight = random_floats(kDim, 4);
    const Heads view{buffer.data() + 5, kTokens, kHeads, kDim, kStride};
    ops->rms_norm(TestContext(), {.x = view, .weight = weight.data(), .out = view});
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (std::int64_t i = 0; i < kStride; ++i) {
        const bool inside = i >= 5 && i < 5 + kHeads * kDim;
        BOOST_TEST((at(buffer, t * kStride + i) == at(before, t * kStride + i)) == !inside);
      }
      Floats head(kDim);
      ops->rms_norm(TestContext(),
                    {.x = ConstHeads{before.data() + t * kStride + 25, 1, 1, kDim, kDim},
                     .weight = weight.data(),
                     .out = matrix(head, 1, kDim)});
      BOOST_TEST(same_bits(head.data(), buffer.data() + t * kStride + 25, kDim));
    }
  }
}

BOOST_AUTO_TEST_CASE(add_rms_norm_is_an_addition_and_a_norm) {
  for (const OpTable* ops : all_tables()) {
    for (const std::int64_t n : kWidths) {
      constexpr std::int64_t kRows = 5;
      const Floats x = random_floats(kRows * n, 5);
      Floats residual = random_floats(kRows * n, 6);
      const Floats weight = random_floats(n, 7);
      Floats sum(x.size());
      Floats want(x.size());
      Floats out(x.size());
      ops->add(TestContext(), {.a = matrix(residual, kRows, n),
                               .b = matrix(x, kRows, n),
                               .out = matrix(sum, kRows, n)});
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

BOOST_AUTO_TEST_CASE(layer_norm_equals_double_precision) {
  for (const OpTable* ops : all_tables()) {
    for (const std::int64_t n : kWidths) {
      if (n == 1) continue;  // The variance of one number is zero: only rounding errors remain.
      const Floats x = random_floats(3 * n, 8, 4.0f);
      const Floats weight = random_floats(n, 9);
      const Floats bias = random_floats(n, 10);
      Floats out(x.size());
      ops->layer_norm(TestContext(), {.x = matrix(x, 3, n),
                                      .weight = weight.data(),
                                      .bias = bias.data(),
                                      .out = matrix(out, 3, n)});
      std::vector<double> want;
      for (std::int64_t i = 0; i < 3; ++i) {
        double mean = 0.0;
        double variance = 0.0;
        for (std::int64_t j = 0; j < n; ++j) mean += at(x, i * n + j) / static_cast<double>(n);
        for (std::int64_t j = 0; j < n; ++j) {
          variance += std::pow(at(x, i * n + j) - mean, 2) / static_cast<double>(n);
        }
        for (std::int64_t j = 0; j < n; ++j) {
          want.push_back((at(x, i * n + j) - mean) / std::sqrt(variance + 1e-5) * at(weight, j) +
                         at(bias, j));
        }
      }
      BOOST_TEST(worst_error(out, want) < 5e-6, ops->name << " width " << n);
    }
  }
}

BOOST_AUTO_TEST_CASE(rope_rotates_pairs_of_both_styles_and_leaves_the_rest) {
  constexpr std::int64_t kTokens = 5;
  constexpr std::int64_t kDim = 40;
  for (const OpTable* ops : all_tables()) {
    for (const RopeStyle style : {RopeStyle::kHalves, RopeStyle::kNeighbours}) {
      for (const std::int64_t rotary_dim : {std::int64_t{22}, kDim}) {
        const std::int64_t half = rotary_dim / 2;
        const Floats angles = random_floats(9 * half, 11, 3.0f);
        Floats cos;
        Floats sin;
        for (const float angle : angles) {
          cos.push_back(std::cos(angle));
          sin.push_back(std::sin(angle));
        }
        const std::vector<std::int32_t> positions = {0, 8, 3, 3, 1};
        Floats q = random_floats(kTokens * 3 * kDim, 12);
        Floats k = random_floats(kTokens * kDim, 13);
        const Floats q_before = q;
        ops->rope(TestContext(), {.q = heads(q, kTokens, 3, kDim),
                                  .k = heads(k, kTokens, 1, kDim),
                                  .positions = positions.data(),
                                  .cos = cos.data(),
                                  .sin = sin.data(),
                                  .rotary_dim = rotary_dim,
                                  .style = style});
        std::vector<double> want(q_before.begin(), q_before.end());
        for (std::int64_t row = 0; row < kTokens * 3; ++row) {
          for (std::int64_t i = 0; i < half; ++i) {
            const std::int64_t angle = positions[static_cast<std::size_t>(row / 3)] * half + i;
            const bool halves = style == RopeStyle::kHalves;
            const std::int64_t a = row * kDim + (halves ? i : 2 * i);
            const std::int64_t b = row * kDim + (halves ? half + i : 2 * i + 1);
            want[static_cast<std::size_t>(a)] =
                at(q_before, a) * at(cos, angle) - at(q_before, b) * at(sin, angle);
            want[static_cast<std::size_t>(b)] =
                at(q_before, b) * at(cos, angle) + at(q_before, a) * at(sin, angle);
          }
        }
        BOOST_TEST(worst_error(q, want) < 1e-6, ops->name);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(gelu_equals_double_precision_and_tails_equal_full_vectors) {
  for (const OpTable* ops : all_tables()) {
    for (const std::int64_t n : kWidths) {
      const Floats x = activation_inputs(n);
      Floats out(x.size());
      std::vector<double> want;
      for (const float value : x) want.push_back(exact_gelu_tanh(static_cast<double>(value)));
      ops->gelu_tanh(TestContext(), {.x = matrix(x, 1, n), .out = matrix(out, 1, n)});
      BOOST_TEST(worst_error(out, want) < 1e-6, ops->name << " gelu " << n);
      for (std::int64_t i = 0; i < n; ++i) {
        const Floats single = {x[static_cast<std::size_t>(i)]};
        Floats alone(1);
        ops->gelu_tanh(TestContext(), {.x = matrix(single, 1, 1), .out = matrix(alone, 1, 1)});
        BOOST_REQUIRE(same_bits(alone.data(), out.data() + i, 1));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(scale_embedding_and_gather_take_the_right_rows) {
  for (const OpTable* ops : all_tables()) {
    for (const ElementType type : {ElementType::kF32, ElementType::kBF16, ElementType::kF16}) {
      constexpr std::int64_t kDim = 37;
      const StoredWeights table(type, 11, kDim, 16);
      const std::vector<std::int32_t> ids = {10, 0, 3, 3};
      Floats out(4 * kDim);
      ops->embedding(
          TestContext(),
          {.table = table.view(), .ids = ids.data(), .scale = 1.5f, .out = matrix(out, 4, kDim)});
      Floats rows(4 * kDim);
      ops->gather_rows(
          TestContext(),
          {.x = matrix(table.values, 11, kDim), .rows = ids.data(), .out = matrix(rows, 4, kDim)});
      ops->scale(TestContext(),
                 {.x = matrix(rows, 4, kDim), .factor = 1.5f, .out = matrix(rows, 4, kDim)});
      BOOST_TEST(out == rows, boost::test_tools::per_element());
      BOOST_TEST(out[kDim * 2] == table.values[kDim * 3] * 1.5f);
    }
  }
}

BOOST_AUTO_TEST_CASE(log_softmax_rank_and_argmax_equal_their_definitions) {
  for (const OpTable* ops : all_tables()) {
    for (const std::int64_t n : {1, 5, 16, 100, 5003}) {
      constexpr std::int64_t kRows = 3;
      Floats x = random_floats(kRows * n, 17, 8.0f);
      if (n > 50) x[20] = -std::numeric_limits<float>::infinity();
      Floats out(x.size());
      std::int32_t ranks[kRows];
      std::int32_t best[kRows];
      const std::vector<std::int32_t> tokens = {0, static_cast<std::int32_t>(n / 2),
                                                static_cast<std::int32_t>(n - 1)};
      ops->log_softmax(TestContext(), {.x = matrix(x, kRows, n), .out = matrix(out, kRows, n)});
      ops->token_ranks(TestContext(),
                       {.x = matrix(x, kRows, n), .tokens = tokens.data(), .ranks = ranks});
      ops->argmax(TestContext(), {.x = matrix(x, kRows, n), .indices = best});
      for (std::int64_t row = 0; row < kRows; ++row) {
        const auto first = x.begin() + row * n;
        const double largest = static_cast<double>(*std::max_element(first, first + n));
        double sum = 0.0;
        for (std::int64_t i = 0; i < n; ++i) sum += std::exp(at(x, row * n + i) - largest);
        for (std::int64_t i = 0; i < n; ++i) {
          const double want = at(x, row * n + i) - largest - std::log(sum);
          const double got = at(out, row * n + i);
          BOOST_REQUIRE((got == want || std::fabs(got - want) < 2e-6));
        }
        const float chosen = first[tokens[static_cast<std::size_t>(row)]];
        BOOST_TEST(ranks[row] ==
                   std::count_if(first, first + n, [&](float value) { return value >= chosen; }));
        BOOST_TEST(best[row] == std::max_element(first, first + n) - first);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(argmax_takes_the_lowest_of_equals_and_never_nan) {
  const float nan = std::nanf("");
  const float inf = std::numeric_limits<float>::infinity();
  for (const OpTable* ops : all_tables()) {
    const auto best_of = [&](const Floats& x) {
      std::int32_t index = 0;
      ops->argmax(TestContext(),
                  {.x = matrix(x, 1, static_cast<std::int64_t>(x.size())), .indices = &index});
      return index;
    };
    Floats x(40, 1.0f);
    BOOST_TEST(best_of(x) == 0);
    x[37] = x[21] = 2.0f;
    BOOST_TEST(best_of(x) == 21);
    x[0] = x[39] = x[20] = nan;
    BOOST_TEST(best_of(x) == 21);
    x[38] = inf;
    BOOST_TEST(best_of(x) == 38);
    BOOST_TEST(best_of(Floats(20, -inf)) == 0);
    BOOST_TEST(best_of(Floats(20, nan)) == -1);
  }
}

}  // namespace
}  // namespace troupe
