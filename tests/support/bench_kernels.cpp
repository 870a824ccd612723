// Speed of the kernels against what the machine can do: a stream read, f32 multiply-adds and, where
// there is a unit for bf16 (of AMX, else of AVX-512), its products are measured first, in the same
// run, and operations are reported as fractions of the first two. Matrices that are multiplied in
// bf16 can exceed the f32 limit, and data that fit the caches that of the stream.

#include <benchmark/benchmark.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.hpp"
#include "kernels/thread_pool.hpp"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Zeroed memory, aligned to 64, given back at the end.
class Memory {
 public:
  explicit Memory(std::int64_t bytes) : bytes_((static_cast<std::size_t>(bytes) + 63) / 64 * 64) {
    data_ = static_cast<std::byte*>(std::aligned_alloc(64, bytes_));
    std::fill_n(data_, bytes_, std::byte{0});
  }
  ~Memory() { std::free(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] float* floats() const { return reinterpret_cast<float*>(data_); }
  [[nodiscard]] std::size_t size() const { return bytes_; }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

void fill_random(float* values, std::int64_t n) {
  std::mt19937 random(1);
  for (std::int64_t i = 0; i < n; ++i) {
    values[i] = static_cast<float>(random() % 2001) * 0.001f - 1.0f;
  }
}

/// The limits are 0 where they are not measured: without AVX-512, without AMX.
struct Machine {
  ThreadPool pool;
  double stream_bytes_per_s = 0.0;
  double flops = 0.0;
  double bf16_flops = 0.0;  ///< of the unit for bf16: AMX's, else AVX-512's
};

// The widest vectors that every machine with AVX-512 has; elsewhere the compiler splits them.
typedef float Lanes __attribute__((vector_size(64)));
#if defined(__x86_64__)
#define WIDEST_VECTORS [[gnu::target("avx512f,prefer-vector-width=512"), gnu::optimize("O3")]]
#else
#define WIDEST_VECTORS
#endif

/// Reads [begin, begin + bytes) as whole vectors.
WIDEST_VECTORS void read_all(const std::byte* begin, std::int64_t bytes) {
  Lanes sums[8] = {};
  const auto* lanes = reinterpret_cast<const Lanes*>(begin);
  for (std::int64_t i = 0; i < bytes / 64; i += 8) {
    for (int j = 0; j < 8; ++j) sums[j] += lanes[i + j];
  }
  for (int j = 1; j < 8; ++j) sums[0] += sums[j];
  float total = sums[0][0];
  benchmark::DoNotOptimize(total);
}

/// f32 multiply-adds in registers.
WIDEST_VECTORS void multiply_add_in_registers(std::int64_t rounds) {
  Lanes sums[16];
  for (auto& sum : sums) sum = Lanes{} + 1.0f;
  Lanes factor = Lanes{} + 0.999f;
  for (std::int64_t i = 0; i < rounds; ++i) {
    for (auto& sum : sums) sum = sum * factor + factor;
  }
  for (auto& sum : sums) factor += sum;
  float total = factor[0];
  benchmark::DoNotOptimize(total);
}

#if defined(__x86_64__)
/// [32, kTileDepth] times [kTileDepth, 32] in bf16, all tiles one behind the other: as the inner
/// loop of a large product that finds both factors in the second cache. Pre: tiles may be used.
constexpr std::int64_t kTileDepth = 4096;
[[gnu::target("amx-tile,amx-bf16")]] void multiply_tiles(const std::byte* factors,
                                                         std::int64_t rounds) {
  struct alignas(64) {
    std::uint8_t palette = 1;
    std::uint8_t reserved[15] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t num_rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  asm volatile("" ::"r"(&config) : "memory");  // GCC 12 may else leave out most of its stores
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (std::int64_t k = 0; k < kTileDepth / 32; ++k) {
      const std::byte* const tiles = factors + k * 4096;
      _tile_loadd(4, tiles, 64);
      _tile_loadd(5, tiles + 1024, 64);
      _tile_loadd(6, tiles + 2048, 64);
      _tile_loadd(7, tiles + 3072, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_release();
}
/// Products of pairs in bf16, in registers. Pre: the CPU has AVX512_BF16.
[[gnu::target("avx512f,avx512bf16"), gnu::optimize("O3")]] void multiply_pairs_in_registers(
    std::int64_t rounds) {
  __m512 sums[16];
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  __m512i bits = _mm512_set1_epi32(0x3c8abd11);
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(bits));  // the same factors, but the compiler does not know
    const auto pairs = reinterpret_cast<__m512bh>(bits);
    for (auto& sum : sums) sum = _mm512_dpbf16_ps(sum, pairs, pairs);
  }
  for (int i = 1; i < 16; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  float total = sums[0][0];
  benchmark::DoNotOptimize(total);
}
#else
constexpr std::int64_t kTileDepth = 0;
void multiply_tiles(const std::byte*, std::int64_t) {}
void multiply_pairs_in_registers(std::int64_t) {}
#endif

/// The best of several reads of 512 MiB by all threads.
double measure_stream(ThreadPool& pool) {
  constexpr std::int64_t kBytes = std::int64_t{512} << 20;
  constexpr std::int64_t kChunk = std::int64_t{1} << 20;
  const Memory memory(kBytes);
  double best = 0.0;
  for (int round = 0; round < 10; ++round) {
    const auto start = Clock::now();
    pool.parallel_for(kBytes / kChunk, [&](std::int64_t chunk) {
      read_all(memory.data() + chunk * kChunk, kChunk);
    });
    best = std::max(best, static_cast<double>(kBytes) / seconds_since(start));
  }
  return best;
}

/// All threads at the rate of the best of many short runs of `work`: what other programs take of
/// the machine does not count, nor does a thread that wakes late.
template <class Work>
double measure_flops(ThreadPool& pool, double flops, const Work& work) {
  constexpr std::size_t kNumChunks = 1000;
  std::vector<double> seconds(kNumChunks);
  pool.parallel_for(kNumChunks, [&](std::int64_t chunk) {
    const auto start = Clock::now();
    work();
    seconds[static_cast<std::size_t>(chunk)] = seconds_since(start);
  });
  return pool.num_threads() * flops / *std::min_element(seconds.begin(), seconds.end());
}

double measure_vectors(ThreadPool& pool) {
  constexpr std::int64_t kRounds = 20000;
  return measure_flops(pool, kRounds * 16 * 16 * 2, [] { multiply_add_in_registers(kRounds); });
}

/// Numbers in bf16 with signs and fractions as a model's have them: with nothing but zeros the
/// units need less power, and the CPU runs them a fifth faster than with any model.
void fill_random_halves(const Memory& memory) {
  std::mt19937 random(1);
  auto* halves = reinterpret_cast<std::uint16_t*>(memory.data());
  for (std::size_t i = 0; i < memory.size() / 2; ++i)
    halves[i] = static_cast<std::uint16_t>(0x3c00 | (random() & 0x807f));
}

struct TileFactors {
  TileFactors() { fill_random_halves(memory); }
  Memory memory{kTileDepth * 128};
};

double measure_tiles(ThreadPool& pool) {
  constexpr std::int64_t kRounds = 20;
  const auto work = [] {
    thread_local const TileFactors factors;
    multiply_tiles(factors.memory.data(), kRounds);
  };
  return measure_flops(pool, kRounds * kTileDepth * 32 * 32 * 2, work);
}

double measure_pairs(ThreadPool& pool) {
  constexpr std::int64_t kRounds = 20000;
  return measure_flops(pool, kRounds * 16 * 32 * 2, [] { multiply_pairs_in_registers(kRounds); });
}

bool has_avx512_bf16() {
  return why_unavailable(Isa::kAvx512).empty() &&
         std::string(cpu_ops(Isa::kAvx512)->name) == "avx512_bf16";
}

Machine& machine() {
  static Machine* const kMachine = [] {
    auto* const measured = new Machine;
    if (why_unavailable(Isa::kAvx512).empty()) {
      measured->stream_bytes_per_s = measure_stream(measured->pool);
      measured->flops = measure_vectors(measured->pool);
    }
    if (why_unavailable(Isa::kAmx).empty())
      measured->bf16_flops = measure_tiles(measured->pool);
    else if (has_avx512_bf16())
      measured->bf16_flops = measure_pairs(measured->pool);
    std::printf(
        "threads %d, stream read %.1f GB/s, f32 multiply-add %.0f GFLOP/s, bf16 unit %.0f GFLOP/s "
        "(0: not measured)\n",
        measured->pool.num_threads(), measured->stream_bytes_per_s / 1e9, measured->flops / 1e9,
        measured->bf16_flops / 1e9);
    return measured;
  }();
  return *kMachine;
}

void report(benchmark::State& state, double bytes, double flops) {
  using benchmark::Counter;
  const auto rounds = static_cast<double>(state.iterations());
  const auto rate = [](double amount) { return Counter(amount, Counter::kIsRate); };
  state.counters["GB/s"] = rate(bytes * rounds / 1e9);
  state.counters["GFLOP/s"] = rate(flops * rounds / 1e9);
  if (machine().flops == 0.0) return;
  state.counters["of_stream"] = rate(bytes * rounds / machine().stream_bytes_per_s);
  state.counters["of_f32_peak"] = rate(flops * rounds / machine().flops);
}

/// Several packed matrices of one kind: more weights than any cache holds, as a model's layers are.
class Matrices {
 public:
  /// spec.is_compact: they are in fewer bits.
  Matrices(const OpTable* ops, const WeightSpec& spec) : spec_(spec) {
    WeightSpec as_packed = spec;
    as_packed.is_compact = false;
    const Memory packed(ops->packed_bytes(as_packed));
    pack(ops, as_packed, packed.data());
    const OpContext context{&machine().pool, {}};
    matrix_bytes_ = spec.is_compact ? ops->compact_bytes(context, as_packed, packed.data())
                                    : ops->packed_bytes(as_packed);
    count_ = std::max<std::int64_t>(1, (std::int64_t{256} << 20) / matrix_bytes_);
    weights_.emplace(matrix_bytes_ * count_);
    for (std::int64_t i = 0; i < count_; ++i) {
      std::byte* const out = weights_->data() + i * matrix_bytes_;
      if (spec.is_compact)
        ops->compact(context, as_packed, packed.data(), out);
      else
        std::copy_n(packed.data(), matrix_bytes_, out);
    }
  }
  /// Round and round.
  PackedWeight next() {
    next_ = (next_ + 1) % count_;
    return {spec_, weights_->data() + next_ * matrix_bytes_};
  }
  [[nodiscard]] std::int64_t matrix_bytes() const { return matrix_bytes_; }

 private:
  static void pack(const OpTable* ops, const WeightSpec& spec, std::byte* packed) {
    const Memory row(spec.num_cols * 4);
    fill_random(row.floats(), spec.num_cols);
    const std::vector<std::int8_t> numbers(static_cast<std::size_t>(spec.num_cols), 5);
    for (std::int64_t r = 0; r < spec.num_rows; ++r) {
      if (spec.quantized != QuantizedType::kNone)
        ops->pack_quantized_rows(spec, {numbers.data(), row.floats(), row.floats(), 1}, r, packed);
      else
        ops->pack_rows(spec, {row.data(), ElementType::kF32, 1, spec.num_cols}, r, packed);
    }
  }

  WeightSpec spec_;
  std::int64_t matrix_bytes_ = 0;
  std::int64_t count_ = 0;
  std::optional<Memory> weights_;
  std::int64_t next_ = 0;
};

/// `spec` without the sizes.
void bench_matmul(benchmark::State& state, const OpTable* ops, WeightSpec spec) {
  const std::int64_t m = state.range(0);
  const std::int64_t n = state.range(1);
  const std::int64_t k = state.range(2);
  spec.num_rows = n;
  spec.num_cols = k;
  Matrices weights(ops, spec);
  const Memory x(m * k * 4);
  fill_random(x.floats(), m * k);
  const Memory out(m * n * 4);
  const Memory workspace(std::max<std::int64_t>(64, ops->matmul_workspace_bytes(spec, m)));
  const OpContext context{&machine().pool, {workspace.data(), workspace.size()}};
  for (auto _ : state) {
    ops->matmul(context, {.x = ConstMatrix(x.floats(), m, k),
                          .weight = weights.next(),
                          .out = Matrix(out.floats(), m, n)});
  }
  report(state, static_cast<double>(weights.matrix_bytes()), 2.0 * static_cast<double>(m * n * k));
}

/// Qwen3-0.6B's: 1024 wide outside, 3072 inside.
void bench_gated_mlp(benchmark::State& state, const OpTable* ops, const WeightSpec& spec) {
  constexpr std::int64_t kOutside = 1024;
  constexpr std::int64_t kInside = 3072;
  const std::int64_t m = state.range(0);
  WeightSpec gate_up_spec = spec;
  gate_up_spec.num_rows = 2 * kInside;
  gate_up_spec.num_cols = kOutside;
  gate_up_spec.is_gated = true;
  WeightSpec down_spec = spec;
  down_spec.num_rows = kOutside;
  down_spec.num_cols = kInside;
  down_spec.k_shards = 4;
  Matrices gate_up(ops, gate_up_spec);
  Matrices down(ops, down_spec);
  const Memory x(m * kOutside * 4);
  fill_random(x.floats(), m * kOutside);
  const Memory out(m * kOutside * 4);
  const Memory workspace(ops->gated_mlp_workspace_bytes(gate_up_spec, down_spec, m));
  const OpContext context{&machine().pool, {workspace.data(), workspace.size()}};
  for (auto _ : state) {
    ops->gated_mlp(context, {.x = ConstMatrix(x.floats(), m, kOutside),
                             .gate_up = gate_up.next(),
                             .down = down.next(),
                             .out = Matrix(out.floats(), m, kOutside)});
  }
  report(state, static_cast<double>(gate_up.matrix_bytes() + down.matrix_bytes()),
         2.0 * static_cast<double>(m * 3 * kInside * kOutside));
}

/// Qwen3-0.6B's attention: 16 heads, 8 KV heads of 128; `queries` new tokens after `length -
/// queries`.
void bench_attention(benchmark::State& state, const OpTable* ops, ElementType type) {
  constexpr std::int64_t kHeads = 16;
  constexpr std::int64_t kKvHeads = 8;
  constexpr std::int64_t kDim = 128;
  constexpr std::int64_t kBlock = 16;
  const auto queries = static_cast<std::int32_t>(state.range(0));
  const auto length = static_cast<std::int32_t>(state.range(1));
  const std::int64_t blocks_per_layer = (length + kBlock - 1) / kBlock;
  KvCacheView cache{nullptr, type, blocks_per_layer, kBlock, kKvHeads, kDim};
  const std::int64_t layer_bytes = blocks_per_layer * cache.block_bytes();
  // As many layers as the model has: their pages do not stay in caches.
  constexpr std::int64_t kLayers = 28;
  const Memory pages(layer_bytes * kLayers);
  const Memory q(queries * kHeads * kDim * 4);
  const Memory out(queries * kHeads * kDim * 4);
  fill_random(q.floats(), queries * kHeads * kDim);
  std::vector<std::int32_t> table(static_cast<std::size_t>(blocks_per_layer));
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(1));
  const std::int32_t starts[] = {0, queries};
  const std::int32_t row = 0;
  const Memory workspace(ops->attention_workspace_bytes({kHeads, kKvHeads, kDim, length},
                                                        machine().pool.num_threads()));
  const OpContext context{&machine().pool, {workspace.data(), workspace.size()}};
  std::int64_t layer = 0;
  for (auto _ : state) {
    cache.data = pages.data() + layer * layer_bytes;
    ops->attention(context, {.q = ConstHeads(q.floats(), queries, kHeads, kDim, kHeads * kDim),
                             .cache = cache,
                             .query_start_loc = starts,
                             .seq_lens = &length,
                             .block_tables = table.data(),
                             .block_table_rows = &row,
                             .num_seqs = 1,
                             .scale = 0.088f,
                             .out = Heads(out.floats(), queries, kHeads, kDim, kHeads * kDim)});
    layer = (layer + 1) % kLayers;
  }
  const double pairs = static_cast<double>(queries) * (length - (queries - 1) / 2.0);
  report(state, static_cast<double>(layer_bytes), pairs * kHeads * kDim * 4.0);
}

/// A vision encoder's: 256 of 4096 patches attend to all of them, with 16 heads of `dim` elements.
void bench_two_way_attention(benchmark::State& state, const OpTable* ops) {
  constexpr std::int64_t kHeads = 16;
  constexpr std::int64_t kBlock = 16;
  constexpr std::int32_t kLength = 4096;
  constexpr std::int64_t kQueries = 256;
  const std::int64_t dim = state.range(0);
  KvCacheView cache{nullptr, ElementType::kBF16, kLength / kBlock, kBlock, kHeads, dim};
  const Memory pages(cache.num_blocks * cache.block_bytes());
  cache.data = pages.data();
  fill_random_halves(pages);
  const Memory q(kQueries * kHeads * dim * 4);
  const Memory out(kQueries * kHeads * dim * 4);
  fill_random(q.floats(), kQueries * kHeads * dim);
  std::vector<std::int32_t> table(static_cast<std::size_t>(cache.num_blocks));
  std::iota(table.begin(), table.end(), 0);
  const std::int32_t starts[] = {0, kQueries};
  const std::int32_t spans[] = {0, 1};
  const TwoWaySpan span{0, kLength};
  const std::int32_t row = 0;
  const Memory workspace(
      ops->attention_workspace_bytes({kHeads, kHeads, dim, kLength}, machine().pool.num_threads()));
  const OpContext context{&machine().pool, {workspace.data(), workspace.size()}};
  for (auto _ : state) {
    ops->attention(context, {.q = ConstHeads(q.floats(), kQueries, kHeads, dim, kHeads * dim),
                             .cache = cache,
                             .query_start_loc = starts,
                             .seq_lens = &kLength,
                             .block_tables = table.data(),
                             .block_table_rows = &row,
                             .num_seqs = 1,
                             .scale = 0.118f,
                             .two_way_spans = &span,
                             .span_start_loc = spans,
                             .out = Heads(out.floats(), kQueries, kHeads, dim, kHeads * dim)});
  }
  report(state, static_cast<double>(cache.num_blocks * cache.block_bytes()),
         static_cast<double>(kQueries * kLength * kHeads * dim) * 4.0);
}

/// New tokens of the same model, made ready for attention: read once, queries written, keys and
/// values written to neighbouring slots.
void bench_rope_and_write_kv(benchmark::State& state, const OpTable* ops, ElementType type) {
  constexpr std::int64_t kHeads = 16;
  constexpr std::int64_t kKvHeads = 8;
  constexpr std::int64_t kDim = 128;
  constexpr std::int64_t kBlock = 16;
  constexpr std::int64_t kRow = (kHeads + 2 * kKvHeads) * kDim;
  const std::int64_t tokens = state.range(0);
  KvCacheView cache{nullptr, type, (tokens + kBlock - 1) / kBlock, kBlock, kKvHeads, kDim};
  const std::int64_t layer_bytes = cache.num_blocks * cache.block_bytes();
  constexpr std::int64_t kLayers = 28;
  const Memory pages(layer_bytes * kLayers);
  const Memory qkv(tokens * kRow * 4);
  fill_random(qkv.floats(), tokens * kRow);
  // No rotation and no weight: the queries, which are changed in place, keep their size.
  const Memory cos(tokens * kDim / 2 * 4);
  const Memory sin(tokens * kDim / 2 * 4);
  const Memory weight(kDim * 4);
  std::fill_n(cos.floats(), tokens * kDim / 2, 1.0f);
  std::fill_n(weight.floats(), kDim, 1.0f);
  std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens));
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<std::int64_t> slots(positions.begin(), positions.end());
  const OpContext context{&machine().pool, {}};
  std::int64_t layer = 0;
  for (auto _ : state) {
    cache.data = pages.data() + layer * layer_bytes;
    float* const q = qkv.floats();
    ops->rope_and_write_kv(
        context, {.q = Heads(q, tokens, kHeads, kDim, kRow),
                  .k = ConstHeads(q + kHeads * kDim, tokens, kKvHeads, kDim, kRow),
                  .v = ConstHeads(q + (kHeads + kKvHeads) * kDim, tokens, kKvHeads, kDim, kRow),
                  .q_norm_weight = weight.floats(),
                  .k_norm_weight = weight.floats(),
                  .rotary_dim = kDim,
                  .positions = positions.data(),
                  .cos = cos.floats(),
                  .sin = sin.floats(),
                  .slots = slots.data(),
                  .cache = cache});
    layer = (layer + 1) % kLayers;
  }
  const std::int64_t kv_bytes = 2 * kKvHeads * (kDim * element_bytes(type) + scale_bytes(type));
  report(state, static_cast<double>(tokens * ((kRow + kHeads * kDim) * 4 + kv_bytes)), 0.0);
}

/// An operation on [rows, cols] that reads and writes `passes` times as many floats.
template <class Run>
void bench_rows(benchmark::State& state, double passes, const Run& run) {
  const std::int64_t rows = state.range(0);
  const std::int64_t cols = state.range(1);
  const Memory x(rows * cols * 8);
  const Memory out(rows * cols * 4);
  const Memory weight(cols * 4);
  fill_random(x.floats(), rows * cols * 2);
  const OpContext context{&machine().pool, {}};
  for (auto _ : state) run(context, x.floats(), weight.floats(), out.floats(), rows, cols);
  report(state, passes * 4.0 * static_cast<double>(rows * cols), 0.0);
}

void register_for(const OpTable* ops) {
  const std::string name = ops->name;
  const auto add = [&](const std::string& op, auto&& f) {
    return benchmark::RegisterBenchmark((name + "/" + op).c_str(), f)
        ->MeasureProcessCPUTime()
        ->UseRealTime();
  };
  const WeightSpec f32{.type = ElementType::kBF16, .mode = ComputeMode::kF32};
  const WeightSpec bf16{.type = ElementType::kBF16, .mode = ComputeMode::kBF16};
  WeightSpec int8 = f32;
  int8.quantized = QuantizedType::kInt8;
  int8.group_size = 64;
  WeightSpec int4 = f32;
  int4.quantized = QuantizedType::kInt4;
  int4.group_size = 32;
  WeightSpec compact = bf16;
  compact.is_compact = true;
  for (const auto& [kind, spec] : {std::pair{"matmul_f32", f32},
                                   {"matmul_bf16", bf16},
                                   {"matmul_compact", compact},
                                   {"matmul_int8", int8},
                                   {"matmul_int4", int4}}) {
    if (spec.is_compact && ops->compact == nullptr) continue;
    auto* matmul =
        add(kind, [ops, spec = spec](benchmark::State& state) { bench_matmul(state, ops, spec); });
    for (const std::int64_t m : {1, 8, 32, 512}) {
      for (const auto& [n, k] : {std::pair{4096, 1024}, {6144, 1024}, {1024, 3072}}) {
        matmul->Args({m, n, k});
      }
    }
    matmul->Args({1, 151936, 1024});
    // A part of an image in SigLIP's widest layers.
    matmul->Args({192, 4304, 1152})->Args({192, 1152, 4304});
    matmul->Args({256, 4304, 1152})->Args({256, 1152, 4304});
    matmul->Args({384, 4304, 1152})->Args({384, 1152, 4304});
    const std::string mlp = "gated_mlp" + std::string(kind).substr(std::string("matmul").size());
    add(mlp, [ops, spec = spec](benchmark::State& state) { bench_gated_mlp(state, ops, spec); })
        ->Arg(1)
        ->Arg(512);
  }
  for (const auto& [kind, type] : {std::pair{"attention_f32", ElementType::kF32},
                                   {"attention_bf16", ElementType::kBF16},
                                   {"attention_int8", ElementType::kI8},
                                   {"attention_fp8", ElementType::kF8E4M3}}) {
    add(kind, [ops, type = type](benchmark::State& state) { bench_attention(state, ops, type); })
        ->Args({1, 512})
        ->Args({1, 2048})
        ->Args({1, 8192})
        ->Args({512, 512})
        ->Args({512, 2048})
        ->Args({512, 16384});
  }
  add("two_way_attention_bf16",
      [ops](benchmark::State& state) { bench_two_way_attention(state, ops); })
      ->Arg(64)
      ->Arg(72)
      ->Arg(80)
      ->Arg(96);
  for (const auto& [kind, type] : {std::pair{"rope_and_write_kv_bf16", ElementType::kBF16},
                                   {"rope_and_write_kv_int8", ElementType::kI8}}) {
    add(kind,
        [ops, type = type](benchmark::State& state) { bench_rope_and_write_kv(state, ops, type); })
        ->Arg(1)
        ->Arg(16)
        ->Arg(512);
  }
  add("rms_norm",
      [ops](benchmark::State& state) {
        bench_rows(state, 2,
                   [ops](const OpContext& context, float* x, float* weight, float* out,
                         std::int64_t rows, std::int64_t cols) {
                     ops->rms_norm(context, {.x = ConstMatrix(x, rows, cols),
                                             .weight = weight,
                                             .out = Matrix(out, rows, cols)});
                   });
      })
      ->Args({1, 1024})
      ->Args({512, 1024});
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  for (const troupe::Isa isa : {troupe::Isa::kAvx2, troupe::Isa::kAvx512, troupe::Isa::kAmx}) {
    if (troupe::why_unavailable(isa).empty()) troupe::register_for(troupe::cpu_ops(isa));
  }
  benchmark::Initialize(&argc, argv);
  troupe::machine();
  benchmark::RunSpecifiedBenchmarks();
}
