#pragma once
// Random workloads for the Scheduler with its caches: whatever happens, blocks are neither lost nor
// given out twice, budgets are kept, every request ends once, and what the Scheduler says to wait
// for is needed.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "runtime/scheduler/scheduler.hpp"
#include "tests/support/local_ports.hpp"
#include "tests/support/random_connector.hpp"

namespace troupe {

/// One engine with groups of random kinds (full, MLA, sliding, chunked, Mamba with and without kept
/// states; hits inside blocks, drafters, copies), often with a KV connector, with grammars, and
/// with images over a small encoder cache, and random clients. Checks with Boost.Test after every
/// operation: free + used = total, references = owners, no block twice in the free queue; the
/// workers have room for every image's output that they are to make or that a step's tokens need.
class RandomWorkload {
 public:
  explicit RandomWorkload(std::uint32_t seed);

  /// Operations, then steps until every request has ended.
  void run(int num_operations);

  /// In words, for a failing seed.
  [[nodiscard]] const std::string& kinds() const noexcept { return kinds_; }
  /// Counts the events of the workload, so that a test can check that it covers them.
  struct Coverage {
    std::uint64_t hits = 0, preemptions = 0, copies = 0, evictions = 0;
    std::uint64_t loads = 0, failed_loads = 0, waits = 0;
    std::uint64_t encoded = 0, kept = 0;  ///< images: encoded, and used again
    std::uint64_t ahead = 0;              ///< encoded beside other steps
    void operator+=(const Coverage& other) {
      hits += other.hits, preemptions += other.preemptions, copies += other.copies;
      evictions += other.evictions;
      loads += other.loads, failed_loads += other.failed_loads, waits += other.waits;
      encoded += other.encoded, kept += other.kept, ahead += other.ahead;
    }
  };
  [[nodiscard]] const Coverage& coverage() const noexcept { return coverage_; }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  void choose_groups(KVCacheSettings& settings);
  void choose_drafter(KVCacheSettings& settings);
  void choose_connector(KVCacheSettings& settings);
  void choose_images(const KVCacheSettings& settings);
  void add();
  void add_images(EngineCoreRequest& request);
  void abort_one();
  void step();
  void finish_step();
  void fail_open_steps();
  void check_blocks();
  /// Simulates the workers' part in a step's images. `computed`: tokens of each request before it.
  void encode_images(const SchedulerOutput& planned,
                     const std::map<RequestId, std::int32_t>& computed);
  std::vector<std::string> encode_ahead(const SchedulerOutput& planned);

  std::mt19937 random_;
  std::string kinds_;
  SchedulerConfig config_;
  std::optional<KVCacheManager> manager_;
  std::optional<LocalKVCache> port_;
  std::optional<RandomConnector> connector_;
  EncoderCacheSettings images_;  ///< capacity 0: there are none
  std::unique_ptr<EncoderCacheManager> encoder_manager_;
  std::optional<LocalEncoderCache> encoder_port_;
  std::map<RequestId, std::vector<MultiModalFeature>> items_;  ///< known to the workers
  std::map<std::string, std::int32_t> outputs_;                ///< that they keep: embeddings
  struct ImageAhead {
    std::string identifier;
    int num_slices = 0;  ///< left
  };
  std::optional<ImageAhead> ahead_;  ///< what the workers encode beside steps
  std::optional<Scheduler> scheduler_;
  std::deque<SchedulerOutput> open_;
  std::set<RequestId> alive_;
  std::set<RequestId> without_grammar_;  ///< structured ones, until theirs is compiled
  std::map<RequestId, std::int32_t> num_prompt_tokens_;
  std::uint64_t last_id_ = 0;
  bool is_blocked_ = false;  ///< the Scheduler says so, and nothing has arrived since
  Coverage coverage_;
};

}  // namespace troupe
