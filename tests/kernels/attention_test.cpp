#include <algorithm>
#include <numeric>
#include <string_view>

#include "tests/kernels/kernel_testing.hpp"
#include "tests/support/sanitized.hpp"

namespace troupe {
namespace {

using namespace testing;

struct Shape {
  std::int64_t num_heads = 4;
  std::int64_t num_kv_heads = 2;
  std::int64_t head_dim = 32;
  std::int32_t window = 0;
  float softcap = 0.0f;
  float scale = 0.3f;
  std::int32_t local_chunk = 0;
  bool has_sinks = false;
  std::int64_t latent_dim = 0;  ///< not 0: values are the ends of keys

  [[nodiscard]] std::int64_t value_dim() const { return latent_dim != 0 ? latent_dim : head_dim; }
  /// One score is the largest, one is too small to count.
  [[nodiscard]] Floats sinks() const {
    Floats sinks;
    for (std::int64_t head = 0; has_sinks && head < num_heads; ++head)
      sinks.push_back(head == 0 ? 9.0f : head == 1 ? -200.0f : 0.5f * static_cast<float>(head));
    return sinks;
  }
};

/// Tokens of one sequence: q, k and v of all positions.
struct Sequence {
  Sequence(const Shape& shape, std::int64_t length, std::uint32_t seed)
      : length(length),
        q(random_floats(length * shape.num_heads * shape.head_dim, seed, 2.0f)),
        k(random_floats(length * shape.num_kv_heads * shape.head_dim, seed + 1, 2.0f)),
        v(random_floats(length * shape.num_kv_heads * shape.head_dim, seed + 2, 2.0f)) {}
  std::int64_t length;
  Floats q, k, v;
  std::vector<TwoWaySpan> spans;

  /// The positions that the token at `t` sees, [first, second).
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> seen_by(std::int64_t t,
                                                              const Shape& shape) const {
    std::pair<std::int64_t, std::int64_t> seen = {
        shape.window > 0 ? std::max<std::int64_t>(0, t - shape.window + 1) : 0, t + 1};
    if (shape.local_chunk > 0) seen.first = t - t % shape.local_chunk;
    for (const TwoWaySpan& span : spans) {
      if (t >= span.begin && t < span.end)
        seen = {std::min<std::int64_t>(seen.first, span.begin), span.end};
    }
    return seen;
  }
};

/// Whether queries and the softmax's weights are rounded to bf16.
bool attends_in_bf16(const OpTable& ops, const Shape& shape, ElementType type) {
  if (!has_bf16_unit(ops) || shape.latent_dim != 0) return false;
  const bool has_pairs_alone = std::string_view(ops.name) == "avx512_bf16";
  if (type == ElementType::kBF16) return shape.head_dim % (has_pairs_alone ? 8 : 32) == 0;
  return scale_bytes(type) != 0 && shape.head_dim % 32 == 0;
}

/// A row as a cache in 8 bits keeps it: the nearest multiples of a scale, or the nearest numbers of
/// 4 significant bits times a scale, down to multiples of 2^-9 of it.
std::vector<double> stored_in_8_bits(const float* row, std::int64_t n, ElementType type) {
  const bool is_int = type == ElementType::kI8;
  const float largest = is_int ? 127 : 448;
  float size = 0;
  for (std::int64_t d = 0; d < n; ++d) size = std::max(size, std::abs(row[d]));
  const double scale{size / largest};
  std::vector<double> stored;
  for (std::int64_t d = 0; d < n; ++d) {
    const double x{size > 0 ? row[d] * (largest / size) : 0};
    const int exponent = is_int ? 3 : std::max(x == 0 ? -6 : std::ilogb(x), -6);
    stored.push_back(scale * std::ldexp(std::nearbyint(std::ldexp(x, 3 - exponent)), exponent - 3));
  }
  return stored;
}

/// Keys or values as the cache stores them.
std::vector<double> as_stored(const Floats& values, std::int64_t dim, ElementType type) {
  std::vector<double> stored;
  for (std::size_t i = 0; i < values.size(); i += static_cast<std::size_t>(dim)) {
    if (scale_bytes(type) != 0) {
      const std::vector<double> row = stored_in_8_bits(values.data() + i, dim, type);
      stored.insert(stored.end(), row.begin(), row.end());
      continue;
    }
    for (std::size_t d = i; d < i + static_cast<std::size_t>(dim); ++d) {
      float value = values[d];
      if (type == ElementType::kBF16) value = bf16_value(bf16_bits(value));
      if (type == ElementType::kF16) value = f16_value(f16_bits(value));
      stored.push_back(double{value});
    }
  }
  return stored;
}

/// Attention in double precision, causal but for the sequence's spans, with k and v as the cache
/// stores them, q rounded if said.
std::vector<double> reference_attention(const Shape& shape, const Sequence& seq, ElementType type,
                                        bool round_q = false) {
  const std::int64_t group = shape.num_heads / shape.num_kv_heads;
  const std::int64_t dim = shape.head_dim;
  const std::vector<double> keys = as_stored(seq.k, dim, type);
  const std::vector<double> values = shape.latent_dim != 0 ? keys : as_stored(seq.v, dim, type);
  const std::int64_t first_element = dim - shape.value_dim();
  const Floats sinks = shape.sinks();
  std::vector<double> out;
  for (std::int64_t t = 0; t < seq.length; ++t) {
    for (std::int64_t h = 0; h < shape.num_heads; ++h) {
      const float* q = seq.q.data() + (t * shape.num_heads + h) * dim;
      const auto [first, end] = seq.seen_by(t, shape);
      std::vector<double> weights;
      for (std::int64_t j = first; j < end; ++j) {
        const double* k = keys.data() + (j * shape.num_kv_heads + h / group) * dim;
        double score = 0.0;
        for (std::int64_t d = 0; d < dim; ++d) {
          score += static_cast<double>(round_q ? bf16_value(bf16_bits(q[d])) : q[d]) * k[d];
        }
        score *= static_cast<double>(shape.scale);
        const auto cap = static_cast<double>(shape.softcap);
        if (cap > 0) score = cap * std::tanh(score / cap);
        weights.push_back(score);
      }
      if (shape.has_sinks) weights.push_back(double{sinks[static_cast<std::size_t>(h)]});
      const double largest = *std::max_element(weights.begin(), weights.end());
      for (double& weight : weights) weight = std::exp(weight - largest);
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (std::int64_t d = first_element; d < dim; ++d) {
        double value = 0.0;
        for (std::int64_t j = first; j < end; ++j) {
          const double* v = values.data() + (j * shape.num_kv_heads + h / group) * dim;
          value += weights[static_cast<std::size_t>(j - first)] / sum * v[d];
        }
        out.push_back(value);
      }
    }
  }
  return out;
}

/// A cache filled with NaN, whose blocks go to sequences in a shuffled order. Pages of other than
/// 16 tokens are padded.
class TestCache {
 public:
  TestCache(const Shape& shape, ElementType type, std::int64_t block_size, std::int64_t num_seqs,
            std::int64_t max_len, std::uint32_t seed)
      : max_blocks_((max_len + block_size - 1) / block_size),
        view_{nullptr,        type, num_seqs * max_blocks_, block_size, shape.num_kv_heads,
              shape.head_dim, 0,    shape.latent_dim},
        tables_(static_cast<std::size_t>(view_.num_blocks)) {
    if (block_size != 16) view_.padded_page_bytes = view_.block_bytes() + 192;
    memory_.assign(static_cast<std::size_t>(view_.num_blocks * view_.page_stride()) + 64,
                   std::byte{0xff});
    view_.data = memory_.data();
    std::iota(tables_.begin(), tables_.end(), 0);
    std::shuffle(tables_.begin(), tables_.end(), std::mt19937(seed));
  }
  [[nodiscard]] const KvCacheView& view() const { return view_; }
  [[nodiscard]] std::vector<std::int32_t>& tables() { return tables_; }
  [[nodiscard]] std::int64_t max_blocks() const { return max_blocks_; }
  /// Of tables(): sequences have theirs from the last one on.
  [[nodiscard]] std::int32_t row(std::int64_t seq) const {
    return static_cast<std::int32_t>(std::ssize(tables_) / max_blocks_ - 1 - seq);
  }
  [[nodiscard]] std::int64_t slot(std::int64_t seq, std::int64_t position) const {
    const auto index =
        static_cast<std::size_t>(row(seq) * max_blocks_ + position / view_.block_size);
    return tables_[index] * view_.block_size + position % view_.block_size;
  }

 private:
  std::int64_t max_blocks_;
  KvCacheView view_;
  std::vector<std::byte> memory_;
  std::vector<std::int32_t> tables_;
};

/// One step: for every sequence its tokens [begin, end). Writes K and V, attends, and puts the
/// outputs in place in outs[seq], which is [length, num_heads, head_dim].
struct Piece {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t num_queries = end - begin;  ///< only so many of the last tokens attend
};
void run_step(const OpTable& ops, const Shape& shape, const std::vector<Sequence>& seqs,
              const std::vector<Piece>& pieces, TestCache& cache, std::vector<Floats>& outs,
              int num_threads = 2, std::int64_t workspace_bytes = 0) {
  const std::int64_t q_size = shape.num_heads * shape.head_dim;
  const std::int64_t kv_size = shape.num_kv_heads * shape.head_dim;
  Floats q, k, v;
  std::vector<std::int64_t> slots;
  std::int64_t num_tokens = 0;
  std::vector<std::int32_t> starts = {0};
  std::vector<std::int32_t> lens;
  std::vector<std::int32_t> rows;
  std::vector<TwoWaySpan> spans;
  std::vector<std::int32_t> span_starts = {0};
  for (std::size_t s = 0; s < seqs.size(); ++s) {
    const auto [begin, end, num_queries] = pieces[s];
    spans.insert(spans.end(), seqs[s].spans.begin(), seqs[s].spans.end());
    span_starts.push_back(static_cast<std::int32_t>(spans.size()));
    const auto append = [end = end](Floats& to, const Floats& from, std::int64_t first,
                                    std::int64_t size) {
      to.insert(to.end(), from.begin() + first * size, from.begin() + end * size);
    };
    append(q, seqs[s].q, end - num_queries, q_size);
    append(k, seqs[s].k, begin, kv_size);
    append(v, seqs[s].v, begin, kv_size);
    num_tokens += end - begin;
    for (std::int64_t t = begin; t < end; ++t) {
      slots.push_back(cache.slot(static_cast<std::int64_t>(s), t));
    }
    starts.push_back(starts.back() + static_cast<std::int32_t>(num_queries));
    lens.push_back(static_cast<std::int32_t>(end));
    rows.push_back(cache.row(static_cast<std::int64_t>(s)));
  }
  const std::int64_t num_queries = starts.back();
  const std::int64_t out_size = shape.num_heads * shape.value_dim();
  const Floats sinks = shape.sinks();
  const TestContext context(workspace_bytes, num_threads);
  Floats rotated_q(static_cast<std::size_t>(num_tokens * q_size));
  ops.rope_and_write_kv(context,
                        {.q = heads(rotated_q, num_tokens, shape.num_heads, shape.head_dim),
                         .k = heads(k, num_tokens, shape.num_kv_heads, shape.head_dim),
                         .v = heads(v, num_tokens, shape.num_kv_heads, shape.head_dim),
                         .slots = slots.data(),
                         .cache = cache.view()});
  Floats out(static_cast<std::size_t>(num_queries * out_size), -1.0f);
  ops.attention(context,
                {.q = heads(std::as_const(q), num_queries, shape.num_heads, shape.head_dim),
                 .cache = cache.view(),
                 .query_start_loc = starts.data(),
                 .seq_lens = lens.data(),
                 .block_tables = cache.tables().data(),
                 .block_table_stride = cache.max_blocks(),
                 .block_table_rows = rows.data(),
                 .num_seqs = static_cast<std::int64_t>(seqs.size()),
                 .scale = shape.scale,
                 .sliding_window = shape.window,
                 .local_chunk = shape.local_chunk,
                 .logit_softcap = shape.softcap,
                 .sinks = sinks.empty() ? nullptr : sinks.data(),
                 .two_way_spans = spans.empty() ? nullptr : spans.data(),
                 .span_start_loc = span_starts.data(),
                 .out = heads(out, num_queries, shape.num_heads, shape.value_dim())});
  for (std::size_t s = 0; s < seqs.size(); ++s) {
    outs[s].resize(static_cast<std::size_t>(seqs[s].length * out_size));
    std::copy(out.begin() + starts[s] * out_size, out.begin() + starts[s + 1] * out_size,
              outs[s].begin() + (pieces[s].end - pieces[s].num_queries) * out_size);
  }
}

/// All of one sequence in pieces of `step` tokens.
Floats run_in_pieces(const OpTable& ops, const Shape& shape, const Sequence& seq, ElementType type,
                     std::int64_t block_size, std::int64_t step, std::uint32_t seed,
                     int num_threads = 2, std::int64_t workspace_bytes = 0) {
  TestCache cache(shape, type, block_size, 1, seq.length, seed);
  std::vector<Floats> outs(1);
  const std::vector<Sequence> seqs = {seq};
  for (std::int64_t begin = 0; begin < seq.length; begin += step) {
    run_step(ops, shape, seqs, {{begin, std::min(seq.length, begin + step)}}, cache, outs,
             num_threads, workspace_bytes);
  }
  return outs[0];
}

const Shape kShapes[] = {
    {},
    {.num_heads = 3, .num_kv_heads = 3, .head_dim = 20},
    {.num_heads = 18, .num_kv_heads = 1, .head_dim = 80},
    {.window = 24},
    {.num_heads = 3, .num_kv_heads = 1, .head_dim = 72, .window = 100},
    {.num_heads = 2, .num_kv_heads = 2, .head_dim = 24},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 128, .window = 260, .softcap = 5.0f},
    {.num_heads = 3, .num_kv_heads = 1, .head_dim = 64, .scale = 0.125f},
    {.local_chunk = 24, .has_sinks = true},
    {.num_kv_heads = 1, .head_dim = 60, .latent_dim = 36},
};

/// The shape of many heads takes as long as the others together.
bool skips(const Shape& shape, ElementType type) {
  return kSanitized && shape.num_heads > 8 && type != ElementType::kF32;
}

BOOST_AUTO_TEST_CASE(attention_equals_double_precision_for_every_set_and_cache_type) {
  for (const ElementType type : {ElementType::kF32, ElementType::kBF16, ElementType::kF16,
                                 ElementType::kI8, ElementType::kF8E4M3}) {
    for (const Shape& shape : kShapes) {
      if (skips(shape, type)) continue;
      for (const std::int64_t length : {1, 33, 290}) {
        const Sequence seq(shape, length, 1);
        std::vector<double> wants[2];  // without and with rounding
        for (const OpTable* ops : all_tables()) {
          const bool rounds = attends_in_bf16(*ops, shape, type);
          std::vector<double>& want = wants[rounds ? 1 : 0];
          if (want.empty()) want = reference_attention(shape, seq, type, rounds);
          const double error =
              worst_error(run_in_pieces(*ops, shape, seq, type, 16, length, 3), want);
          // The unit takes the softmax's weights, or their products with the scales, in bf16.
          const double bound = !rounds ? 1e-5 : scale_bytes(type) == 0 ? 4e-3 : 6e-3;
          BOOST_TEST(error < bound, ops->name << " type " << int(type) << " dim " << shape.head_dim
                                              << " length " << length << " error " << error);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(bits_do_not_depend_on_chunking_block_size_block_order_or_threads) {
  for (const OpTable* ops : all_tables()) {
    for (const ElementType type :
         {ElementType::kF32, ElementType::kBF16, ElementType::kI8, ElementType::kF8E4M3}) {
      for (const Shape& shape : kShapes) {
        if (skips(shape, type)) continue;
        Sequence seq(shape, 290, 4);
        if (type == ElementType::kF8E4M3) {
          // Every other value is so small, beside the first, that it is kept without an exponent.
          for (std::size_t d = 0; d < seq.v.size(); ++d) {
            const auto in_head = static_cast<std::int64_t>(d) % shape.head_dim;
            if (in_head == 0) seq.v[d] = 1.0f;
            if (in_head % 2 == 1) seq.v[d] *= 1e-5f;
          }
        }
        const Floats whole = run_in_pieces(*ops, shape, seq, type, 16, 290, 1, 1);
        const auto n = static_cast<std::int64_t>(whole.size());
        std::vector<std::tuple<int, int, int>> cuts = {{16, 1, 2}, {5, 257, 4}, {16, 16, 2}};
        if (!kSanitized) cuts.insert(cuts.end(), {{32, 100, 1}, {128, 290, 4}, {8, 33, 2}});
        for (const auto& [block_size, step, threads] : cuts) {
          const Floats pieces = run_in_pieces(*ops, shape, seq, type, block_size, step, 7, threads);
          BOOST_TEST(same_bits(whole.data(), pieces.data(), n),
                     ops->name << " type " << int(type) << " dim " << shape.head_dim
                               << " block size " << block_size << " step " << step);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(decode_split_over_chunks_has_the_bits_of_decode_in_one_piece) {
  for (const OpTable* ops : all_tables()) {
    for (const Shape& shape : kShapes) {
      const Sequence seq(shape, 1030, 5);
      const std::int64_t workspace = ops->attention_workspace_bytes(
          {shape.num_heads, shape.num_kv_heads, shape.value_dim(), 1030}, 4);
      TestCache cache(shape, ElementType::kBF16, 16, 1, 1030, 1);
      std::vector<Floats> split(1);
      std::vector<Floats> whole(1);
      run_step(*ops, shape, {seq}, {{0, 1029}}, cache, split);
      whole = split;
      run_step(*ops, shape, {seq}, {{1029, 1030}}, cache, split, 4, workspace);
      run_step(*ops, shape, {seq}, {{1029, 1030}}, cache, whole, 1, 0);
      BOOST_TEST(
          same_bits(split[0].data(), whole[0].data(), static_cast<std::int64_t>(whole[0].size())),
          ops->name << " dim " << shape.head_dim);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_sequence_has_the_same_bits_alone_and_in_a_mixed_batch) {
  for (const OpTable* ops : all_tables()) {
    for (const Shape& shape : kShapes) {
      std::vector<Sequence> seqs;
      const std::vector<std::int64_t> lengths = {40, 1, 290, 17, 64};
      for (const std::int64_t length : lengths) {
        seqs.emplace_back(shape, length, static_cast<std::uint32_t>(length));
      }
      TestCache cache(shape, ElementType::kBF16, 16, 5, 290, 9);
      std::vector<Floats> outs(5);
      // Some sequences prefill, some continue a prefill, some decode one token.
      run_step(*ops, shape, seqs, {{0, 39}, {0, 0}, {0, 100}, {0, 16}, {0, 1}}, cache, outs);
      run_step(*ops, shape, seqs, {{39, 40}, {0, 1}, {100, 290}, {16, 17}, {1, 64}}, cache, outs);
      for (std::size_t s = 0; s < seqs.size(); ++s) {
        const Floats alone =
            run_in_pieces(*ops, shape, seqs[s], ElementType::kBF16, 16, lengths[s], 1);
        BOOST_TEST(same_bits(alone.data(), outs[s].data(), static_cast<std::int64_t>(alone.size())),
                   ops->name << " sequence " << s);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(many_tokens_on_one_thread_get_the_bits_of_a_few_at_a_time) {
  constexpr std::int64_t kLength = 300;
  constexpr std::int64_t kBroken = 150;
  for (const Shape& shape :
       {Shape{}, Shape{.head_dim = 72, .window = 24}, Shape{.head_dim = 64, .window = 260}}) {
    const std::int64_t row = shape.num_kv_heads * shape.head_dim;
    const std::int64_t out_row = shape.num_heads * shape.head_dim;
    const Sequence clean(shape, kLength, 21);
    Sequence broken = clean;
    broken.v[static_cast<std::size_t>(kBroken * row)] = std::nanf("");
    for (const OpTable* ops : all_tables()) {
      for (const ElementType type : {ElementType::kBF16, ElementType::kI8}) {
        for (const std::int64_t block_size : {16, 8}) {
          const Floats few = run_in_pieces(*ops, shape, clean, type, block_size, 7, 5);
          const Floats many = run_in_pieces(*ops, shape, clean, type, block_size, kLength, 5, 1);
          BOOST_TEST(same_bits(few.data(), many.data(), kLength * out_row),
                     ops->name << " type " << int(type) << " block size " << block_size);
          // Tiles that go together share what is staged of a chunk, up to the last token of any.
          const Floats hit = run_in_pieces(*ops, shape, broken, type, block_size, kLength, 5, 1);
          BOOST_TEST(same_bits(many.data(), hit.data(), kBroken * out_row),
                     ops->name << " type " << int(type) << " block size " << block_size);
          BOOST_TEST(
              !same_bits(many.data() + kBroken * out_row, hit.data() + kBroken * out_row, out_row));
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_sequence_without_tokens_in_the_step_changes_no_other) {
  const Shape shape;
  const Sequence seq(shape, 300, 6);
  for (const OpTable* ops : all_tables()) {
    TestCache cache(shape, ElementType::kBF16, 16, 2, 300, 2);
    std::vector<Floats> outs(2);
    const std::int64_t workspace = ops->attention_workspace_bytes(
        {shape.num_heads, shape.num_kv_heads, shape.head_dim, 300}, 4);
    run_step(*ops, shape, {seq, seq}, {{0, 0}, {0, 284}}, cache, outs, 4, workspace);
    // Two tiles for each head of one sequence, none for the other: as many as with one each.
    run_step(*ops, shape, {seq, seq}, {{0, 0}, {284, 300}}, cache, outs, 4, workspace);
    const Floats alone = run_in_pieces(*ops, shape, seq, ElementType::kBF16, 16, 300, 1);
    BOOST_TEST(same_bits(alone.data(), outs[1].data(), static_cast<std::int64_t>(alone.size())),
               ops->name);
  }
}

BOOST_AUTO_TEST_CASE(sequences_with_few_or_no_queries_get_the_same_bits) {
  constexpr std::int64_t kLength = 290;
  for (const OpTable* ops : all_tables()) {
    for (const ElementType type : {ElementType::kF32, ElementType::kBF16, ElementType::kF16,
                                   ElementType::kI8, ElementType::kF8E4M3}) {
      for (const Shape& shape : kShapes) {
        if (skips(shape, type)) continue;
        const std::int64_t row = shape.num_heads * shape.value_dim();
        const std::int64_t workspace = ops->attention_workspace_bytes(
            {shape.num_heads, shape.num_kv_heads, shape.value_dim(), kLength}, 4);
        const std::vector<Sequence> seqs(6, Sequence(shape, kLength, 14));
        const Floats whole = run_in_pieces(*ops, shape, seqs[0], type, 16, kLength, 3);
        // None at both ends and side by side; a decode and the end of a prompt between them.
        const std::vector<Piece> first = {{0, 100, 0}, {0, 280}, {0, 289, 0},
                                          {0, 5, 0},   {0, 7},   {0, 1, 0}};
        const std::vector<Piece> mixed = {{100, 200, 0}, {280, kLength, 3}, {289, kLength, 0},
                                          {5, 289, 0},   {7, kLength, 20},  {1, 150, 0}};
        const std::vector<Piece> last = {{200, kLength, 1},  {kLength, kLength},
                                         {kLength, kLength}, {289, kLength},
                                         {kLength, kLength}, {150, kLength, 140}};
        TestCache cache(shape, type, 16, 6, kLength, 2);
        std::vector<Floats> outs(6);
        const auto run = [&](const std::vector<Piece>& pieces) {
          run_step(*ops, shape, seqs, pieces, cache, outs, 4, workspace);
          for (std::size_t s = 0; s < seqs.size(); ++s) {
            const std::int64_t begin = (pieces[s].end - pieces[s].num_queries) * row;
            BOOST_TEST(same_bits(whole.data() + begin, outs[s].data() + begin,
                                 pieces[s].num_queries * row),
                       ops->name << " type " << int(type) << " dim " << shape.head_dim
                                 << " sequence " << s << " up to " << pieces[s].end);
          }
        };
        run(first);
        run(mixed);
        run(last);
        // No token attends.
        run(std::vector<Piece>(6, {0, kLength, 0}));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_broken_token_reaches_only_the_tokens_that_see_it) {
  Shape shape;
  shape.window = 20;
  for (const OpTable* ops : all_tables()) {
    for (const ElementType type :
         {ElementType::kF32, ElementType::kBF16, ElementType::kI8, ElementType::kF8E4M3}) {
      Sequence seq(shape, 60, 11);
      const Floats clean = run_in_pieces(*ops, shape, seq, type, 16, 60, 1);
      const std::int64_t row = shape.num_kv_heads * shape.head_dim;
      seq.v[static_cast<std::size_t>(30 * row)] = std::nanf("");
      seq.k[static_cast<std::size_t>(30 * row)] = std::numeric_limits<float>::infinity();
      const std::int64_t out_row = shape.num_heads * shape.head_dim;
      for (const std::int64_t block_size : {16, 8}) {
        const Floats broken = run_in_pieces(*ops, shape, seq, type, block_size, 60, 1);
        for (std::int64_t t = 0; t < 60; ++t) {
          const bool sees_it = t >= 30 && t < 50;
          const bool same =
              same_bits(clean.data() + t * out_row, broken.data() + t * out_row, out_row);
          BOOST_TEST(same == !sees_it, ops->name << " type " << int(type) << " token " << t
                                                 << " block size " << block_size);
        }
      }
    }
  }
}

/// Two images in a row, one longer than a window, one over the end of a chunk.
const std::vector<TwoWaySpan> kSpans = {{3, 9}, {9, 40}, {60, 61}, {250, 270}};

BOOST_AUTO_TEST_CASE(tokens_of_a_span_see_all_of_it_and_the_others_what_they_always_see) {
  constexpr std::int64_t kLength = 290;
  for (const ElementType type : {ElementType::kF32, ElementType::kBF16, ElementType::kI8}) {
    for (const Shape& shape : {kShapes[0], kShapes[3], kShapes[4]}) {
      const Sequence causal(shape, kLength, 1);
      Sequence seq = causal;
      seq.spans = kSpans;
      std::vector<double> wants[2];  // without and with rounding
      for (const OpTable* ops : all_tables()) {
        const bool rounds = attends_in_bf16(*ops, shape, type);
        std::vector<double>& want = wants[rounds ? 1 : 0];
        if (want.empty()) want = reference_attention(shape, seq, type, rounds);
        const Floats got = run_in_pieces(*ops, shape, seq, type, 16, kLength, 3);
        const double error = worst_error(got, want);
        const double bound = !rounds ? 1e-5 : scale_bytes(type) == 0 ? 4e-3 : 6e-3;
        BOOST_TEST(error < bound, ops->name << " type " << int(type) << " dim " << shape.head_dim
                                            << " error " << error);
        const Floats without = run_in_pieces(*ops, shape, causal, type, 16, kLength, 3);
        const std::int64_t row = shape.num_heads * shape.head_dim;
        std::int64_t num_wrong = 0;
        for (std::int64_t t = 0; t < kLength; ++t) {
          const bool same = same_bits(got.data() + t * row, without.data() + t * row, row);
          if (same != (seq.seen_by(t, shape) == causal.seen_by(t, shape))) ++num_wrong;
        }
        BOOST_TEST(num_wrong == 0, ops->name << " type " << int(type) << " dim " << shape.head_dim);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(spans_have_the_same_bits_in_chunks_in_batches_and_in_every_block_size) {
  constexpr std::int64_t kLength = 290;
  for (const OpTable* ops : all_tables()) {
    for (const ElementType type : {ElementType::kF32, ElementType::kBF16, ElementType::kI8}) {
      for (const Shape& shape : kShapes) {
        if (skips(shape, type)) continue;
        const std::int64_t row = shape.num_heads * shape.value_dim();
        Sequence seq(shape, kLength, 4);
        const Floats text = run_in_pieces(*ops, shape, seq, type, 16, kLength, 1, 1);
        std::vector<Sequence> seqs(3, seq);
        seqs[0].spans = kSpans;
        seqs[2].spans = kSpans;
        const Floats whole = run_in_pieces(*ops, shape, seqs[0], type, 16, kLength, 1, 1);
        const std::int64_t workspace = ops->attention_workspace_bytes(
            {shape.num_heads, shape.num_kv_heads, shape.value_dim(), kLength}, 4);
        TestCache cache(shape, type, 8, 3, kLength, 2);
        std::vector<Floats> outs(3);
        // No span is cut; of the last one in the third sequence only the last tokens attend.
        for (const std::vector<Piece>& pieces :
             {std::vector<Piece>{{0, 9}, {0, 100}, {0, 61}},
              std::vector<Piece>{{9, 40}, {100, 101}, {61, 270, 5}},
              std::vector<Piece>{{40, kLength}, {101, kLength}, {270, 271}}}) {
          run_step(*ops, shape, seqs, pieces, cache, outs, 4, workspace);
        }
        const auto check = [&](const Floats& want, std::size_t s, std::int64_t begin,
                               std::int64_t end) {
          BOOST_TEST(
              same_bits(want.data() + begin * row, outs[s].data() + begin * row,
                        (end - begin) * row),
              ops->name << " type " << int(type) << " dim " << shape.head_dim << " sequence " << s);
        };
        check(whole, 0, 0, kLength);
        check(text, 1, 0, kLength);
        check(whole, 2, 0, 61);
        check(whole, 2, 265, 271);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(blocks_before_the_window_are_not_read) {
  Shape shape;
  shape.window = 20;
  for (const OpTable* ops : all_tables()) {
    const Sequence seq(shape, 300, 12);
    TestCache cache(shape, ElementType::kF32, 16, 1, 300, 2);
    std::vector<Floats> outs(1);
    run_step(*ops, shape, {seq}, {{0, 299}}, cache, outs);
    for (std::size_t i = 0; i < 17; ++i) cache.tables()[i] = -1000000;
    run_step(*ops, shape, {seq}, {{299, 300}}, cache, outs);
    BOOST_TEST(worst_error(outs[0], reference_attention(shape, seq, ElementType::kF32)) < 1e-5);
  }
}

}  // namespace
}  // namespace troupe
