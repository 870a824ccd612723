// Convolution, scan and gated norm of state spaces: of every backend, against double precision, and
// in pieces.

#include <algorithm>
#include <numeric>

#include "tests/kernels/backend_tables.hpp"

namespace troupe {
namespace {

using namespace testing;

constexpr std::int64_t kTokens = 23;
constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kGroups = 2;
constexpr std::int64_t kSize = 11;  // of a state
constexpr std::int64_t kWidth = 4;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
double wide(float x) { return static_cast<double>(x); }
double silu_of(double x) { return x / (1 + std::exp(-x)); }

/// One sequence of kTokens in blocks 1, 2, ..., each with the state behind some token.
struct Pages {
  explicit Pages(std::int64_t floats) : floats_per_page(floats), memory(index(30 * floats)) {}
  [[nodiscard]] StateSlots slots(const std::vector<std::int32_t>& starts,
                                 const std::vector<std::int32_t>& before,
                                 const std::vector<std::int32_t>& after) {
    return {.data = reinterpret_cast<std::byte*>(memory.data()),
            .page_bytes = floats_per_page * 4,
            .query_start_loc = starts.data(),
            .num_seqs = std::ssize(before),
            .before = before.data(),
            .after = after.data()};
  }
  std::int64_t floats_per_page;
  Floats memory;
};

/// Calls step(first token, count, slots) for one sequence as a whole; then in pieces, of which one
/// keeps the state after each of its tokens and the next continues from the second of these.
template <class Step>
void in_pieces(Pages& pages, const Step& step) {
  std::vector<std::int32_t> after(index(kTokens));
  after.back() = 1;
  const std::vector<std::int32_t> whole = {0, static_cast<std::int32_t>(kTokens)};
  step(0, kTokens, pages.slots(whole, {0}, after));
  const auto piece = [&](std::int32_t begin, std::int32_t count, std::int32_t before,
                         const std::vector<std::int32_t>& kept) {
    step(begin, count, pages.slots({0, count}, {before}, kept));
  };
  piece(0, 1, 0, {2});
  piece(1, 9, 2, {0, 0, 0, 0, 0, 0, 0, 0, 2});  // in place
  piece(10, 4, 2, {3, 4, 2, 5});                // drafts, of which two are wrong
  piece(12, 11, 4, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6});
}

BOOST_AUTO_TEST_CASE(a_causal_convolution_equals_double_precision_and_its_pieces_the_whole) {
  for (const OpTable* ops : all_backends()) {
    for (const std::int64_t channels : {1, 19, 200}) {
      const Floats x = random_floats(kTokens * channels, 1, 2.0f);
      const Floats weight = random_floats(kWidth * channels, 2);
      const Floats bias = random_floats(channels, 3);
      Pages pages((kWidth - 1) * channels);
      Floats whole;
      in_pieces(pages, [&](std::int64_t first, std::int64_t count, const StateSlots& states) {
        Floats out(x.begin() + first * channels, x.begin() + (first + count) * channels);
        ops->causal_conv(TestContext(), {.x = matrix(out, count, channels),
                                         .weight = weight.data(),
                                         .bias = bias.data(),
                                         .width = kWidth,
                                         .states = states,
                                         .out = matrix(out, count, channels)});
        if (whole.empty()) {
          std::vector<double> want;
          for (std::int64_t t = 0; t < count; ++t)
            for (std::int64_t c = 0; c < channels; ++c) {
              double sum = wide(bias[index(c)]);
              for (std::int64_t k = std::max<std::int64_t>(0, kWidth - 1 - t); k < kWidth; ++k)
                sum += wide(weight[index(k * channels + c)]) *
                       wide(x[index((t - kWidth + 1 + k) * channels + c)]);
              want.push_back(silu_of(sum));
            }
          BOOST_TEST(worst_error(out, want) < 2e-6, ops->name << " " << channels);
          whole = out;
        }
        BOOST_TEST(same_bits(out.data(), whole.data() + first * channels, count * channels),
                   ops->name << " " << channels << " from " << first);
      });
      BOOST_TEST(same_bits(pages.memory.data() + pages.floats_per_page,
                           pages.memory.data() + 6 * pages.floats_per_page, pages.floats_per_page));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_state_scan_equals_double_precision_and_its_pieces_the_whole) {
  for (const OpTable* ops : all_backends()) {
    for (const std::int64_t dim : {3, 16, 40}) {
      const Floats x = random_floats(kTokens * kHeads * dim, 1);
      const Floats b = random_floats(kTokens * kGroups * kSize, 2);
      const Floats c = random_floats(kTokens * kGroups * kSize, 3);
      const Floats dt = random_floats(kTokens * kHeads, 4);
      const Floats dt_bias = random_floats(kHeads, 5);
      const Floats skip = random_floats(kHeads, 6);
      const Floats a = {-0.5f, -1.0f, -2.0f, -4.0f};
      constexpr float kMax = 1.0f;
      Pages pages(kHeads * kSize * dim);
      Floats whole;
      in_pieces(pages, [&](std::int64_t first, std::int64_t count, const StateSlots& states) {
        Floats steps(dt.begin() + first * kHeads, dt.begin() + (first + count) * kHeads);
        Floats decay(steps.size());
        Floats out(index(count * kHeads * dim));
        ops->state_scan(
            TestContext(),
            {.x = {x.data() + first * kHeads * dim, count, kHeads, dim, kHeads * dim},
             .b = {b.data() + first * kGroups * kSize, count, kGroups, kSize, kGroups * kSize},
             .c = {c.data() + first * kGroups * kSize, count, kGroups, kSize, kGroups * kSize},
             .dt = matrix(steps, count, kHeads),
             .decay = matrix(decay, count, kHeads),
             .dt_bias = dt_bias.data(),
             .a = a.data(),
             .skip = skip.data(),
             .max_dt = kMax,
             .states = states,
             .out = {out.data(), count, kHeads, dim, kHeads * dim}});
        if (whole.empty()) {
          std::vector<double> want(out.size());
          for (std::int64_t head = 0; head < kHeads; ++head)
            for (std::int64_t p = 0; p < dim; ++p) {
              std::vector<double> state(index(kSize));
              for (std::int64_t t = 0; t < count; ++t) {
                const double raw = wide(dt[index(t * kHeads + head)] + dt_bias[index(head)]);
                const double step = std::min(std::log1p(std::exp(raw)), wide(kMax));
                const double input = wide(x[index((t * kHeads + head) * dim + p)]);
                double sum = wide(skip[index(head)]) * input;
                for (std::int64_t n = 0; n < kSize; ++n) {
                  const auto at = index((t * kGroups + head * kGroups / kHeads) * kSize + n);
                  state[index(n)] = state[index(n)] * std::exp(step * wide(a[index(head)])) +
                                    step * input * wide(b[at]);
                  sum += state[index(n)] * wide(c[at]);
                }
                want[index((t * kHeads + head) * dim + p)] = sum;
              }
            }
          BOOST_TEST(worst_error(out, want) < 1e-5, ops->name << " " << dim);
          whole = out;
        }
        BOOST_TEST(same_bits(out.data(), whole.data() + first * kHeads * dim, count * kHeads * dim),
                   ops->name << " " << dim << " from " << first);
      });
      BOOST_TEST(same_bits(pages.memory.data() + pages.floats_per_page,
                           pages.memory.data() + 6 * pages.floats_per_page, pages.floats_per_page));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_gated_norm_of_groups_equals_double_precision_also_in_two_halves) {
  constexpr std::int64_t kRows = 3;
  for (const OpTable* ops : all_backends()) {
    for (const auto& [cols, groups] : {std::pair(24, 1), std::pair(160, 2), std::pair(96, 4)}) {
      constexpr std::int64_t kParts = 4;
      const Floats x = random_floats(kRows * cols, 1);
      const Floats gate = random_floats(kRows * cols, 2);
      const Floats weight = random_floats(cols, 3);
      for (const bool norm_first : {false, true}) {
        // By so many ranks, whose columns follow each other.
        const auto normed = [&](std::int64_t ranks) {
          Floats y = x;
          Floats squares(index(kRows * kParts));
          const std::int64_t own = cols / ranks;
          const std::int64_t parts = kParts / ranks;
          const auto columns = [&](auto* data, std::int64_t rank) {
            return MatrixView(data + rank * own, kRows, own, cols);
          };
          for (std::int64_t rank = 0; rank < ranks; ++rank)
            ops->gate(TestContext(),
                      {.x = columns(y.data(), rank),
                       .gate = norm_first ? ConstMatrix() : columns(gate.data(), rank),
                       .squares = Matrix(squares.data() + rank * parts, kRows, parts, kParts)});
          for (std::int64_t rank = 0; rank < ranks; ++rank)
            ops->group_norm(TestContext(),
                            {.x = columns(y.data(), rank),
                             .squares = matrix(squares, kRows, kParts),
                             .num_groups = groups,
                             .group_size = cols / groups,
                             .first_col = rank * own,
                             .weight = weight.data() + rank * own,
                             .gate = norm_first ? columns(gate.data(), rank) : ConstMatrix()});
          return y;
        };
        const Floats found = normed(1);
        std::vector<double> want;
        for (std::int64_t row = 0; row < kRows; ++row)
          for (std::int64_t col = 0; col < cols; ++col) {
            const auto value = [&](std::int64_t at) {
              const double gated = norm_first ? 1 : silu_of(wide(gate[index(row * cols + at)]));
              return wide(x[index(row * cols + at)]) * gated;
            };
            const std::int64_t size = cols / groups;
            double sum = 0;
            for (std::int64_t i = 0; i < size; ++i)
              sum += value(col / size * size + i) * value(col / size * size + i);
            const double behind = norm_first ? silu_of(wide(gate[index(row * cols + col)])) : 1;
            want.push_back(value(col) / std::sqrt(sum / static_cast<double>(size) + 1e-5) *
                           wide(weight[index(col)]) * behind);
          }
        BOOST_TEST(worst_error(found, want) < 4e-6, ops->name << " " << cols << "/" << groups);
        const Floats halves = normed(2);
        BOOST_TEST(same_bits(found.data(), halves.data(), kRows * cols), ops->name);
      }
    }
  }
}

}  // namespace
}  // namespace troupe
