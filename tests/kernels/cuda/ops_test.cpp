#include "tests/kernels/cuda/device_testing.hpp"

namespace troupe {
namespace {

using namespace testing;

constexpr std::int64_t kRows = 9;
constexpr std::int64_t kSizes[] = {1, 5, 31, 256, 257, 1000};

Floats unwritten(std::int64_t n) { return Floats(static_cast<std::size_t>(n), -1.0f); }

/// A stored matrix as bytes, which may be copied to the device.
std::vector<std::byte> bytes_of(const StoredMatrix& stored) {
  const auto* first = static_cast<const std::byte*>(stored.data);
  return {first, first + stored.num_rows * stored.num_cols * element_bytes(stored.type)};
}

BOOST_AUTO_TEST_CASE(embeddings_are_rows_of_the_table) {
  const std::vector<std::int32_t> ids = {3, 0, 12, 3};
  for (const ElementType type : {ElementType::kF32, ElementType::kBF16, ElementType::kF16}) {
    for (const std::int64_t n : kSizes) {
      const StoredWeights table(type, 13, n, 1);
      const auto embed = [&](const OpTable& ops, const OpContext& context, float* out,
                             const std::byte* data, const std::int32_t* tokens) {
        ops.embedding(
            context,
            {.table = {data, type, 13, n}, .ids = tokens, .scale = 1.5f, .out = {out, 4, n}});
      };
      const auto data = bytes_of(table.view());
      BOOST_CHECK(run_on_device(unwritten(4 * n), embed, data, ids) ==
                  run_on_host(unwritten(4 * n), embed, data, ids));
    }
  }
}

BOOST_AUTO_TEST_CASE(rows_are_gathered_in_the_order_asked_for) {
  const std::vector<std::int32_t> rows = {3, 0, 3};
  const Floats x = random_floats(kRows * 40, 1);
  const auto gather = [](const OpTable& ops, const OpContext& context, float* out,
                         const float* from, const std::int32_t* which) {
    ops.gather_rows(context, {.x = {from, kRows, 33, 40}, .rows = which, .out = {out, 3, 33}});
  };
  BOOST_CHECK(run_on_device(unwritten(99), gather, x, rows) ==
              run_on_host(unwritten(99), gather, x, rows));
}

BOOST_AUTO_TEST_CASE(the_mean_of_rows_adds_them_in_the_order_asked_for) {
  const std::vector<std::int32_t> rows = {3, 0, 1, 1};
  const Floats x = random_floats(4 * 40, 1);
  const auto mean = [](const OpTable& ops, const OpContext& context, float* out, const float* from,
                       const std::int32_t* which) {
    ops.mean_rows(context,
                  {.x = {from, 4, 33, 40}, .rows = which, .count = 2, .out = {out, 2, 33}});
  };
  BOOST_CHECK(run_on_device(unwritten(66), mean, x, rows) ==
              run_on_host(unwritten(66), mean, x, rows));
}

BOOST_AUTO_TEST_CASE(rows_are_copied_to_where_they_belong_and_the_others_stay) {
  const std::vector<std::int32_t> from = {1, 1};
  const std::vector<std::int32_t> to = {3, 0};
  const Floats x = random_floats(2 * 40, 1);
  const auto copy = [](const OpTable& ops, const OpContext& context, float* out, const float* rows,
                       const std::int32_t* these, const std::int32_t* places) {
    ops.copy_rows(
        context,
        {.x = {rows, 2, 33, 40}, .from = these, .to = places, .count = 2, .out = {out, 4, 33}});
  };
  BOOST_CHECK(run_on_device(unwritten(132), copy, x, from, to) ==
              run_on_host(unwritten(132), copy, x, from, to));
}

BOOST_AUTO_TEST_CASE(a_bias_is_added_to_each_row_and_to_nothing_beside_it) {
  const auto add = [](const OpTable& ops, const OpContext& context, float* out, const float* bias) {
    ops.add_bias(context, {.bias = bias, .out = {out, kRows, 33, 40}});
  };
  const Floats before = random_floats(kRows * 40, 1);
  const Floats bias = random_floats(33, 2);
  BOOST_CHECK(run_on_device(before, add, bias) == run_on_host(before, add, bias));
}

BOOST_AUTO_TEST_CASE(rows_are_scaled_capped_and_added_with_their_gates) {
  const Floats before = random_floats(kRows * 40, 1, 3.0f);
  for (const float softcap : {0.0f, 2.0f}) {
    const auto scale = [=](const OpTable& ops, const OpContext& context, float* out) {
      ops.scale(context, {.scale = 0.7f, .softcap = softcap, .out = {out, kRows, 33, 40}});
    };
    BOOST_TEST(difference_between_tables(before, scale) < 1e-5);
  }
  const auto add = [](const OpTable& ops, const OpContext& context, float* out, const float* x,
                      const float* gate) {
    ops.add_gated(context,
                  {.x = {x, kRows, 33}, .gate = {gate, kRows, 1}, .out = {out, kRows, 33, 40}});
  };
  BOOST_TEST(difference_between_tables(before, add, random_floats(kRows * 33, 2),
                                       random_floats(kRows, 3, 3.0f)) < 1e-5);
  // The residual, then the output.
  const auto sum = [](const OpTable& ops, const OpContext& context, float* data, const float* x) {
    ops.add_rms_norm(context, {.x = {x, kRows, 33},
                               .residual = {data, kRows, 33},
                               .out = {data + kRows * 33, kRows, 33}});
  };
  BOOST_TEST(difference_between_tables(random_floats(2 * kRows * 33, 1), sum,
                                       random_floats(kRows * 33, 2)) == 0);
}

BOOST_AUTO_TEST_CASE(norms_are_those_of_the_reference) {
  for (const std::int64_t n : kSizes) {
    const Floats x = random_floats(kRows * n, 1, 3.0f);
    const Floats weight = random_floats(n, 2);
    const auto rms = [n](const OpTable& ops, const OpContext& context, float* out, const float* in,
                         const float* w) {
      ops.rms_norm(context, {.x = ConstMatrix(in, kRows, n),
                             .weight = w,
                             .weight_offset = 1.0f,
                             .out = Matrix(out, kRows, n)});
    };
    BOOST_TEST(difference_between_tables(unwritten(kRows * n), rms, x, weight) < 1e-5);
  }
}

BOOST_AUTO_TEST_CASE(rms_norm_works_in_place_inside_wider_rows) {
  constexpr std::int64_t kStride = 327;
  const Floats weight = random_floats(320, 2);
  const auto norm = [](const OpTable& ops, const OpContext& context, float* x, const float* w) {
    const Matrix view(x, kRows, 320, kStride);
    ops.rms_norm(context, {.x = view, .weight = w, .out = view});
  };
  BOOST_TEST(difference_between_tables(random_floats(kRows * kStride, 1), norm, weight) < 1e-5);
}

BOOST_AUTO_TEST_CASE(add_rms_norm_leaves_the_sum_and_its_norm) {
  for (const std::int64_t n : kSizes) {
    // The residual, then the output.
    Floats both = random_floats(2 * kRows * n, 1);
    const auto norm = [n](const OpTable& ops, const OpContext& context, float* data, const float* x,
                          const float* w) {
      ops.add_rms_norm(context, {.x = {x, kRows, n},
                                 .residual = {data, kRows, n},
                                 .weight = w,
                                 .out = {data + kRows * n, kRows, n}});
    };
    BOOST_TEST(difference_between_tables(both, norm, random_floats(kRows * n, 2),
                                         random_floats(n, 3)) < 1e-5);
  }
}

BOOST_AUTO_TEST_CASE(layer_norm_and_gelu_are_those_of_the_reference) {
  for (const std::int64_t n : kSizes) {
    // The residual and in its place the sum, then the output.
    const auto norm = [n](const OpTable& ops, const OpContext& context, float* data, const float* x,
                          const float* w, const float* b) {
      ops.add_layer_norm(context, {.x = {x, kRows, n},
                                   .residual = {data, kRows, n},
                                   .weight = w,
                                   .bias = b,
                                   .eps = 1e-5f,
                                   .sum = {data, kRows, n},
                                   .out = {data + kRows * n, kRows, n}});
    };
    BOOST_TEST(difference_between_tables(random_floats(2 * kRows * n, 1), norm,
                                         random_floats(kRows * n, 2), random_floats(n, 3),
                                         random_floats(n, 4)) < 1e-5);
    for (const Gelu kind : {Gelu::kErf, Gelu::kTanh, Gelu::kSigmoid}) {
      const auto gelu = [=](const OpTable& ops, const OpContext& context, float* data) {
        ops.gelu(context, {.gelu = kind, .out = {data, kRows, n}});
      };
      BOOST_TEST(difference_between_tables(random_floats(kRows * n, 5), gelu) < 1e-5);
    }
  }
}

BOOST_AUTO_TEST_CASE(queries_and_keys_are_normed_rotated_and_written_in_both_styles) {
  const std::vector<std::int32_t> positions = {0, 5, 19, 7};
  const std::vector<std::int64_t> slots = {6, -1, 0, 3};
  constexpr std::int64_t kDim = 18;
  constexpr std::int64_t kStride = 7 * kDim + 3;
  constexpr std::int64_t kRowFloats = 4 * kStride;
  const KvCacheView pages{nullptr, ElementType::kF32, 2, 5, 2, kDim};
  const Floats weights = random_floats(2 * kDim, 4);
  for (const RopeStyle style : {RopeStyle::kNeox, RopeStyle::kInterleaved}) {
    for (const std::int64_t rotary_dim : {0, 2, 10, 18}) {
      for (const bool has_norm : {false, true}) {
        // The rows, then the cache.
        const auto run = [=](const OpTable& ops, const OpContext& context, float* x,
                             const std::int32_t* at, const float* cos, const float* sin,
                             const std::int64_t* to, const float* w) {
          KvCacheView cache = pages;
          cache.data = x + kRowFloats;
          ops.rope_and_write_kv(context, {.q = {x, 4, 3, kDim, kStride},
                                          .k = {x + 3 * kDim, 4, 2, kDim, kStride},
                                          .v = {x + 5 * kDim, 4, 2, kDim, kStride},
                                          .q_norm_weight = has_norm ? w : nullptr,
                                          .k_norm_weight = has_norm ? w + kDim : nullptr,
                                          .norm_weight_offset = 1.0f,
                                          .rotary_dim = rotary_dim,
                                          .style = style,
                                          .positions = at,
                                          .cos = cos,
                                          .sin = sin,
                                          .slots = to,
                                          .cache = cache});
        };
        const Floats before = random_floats(kRowFloats + 2 * pages.block_bytes() / 4, 1);
        BOOST_TEST(difference_between_tables(
                       before, run, positions, random_floats(20 * rotary_dim / 2, 2),
                       random_floats(20 * rotary_dim / 2, 3), slots, weights) < 1e-5);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_row_of_a_reduction_has_the_same_bits_alone_and_among_others) {
  constexpr std::int64_t kCols = 777;
  const Floats x = random_floats(kRows * kCols, 1, 5.0f);
  const Floats weight = random_floats(kCols, 2);
  const auto norm_from = [](std::int64_t first, std::int64_t count) {
    return [=](const OpTable& ops, const OpContext& context, float* out, const float* in,
               const float* w) {
      ops.rms_norm(context, {.x = ConstMatrix(in + first * kCols, count, kCols),
                             .weight = w,
                             .out = Matrix(out, count, kCols)});
    };
  };
  const Floats norms = run_on_device(unwritten(kRows * kCols), norm_from(0, kRows), x, weight);
  for (std::int64_t row = 0; row < kRows; ++row) {
    BOOST_CHECK(run_on_device(unwritten(kCols), norm_from(row, 1), x, weight) ==
                rows_of(norms, kCols, row, 1));
  }
}

}  // namespace
}  // namespace troupe
