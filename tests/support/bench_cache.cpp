// The block pool's operations with a million blocks, and the hashing of prompts.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <vector>

#include "runtime/base/hash.hpp"
#include "runtime/cache/block_hash.hpp"
#include "runtime/cache/block_pool.hpp"

namespace troupe {
namespace {

constexpr std::int32_t kBlockSize = 16;
constexpr std::int32_t kNumBlocks = 1'000'000;
constexpr std::int32_t kBlocksOfRequest = 64;

BlockKey nth_key(std::uint64_t n) {
  BlockKey key;
  for (std::size_t i = 0; i < 4; ++i) {
    n = (n ^ (n >> 31)) * 0x9e3779b97f4a7c15u + 1;
    std::memcpy(key.hash.bytes.data() + 8 * i, &n, sizeof n);
  }
  return key;
}

double cpu_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);  // the machine may be shared
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

/// A full cache in which requests come and go: each takes its blocks, which evicts others, and
/// frees them; and each comes again once, while its blocks are still there. The keys of request r
/// are nth_key(r * kBlocksOfRequest) and the next ones.
struct BusyPool {
  BusyPool() : pool(kNumBlocks, false) {
    for (int i = 0; i < 3 * kNumBlocks / kBlocksOfRequest; ++i) run();
  }

  struct Times {
    double hit = 0, allocate = 0, free = 0;  ///< ns of all blocks
    std::size_t num_hits = 0;
  };
  Times run() {
    Times times;
    name(num_requests - std::min(num_requests, 1 + random() % kRecent));
    double before = cpu_ns();
    hits.clear();
    for (const BlockKey& key : keys) {
      const BlockId block = pool.find(key.hash, key.group);
      if (block != PrefixMap::kNotFound) hits.push_back(block);
    }
    for (const BlockId block : hits) pool.touch(block);
    times.hit = cpu_ns() - before;
    times.num_hits = hits.size();

    name(num_requests++);
    before = cpu_ns();
    taken.clear();
    pool.take(kBlocksOfRequest, taken);
    for (const BlockKey& key : keys) pool.prefetch(key);
    for (std::size_t i = 0; i < taken.size(); ++i) pool.set_content(taken[i], keys[i], kBlockSize);
    times.allocate = cpu_ns() - before;

    std::reverse(taken.begin(), taken.end());
    std::reverse(hits.begin(), hits.end());
    before = cpu_ns();
    pool.free(taken);
    pool.free(hits);
    times.free = cpu_ns() - before;
    return times;
  }

  static constexpr std::uint64_t kRecent = kNumBlocks / kBlocksOfRequest / 2;
  [[nodiscard]] std::uint64_t random() {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 33;
  }
  void name(std::uint64_t request) {
    keys.resize(kBlocksOfRequest);
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = nth_key(request * kBlocksOfRequest + i);
  }

  BlockPool pool;
  std::vector<BlockId> hits, taken;
  std::vector<BlockKey> keys;
  std::uint64_t num_requests = 0;
  std::uint64_t seed = 7;
};

/// Per block, in CPU time.
template <int kTimed>
void pool_operation(benchmark::State& state) {
  static BusyPool busy;
  double num_blocks = 0;
  for (auto _ : state) {
    const BusyPool::Times times = busy.run();
    const auto num_hits = static_cast<double>(times.num_hits);
    const double ns[] = {times.hit / std::max(num_hits, 1.0), times.allocate / kBlocksOfRequest,
                         times.free / (kBlocksOfRequest + num_hits)};
    state.SetIterationTime(ns[kTimed] * 1e-9);
    num_blocks += num_hits;
  }
  state.counters["hits_per_request"] =
      benchmark::Counter(num_blocks, benchmark::Counter::kAvgIterations);
}
void hit_block(benchmark::State& state) { pool_operation<0>(state); }
void allocate_block(benchmark::State& state) { pool_operation<1>(state); }
void free_block(benchmark::State& state) { pool_operation<2>(state); }
BENCHMARK(hit_block)->UseManualTime()->Iterations(20000);
BENCHMARK(allocate_block)->UseManualTime()->Iterations(20000);
BENCHMARK(free_block)->UseManualTime()->Iterations(20000);

void hash_prompt(benchmark::State& state) {
  const BlockHasher hasher(static_cast<BlockHashAlgorithm>(state.range(0)),
                           static_cast<std::int32_t>(state.range(1)));
  KVCacheRequest request;
  for (TokenId token = 0; token < 16384; ++token) request.token_ids.edit().push_back(token * 7);
  std::vector<BlockHash> hashes;
  for (auto _ : state) {
    hashes.clear();
    hasher.extend(request, hashes);
  }
  state.counters["tokens"] = benchmark::Counter(static_cast<double>(state.iterations()) * 16384,
                                                benchmark::Counter::kIsRate);
}
BENCHMARK(hash_prompt)
    ->ArgNames({"algorithm", "unit"})
    ->Args({static_cast<int>(BlockHashAlgorithm::kSha256Cbor), 16})
    ->Args({static_cast<int>(BlockHashAlgorithm::kSha256Cbor), 128})
    ->Args({static_cast<int>(BlockHashAlgorithm::kSha256), 16})
    ->Args({static_cast<int>(BlockHashAlgorithm::kXxhashCbor), 16})
    ->Unit(benchmark::kMicrosecond);

/// What hash_prompt cannot be faster than: the digest alone, of as many bytes as a unit's CBOR has.
void digest_alone(benchmark::State& state) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(state.range(0)), 0x5a);
  for (auto _ : state) {
    const auto digest = sha256(bytes);
    std::memcpy(bytes.data(), digest.data(), digest.size());
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(digest_alone)->Arg(38 + 16 * 3)->Arg(38 + 128 * 3)->Arg(1 << 20);

}  // namespace
}  // namespace troupe

BENCHMARK_MAIN();
