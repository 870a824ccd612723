#include <algorithm>
#include <numeric>

#include "tests/kernels/cuda/device_testing.hpp"

namespace troupe {
namespace {

using namespace testing;

struct Shape {
  std::int64_t num_heads = 4;
  std::int64_t num_kv_heads = 2;
  std::int64_t head_dim = 32;
  std::int64_t block_size = 16;
  ElementType type = ElementType::kF32;
  std::int32_t window = 0;
  float softcap = 0.0f;
  bool has_spans = false;  ///< of each sequence, two

  [[nodiscard]] std::int64_t q_size() const { return num_heads * head_dim; }
  [[nodiscard]] std::int64_t kv_size() const { return num_kv_heads * head_dim; }
};

/// The tokens [begin, end) of a sequence that one step computes. Their keys and values are written;
/// only so many of the last ones attend.
struct Piece {
  std::int64_t seq = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t num_queries = end - begin;
};

/// Sequences of random q, k and v, and a KV cache whose blocks go to them in a shuffled order.
class Workload {
 public:
  Workload(const Shape& shape, const std::vector<std::int64_t>& lengths) : shape_(shape) {
    const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    max_blocks_ = (longest + shape.block_size - 1) / shape.block_size;
    for (const std::int64_t length : lengths) {
      const auto seed = static_cast<std::uint32_t>(3 * q_.size());
      q_.push_back(random_floats(length * shape.q_size(), seed, 2.0f));
      k_.push_back(random_floats(length * shape.kv_size(), seed + 1, 2.0f));
      v_.push_back(random_floats(length * shape.kv_size(), seed + 2, 2.0f));
    }
    tables_.resize(lengths.size() * static_cast<std::size_t>(max_blocks_));
    std::iota(tables_.begin(), tables_.end(), 0);
    std::shuffle(tables_.begin(), tables_.end(), std::mt19937(1));
  }

 private:
  struct Batch {
    Floats q, k, v, out;
    std::vector<std::int64_t> slots;
    std::vector<std::int32_t> starts = {0};
    std::vector<std::int32_t> lens;
    std::vector<std::int32_t> rows;  // of tables_
    std::vector<TwoWaySpan> spans;
    std::vector<std::int32_t> span_starts = {0};
  };

  /// Pages of 5 tokens are padded.
  [[nodiscard]] KvCacheView view(void* data) const {
    KvCacheView view{data,
                     shape_.type,
                     static_cast<std::int64_t>(tables_.size()),
                     shape_.block_size,
                     shape_.num_kv_heads,
                     shape_.head_dim};
    if (shape_.block_size == 5) view.padded_page_bytes = view.block_bytes() + 192;
    return view;
  }

  [[nodiscard]] Batch make_batch(const std::vector<Piece>& pieces) const {
    Batch batch;
    for (const Piece& piece : pieces) {
      const auto seq = static_cast<std::size_t>(piece.seq);
      const auto append = [&piece](Floats& to, const Floats& from, std::int64_t size,
                                   std::int64_t num_tokens) {
        to.insert(to.end(), from.begin() + (piece.end - num_tokens) * size,
                  from.begin() + piece.end * size);
      };
      append(batch.q, q_[seq], shape_.q_size(), piece.num_queries);
      append(batch.k, k_[seq], shape_.kv_size(), piece.end - piece.begin);
      append(batch.v, v_[seq], shape_.kv_size(), piece.end - piece.begin);
      const auto table = tables_.begin() + piece.seq * max_blocks_;
      batch.rows.push_back(static_cast<std::int32_t>(piece.seq));
      for (std::int64_t t = piece.begin; t < piece.end; ++t) {
        const std::int64_t block = table[t / shape_.block_size];
        batch.slots.push_back(block * shape_.block_size + t % shape_.block_size);
      }
      batch.starts.push_back(batch.starts.back() + static_cast<std::int32_t>(piece.num_queries));
      batch.lens.push_back(static_cast<std::int32_t>(piece.end));
      // Before what is computed step by step, and over the end of a chunk.
      if (shape_.has_spans) batch.spans.insert(batch.spans.end(), {{2, 17}, {250, 260}});
      batch.span_starts.push_back(static_cast<std::int32_t>(batch.spans.size()));
    }
    batch.out.assign(batch.q.size(), -1.0f);
    return batch;
  }

  /// rope_and_write_kv without rotation, then attention.
  [[nodiscard]] auto operation(const Batch& batch, void* cache) const {
    const auto num_tokens = static_cast<std::int64_t>(batch.slots.size());
    const auto num_seqs = static_cast<std::int64_t>(batch.lens.size());
    const std::int64_t num_queries = batch.starts.back();
    return [=, this](const OpTable& ops, const OpContext& context, float* out, const float* q,
                     const float* k, const float* v, const std::int64_t* slots,
                     const std::int32_t* starts, const std::int32_t* lens,
                     const std::int32_t* tables, const std::int32_t* rows, const TwoWaySpan* spans,
                     const std::int32_t* span_starts) {
      const Shape& s = shape_;
      // No queries: theirs are constant, and would stay as they are.
      ops.rope_and_write_kv(context, {.q = {nullptr, num_tokens, 0, s.head_dim, 0},
                                      .k = {k, num_tokens, s.num_kv_heads, s.head_dim, s.kv_size()},
                                      .v = {v, num_tokens, s.num_kv_heads, s.head_dim, s.kv_size()},
                                      .slots = slots,
                                      .cache = view(cache)});
      ops.attention(context, {.q = {q, num_queries, s.num_heads, s.head_dim, s.q_size()},
                              .cache = view(cache),
                              .query_start_loc = starts,
                              .seq_lens = lens,
                              .block_tables = tables,
                              .block_table_stride = max_blocks_,
                              .block_table_rows = rows,
                              .num_seqs = num_seqs,
                              .scale = 0.3f,
                              .sliding_window = s.window,
                              .logit_softcap = s.softcap,
                              .two_way_spans = s.has_spans ? spans : nullptr,
                              .span_start_loc = span_starts,
                              .out = {out, num_queries, s.num_heads, s.head_dim, s.q_size()}});
    };
  }

 public:
  /// A cache of nothing but NaN.
  [[nodiscard]] std::vector<std::byte> empty_cache() const {
    const auto num_bytes = view(nullptr).num_blocks * view(nullptr).page_stride();
    return std::vector<std::byte>(static_cast<std::size_t>(num_bytes), std::byte{0xff});
  }

  /// The outputs of each step's tokens, all steps computed with one cache.
  [[nodiscard]] std::vector<Floats> on_device(const std::vector<std::vector<Piece>>& steps) const {
    const DeviceArray<std::byte> cache(empty_cache());
    std::vector<Floats> outs;
    for (const std::vector<Piece>& pieces : steps) {
      const Batch batch = make_batch(pieces);
      outs.push_back(run_on_device(batch.out, operation(batch, cache.data()), batch.q, batch.k,
                                   batch.v, batch.slots, batch.starts, batch.lens, tables_,
                                   batch.rows, batch.spans, batch.span_starts));
    }
    return outs;
  }
  [[nodiscard]] std::vector<Floats> on_host(const std::vector<std::vector<Piece>>& steps) const {
    std::vector<std::byte> cache = empty_cache();
    std::vector<Floats> outs;
    for (const std::vector<Piece>& pieces : steps) {
      const Batch batch = make_batch(pieces);
      outs.push_back(run_on_host(batch.out, operation(batch, cache.data()), batch.q, batch.k,
                                 batch.v, batch.slots, batch.starts, batch.lens, tables_,
                                 batch.rows, batch.spans, batch.span_starts));
    }
    return outs;
  }

 private:
  Shape shape_;
  std::int64_t max_blocks_ = 0;
  std::vector<Floats> q_, k_, v_;
  std::vector<std::int32_t> tables_;
};

/// A prefill of all, then a step that mixes a chunk of prefill, decodes, and a sequence of no
/// queries.
void check_against_reference(const Shape& shape) {
  const Workload workload(shape, {300, 40, 1, 530});
  const std::vector<std::vector<Piece>> steps = {
      {{0, 0, 299, 2}, {1, 0, 17, 3}, {2, 0, 1}, {3, 0, 260, 6}},
      {{0, 299, 300}, {2, 1, 1}, {1, 17, 40, 5}, {3, 260, 530, 3}},
  };
  const std::vector<Floats> got = workload.on_device(steps);
  const std::vector<Floats> want = workload.on_host(steps);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    BOOST_TEST(worst_error(got[i], {want[i].begin(), want[i].end()}) < 2e-5);
  }
}

BOOST_AUTO_TEST_CASE(attention_is_that_of_the_reference_for_every_cache_type_and_block_size) {
  for (const ElementType type : {ElementType::kF32, ElementType::kBF16, ElementType::kF16,
                                 ElementType::kI8, ElementType::kF8E4M3}) {
    for (const std::int64_t block_size : {1, 5, 16, 32}) {
      check_against_reference({.block_size = block_size, .type = type});
    }
  }
}

BOOST_AUTO_TEST_CASE(attention_is_that_of_the_reference_for_odd_and_large_heads) {
  check_against_reference({.num_heads = 3, .num_kv_heads = 3, .head_dim = 7});
  check_against_reference({.num_heads = 6, .num_kv_heads = 1, .head_dim = 80});
  check_against_reference({.num_heads = 2, .num_kv_heads = 1, .head_dim = kMaxHeadDim});
}

BOOST_AUTO_TEST_CASE(windows_and_soft_caps_are_those_of_the_reference) {
  check_against_reference({.window = 1});
  check_against_reference({.window = 100});
  check_against_reference({.window = 256, .softcap = 3.0f});
}

BOOST_AUTO_TEST_CASE(spans_that_see_both_ways_are_those_of_the_reference) {
  check_against_reference({.has_spans = true});
  check_against_reference({.type = ElementType::kBF16, .window = 6, .has_spans = true});
}

BOOST_AUTO_TEST_CASE(a_token_has_the_same_bits_alone_in_chunks_and_among_others) {
  for (const auto& [type, window] :
       {std::pair{ElementType::kBF16, 0}, {ElementType::kBF16, 70}, {ElementType::kI8, 0}}) {
    const Shape shape{.type = type, .window = window};
    const Workload workload(shape, {530, 9});
    constexpr std::int64_t kQueries = 26;  // around the second chunk's end
    const Floats whole = workload.on_device({{{0, 0, 530, kQueries}}})[0];

    const std::vector<Floats> chunked =
        workload.on_device({{{0, 0, 511, 7}}, {{0, 511, 514}, {1, 0, 9}}, {{0, 514, 530}}});
    Floats joined = chunked[0];
    const Floats middle = rows_of(chunked[1], shape.q_size(), 0, 3);
    joined.insert(joined.end(), middle.begin(), middle.end());
    joined.insert(joined.end(), chunked[2].begin(), chunked[2].end());
    BOOST_CHECK(joined == whole);

    const std::vector<Floats> decoded =
        workload.on_device({{{0, 0, 528, 1}}, {{0, 528, 529}}, {{1, 0, 8}, {0, 529, 530}}});
    BOOST_CHECK(decoded[1] == rows_of(whole, shape.q_size(), kQueries - 2, 1));
    BOOST_CHECK(rows_of(decoded[2], shape.q_size(), 8, 1) ==
                rows_of(whole, shape.q_size(), kQueries - 1, 1));
  }
}

}  // namespace
}  // namespace troupe
