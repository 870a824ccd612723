// Random workloads: whatever happens, blocks are neither lost nor given out twice, budgets are kept
// and every request ends once.

#include <boost/test/unit_test.hpp>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "runtime/scheduler/scheduler.hpp"
#include "tests/support/local_ports.hpp"

namespace troupe {
namespace {

class Workload {
 public:
  explicit Workload(std::uint32_t seed) : random_(seed) {
    KVCacheSettings settings;
    const int num_groups = pick(1, 3);
    for (int g = 0; g < num_groups; ++g) {
      KVCacheSpec spec{.block_size = 8};
      const int kind = num_groups == 1 ? pick(0, 2) : (g == 0 ? 0 : 1);
      if (kind == 1) spec.kind = KVCacheKind::kSlidingWindow, spec.sliding_window = 20;
      if (kind == 2) spec.kind = KVCacheKind::kChunkedLocal, spec.attention_chunk_size = 32;
      settings.groups.push_back({.spec = spec});
    }
    config_.max_model_len = settings.max_model_len = 96;
    config_.async_scheduling = pick(0, 1) == 1;
    config_.max_num_seqs = pick(1, 8);
    config_.max_num_batched_tokens = pick(8, 64);
    config_.policy = pick(0, 1) == 1 ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
    config_.prefix_caching = settings.prefix_caching = pick(0, 3) > 0;
    if (pick(0, 1) == 1) settings.retention_interval.reset();
    settings.max_in_flight_tokens = 2 * config_.max_num_batched_tokens;
    settings.num_blocks = config_.num_blocks = 1 + num_groups * pick(13, 40);
    manager_.emplace(settings);
    port_.emplace(*manager_);
    scheduler_.emplace(config_, *port_, nullptr);
  }

  void run(int num_operations) {
    for (int i = 0; i < num_operations; ++i) {
      switch (pick(0, 9)) {
        case 0:
        case 1:
          add();
          break;
        case 2:
          if (pick(0, 5) == 0) abort_one();
          break;
        case 3:
          if (pick(0, 20) == 0)
            static_cast<void>(run_now(scheduler_->reset_prefix_cache(pick(0, 1) == 1, 0)));
          break;
        default:
          step();
      }
      scheduler_->flush();
      check_blocks();
    }
    for (int i = 0; scheduler_->has_requests() || !open_.empty(); ++i) {
      BOOST_REQUIRE(i < 100000);
      step();
    }
    BOOST_TEST(alive_.empty());
    scheduler_->flush();
    check_blocks();
    BOOST_TEST(manager_->pool().num_free_blocks() == manager_->pool().num_blocks() - 1);
  }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  void add() {
    if (alive_.size() > 30) return;
    EngineCoreRequest request;
    request.id = RequestId{++last_id_};
    request.priority = pick(0, 2);
    request.arrival_time = static_cast<double>(last_id_);
    request.params.max_tokens = pick(1, 30);
    request.params.eos_token_id = 3;
    const int shared = pick(0, 40);
    for (int i = 0; i < shared; ++i) request.prompt_token_ids.push_back(i % 7);
    const int own = pick(1, 20);
    for (int i = 0; i < own; ++i) request.prompt_token_ids.push_back(pick(0, 50));
    for (int i = pick(0, 3); i > 1; --i) request.output_token_ids.push_back(pick(4, 50));
    alive_.insert(request.id);
    BOOST_REQUIRE(scheduler_->add_request(std::move(request), 0).ok());
  }

  void abort_one() {
    if (alive_.empty()) return;
    const RequestId id = *std::next(alive_.begin(), pick(0, static_cast<int>(alive_.size()) - 1));
    const auto done =
        scheduler_->finish_requests(std::span(&id, 1), RequestStatus::kFinishedAborted);
    BOOST_TEST(done.size() == 1u);
    alive_.erase(id);
  }

  /// Synchronous: plan and finish a step; asynchronous: plan one, finish the one before.
  void step() {
    if (scheduler_->has_requests()) {
      open_.push_back(run_now(scheduler_->schedule(0, pick(0, 4) == 0)));
      const SchedulerOutput& planned = open_.back();
      BOOST_TEST(planned.total_num_scheduled_tokens <= config_.max_num_batched_tokens);
      BOOST_TEST(planned.scheduled_ids.size() <= static_cast<std::size_t>(config_.max_num_seqs));
      for (const std::int32_t n : planned.num_scheduled_tokens) BOOST_TEST(n > 0);
    }
    const std::size_t depth = config_.async_scheduling && scheduler_->has_requests() ? 1 : 0;
    while (open_.size() > depth) finish_step();
  }

  void finish_step() {
    const SchedulerOutput planned = std::move(open_.front());
    open_.pop_front();
    ModelRunnerOutput result;
    result.ids = planned.scheduled_ids;
    std::map<RequestId, std::int32_t> computed;
    for (const NewRequestData& data : planned.new_requests)
      computed[data.id] = data.num_computed_tokens, known_[data.id] = data.token_ids.size();
    for (std::size_t i = 0; i < planned.cached_requests.ids.size(); ++i)
      computed[planned.cached_requests.ids[i]] = planned.cached_requests.num_computed_tokens[i];
    for (std::size_t i = 0; i < result.ids.size(); ++i) {
      const RequestId id = result.ids[i];
      const bool samples =
          static_cast<std::size_t>(computed[id] + planned.num_scheduled_tokens[i]) >= known_[id];
      result.num_sampled.push_back(samples ? 1 : 0);
      if (samples) result.sampled_token_ids.push_back(pick(2, 50));
    }
    const EngineCoreOutputs outputs = scheduler_->update_from_output(planned, result, 0);
    for (const EngineCoreOutput& output : outputs.outputs) {
      BOOST_TEST(alive_.contains(output.id));
      if (output.finish_reason) alive_.erase(output.id);
    }
  }

  void check_blocks() {
    const BlockPool& pool = manager_->pool();
    std::vector<int> owners(static_cast<std::size_t>(pool.num_blocks()));
    for (const auto& [id, request] : manager_->requests())
      for (const GroupBlocks& group : request->groups)
        for (const BlockId block : group.blocks) ++owners[static_cast<std::size_t>(block)];
    const std::vector<BlockId> queue = pool.free_queue();
    const std::set<BlockId> free(queue.begin(), queue.end());
    BOOST_REQUIRE(free.size() == queue.size());
    BOOST_REQUIRE(!free.contains(kNullBlock));
    int num_used = 0;
    for (BlockId block = 1; block < pool.num_blocks(); ++block) {
      const int num_owners = owners[static_cast<std::size_t>(block)];
      BOOST_REQUIRE(pool.num_references(block) == num_owners);
      BOOST_REQUIRE(free.contains(block) == (num_owners == 0));
      num_used += num_owners > 0;
    }
    BOOST_REQUIRE(num_used + pool.num_free_blocks() == pool.num_blocks() - 1);
  }

  std::mt19937 random_;
  SchedulerConfig config_;
  std::optional<KVCacheManager> manager_;
  std::optional<LocalKVCache> port_;
  std::optional<Scheduler> scheduler_;
  std::deque<SchedulerOutput> open_;
  std::set<RequestId> alive_;
  std::map<RequestId, std::size_t> known_;
  std::uint64_t last_id_ = 0;
};

BOOST_AUTO_TEST_CASE(random_workloads_keep_blocks_budgets_and_ends_in_order) {
  const std::uint32_t first_seed = std::random_device{}();
  BOOST_TEST_MESSAGE("first seed " << first_seed);
  for (std::uint32_t i = 0; i < 60; ++i) {
    BOOST_TEST_CONTEXT("seed " << first_seed + i) { Workload(first_seed + i).run(400); }
  }
}

BOOST_AUTO_TEST_CASE(a_plain_decode_step_costs_one_round_trip) {
  KVCacheSettings settings;
  settings.groups = {KVCacheGroup{.spec = {.block_size = 16}}};
  settings.num_blocks = 100;
  settings.max_model_len = 512;
  KVCacheManager manager(settings);
  LocalKVCache port(manager);
  Scheduler scheduler({.max_model_len = 512, .max_num_seqs = 8, .max_num_batched_tokens = 64}, port,
                      nullptr);
  for (std::uint64_t id = 1; id <= 8; ++id) {
    EngineCoreRequest request;
    request.id = RequestId{id};
    request.prompt_token_ids = {1, 2, static_cast<TokenId>(id)};
    BOOST_REQUIRE(scheduler.add_request(std::move(request), 0).ok());
  }
  for (int step = 0; step < 10; ++step) {
    port.num_round_trips = 0;
    const SchedulerOutput output = run_now(scheduler.schedule(0));
    if (step > 0) BOOST_TEST(port.num_round_trips == 1);
    ModelRunnerOutput result;
    result.ids = output.scheduled_ids;
    result.num_sampled.assign(8, 1);
    result.sampled_token_ids.assign(8, 5);
    BOOST_TEST(scheduler.update_from_output(output, result, 0).outputs.size() == 8u);
  }
}

BOOST_AUTO_TEST_CASE(a_failed_step_costs_no_request_and_no_token) {
  KVCacheSettings settings;
  settings.groups = {KVCacheGroup{.spec = {.block_size = 4}}};
  settings.num_blocks = 40;
  settings.max_model_len = 64;
  KVCacheManager manager(settings);
  LocalKVCache port(manager);
  Scheduler scheduler({.max_model_len = 64, .max_num_seqs = 4, .max_num_batched_tokens = 64}, port,
                      nullptr);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    EngineCoreRequest request;
    request.id = RequestId{id};
    request.params.max_tokens = 5;
    request.prompt_token_ids = {1, 2, 3, 4, 5, static_cast<TokenId>(id)};
    BOOST_REQUIRE(scheduler.add_request(std::move(request), 0).ok());
  }
  std::map<RequestId, std::vector<TokenId>> tokens;
  std::size_t num_finished = 0;
  for (int step = 0; step < 12 && scheduler.has_requests(); ++step) {
    const SchedulerOutput output = run_now(scheduler.schedule(0));
    if (step == 3) {
      BOOST_TEST(output.scheduled_ids.size() == 3u);
      BOOST_TEST(run_now(scheduler.recover_from_failed_step(output, 0)));
      BOOST_TEST(scheduler.running().empty());
      BOOST_TEST(manager.pool().num_free_blocks() == 39);
      BOOST_TEST(manager.pool().prefix_map().num_keys() == 0u);
      continue;
    }
    ModelRunnerOutput result;
    result.ids = output.scheduled_ids;
    result.num_sampled.assign(result.ids.size(), 1);
    for (const RequestId id : result.ids)
      result.sampled_token_ids.push_back(100 + scheduler.request(id)->num_tokens());
    for (const EngineCoreOutput& out : scheduler.update_from_output(output, result, 0).outputs) {
      tokens[out.id].push_back(out.new_token_ids.at(0));
      num_finished += out.finish_reason.has_value();
    }
  }
  BOOST_TEST(num_finished == 3u);
  for (const auto& [id, got] : tokens)
    BOOST_TEST((got == std::vector<TokenId>{106, 107, 108, 109, 110}));
}

/// A port whose answers come when the test says so.
class SlowPort final : public KVCachePort {
 public:
  explicit SlowPort(KVCacheManager& manager) : manager_(manager) {}
  void send(KVCacheUpdates updates) override { manager_.apply(updates); }
  Reply<SlotsAllocated> allocate(AllocateSlots question) override {
    return later(manager_.allocate(question));
  }
  Reply<PrefixHit> lookup(LookupPrefix question) override {
    return later(manager_.lookup(question));
  }
  Reply<RequestAdmitted> admit(AdmitRequest question) override {
    return later(manager_.admit(question));
  }
  Reply<BlockWork> take_block_work(TakeBlockWork question) override {
    return later(manager_.take_block_work(question));
  }
  Reply<PrefixCacheReset> reset(ResetPrefixCache question) override {
    return later(manager_.reset(question));
  }
  std::function<void()> answer;

 private:
  template <class T>
  Reply<T> later(T value) {
    auto [reply, setter] = Reply<T>::pending();
    answer = [setter = setter, value = std::move(value)] { setter.set(value); };
    return std::move(reply);
  }
  KVCacheManager& manager_;
};

BOOST_AUTO_TEST_CASE(a_step_goes_on_when_the_answer_arrives_and_may_be_dropped_before) {
  KVCacheSettings settings;
  settings.groups = {KVCacheGroup{.spec = {.block_size = 16}}};
  settings.num_blocks = 10;
  settings.max_model_len = 64;
  KVCacheManager manager(settings);
  SlowPort port(manager);
  std::function<void()> late_answer;
  {
    Scheduler scheduler({.max_model_len = 64, .max_num_seqs = 2, .max_num_batched_tokens = 64},
                        port, nullptr);
    EngineCoreRequest request;
    request.id = RequestId{1};
    request.prompt_token_ids = {1, 2, 3};
    BOOST_REQUIRE(scheduler.add_request(std::move(request), 0).ok());
    bool done = false;
    Task<SchedulerOutput> step = scheduler.schedule(0);
    step.start([&] { done = true; });
    BOOST_TEST(!done);
    std::exchange(port.answer, {})();  // the prefix
    BOOST_TEST(!done);
    std::exchange(port.answer, {})();  // the admission
    BOOST_TEST(done);
    BOOST_TEST(step.result().total_num_scheduled_tokens == 3);

    Task<bool> reset = scheduler.reset_prefix_cache(false, 0);
    reset.start();
    BOOST_TEST(!reset.done());
    late_answer = std::exchange(port.answer, {});
    reset.reset();
  }
  late_answer();  // nobody waits any more
}

}  // namespace
}  // namespace troupe
