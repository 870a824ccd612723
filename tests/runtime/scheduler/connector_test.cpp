// What the recorded decisions do not show of KV connectors and grammars.

#include <boost/test/unit_test.hpp>
#include <deque>

#include "runtime/scheduler/scheduler.hpp"
#include "tests/support/exact_grammar.hpp"
#include "tests/support/local_ports.hpp"

namespace troupe {
namespace {

/// Has the first `num_tokens` of every request.
class Store final : public KVConnector {
 public:
  explicit Store(std::int32_t num_tokens, bool before_step = false)
      : num_tokens_(num_tokens), before_step_(before_step) {}
  std::optional<Match> get_num_new_matched_tokens(const RequestState&,
                                                  std::int32_t num_local_tokens) override {
    return Match{std::max(0, num_tokens_ - num_local_tokens), before_step_};
  }
  void update_state_after_alloc(const RequestState&, const BlockTable& table,
                                std::int32_t) override {
    blocks = table[0];
  }
  Finished request_finished(const RequestState&, const BlockTable&) override { return {}; }
  std::vector<BlockId> blocks;

 private:
  std::int32_t num_tokens_;
  bool before_step_;  ///< loads while the request waits, not in its first step
};

struct Engine {
  explicit Engine(std::int32_t num_stored_tokens, bool async = false)
      : Engine(Store(num_stored_tokens), async) {}
  explicit Engine(Store what, bool async = false) : store(std::move(what)) {
    KVCacheSettings settings;
    settings.groups = {KVCacheGroup{.spec = {.block_size = 4}}};
    settings.num_blocks = 33;
    settings.max_model_len = 64;
    settings.kv_connector = true;
    manager.emplace(settings);
    port.emplace(*manager);
    SchedulerConfig config{.max_model_len = 64, .max_num_seqs = 4, .max_num_batched_tokens = 64};
    config.async_scheduling = async;
    config.kv_transfer = {.consumer = true, .recompute_failed_loads = true, .block_size = 4};
    scheduler.emplace(config, *port, nullptr, &store);
  }
  void add(EngineCoreRequest request) {
    request.id = RequestId{1};
    request.prompt_token_ids = {1, 2, 3, 4, 5, 6, 7, 8};
    request.params.max_tokens = 3;
    BOOST_REQUIRE(scheduler->add_request(std::move(request), 0).ok());
  }
  void plan() { open.push_back(run_now(scheduler->schedule(0))); }
  EngineCoreOutputs finish(std::vector<BlockId> invalid = {}) {
    ModelRunnerOutput result;
    result.ids = open.front().scheduled_ids;
    result.num_sampled.assign(result.ids.size(), 1);
    result.sampled_token_ids.assign(result.ids.size(), 9);
    result.kv_connector.invalid_block_ids = std::move(invalid);
    auto outputs = run_now(scheduler->update_from_output(open.front(), result, 0));
    open.pop_front();
    return outputs;
  }

  Store store;
  std::optional<KVCacheManager> manager;
  std::optional<LocalKVCache> port;
  std::optional<Scheduler> scheduler;
  std::deque<SchedulerOutput> open;
};

BOOST_AUTO_TEST_CASE(a_store_with_the_whole_prompt_leaves_the_last_token) {
  Engine engine(8);
  engine.add({});
  engine.plan();
  BOOST_TEST(engine.open.back().total_num_scheduled_tokens == 1);
  BOOST_TEST(engine.open.back().has_sync_kv_loads);
  BOOST_TEST(engine.finish().outputs.at(0).prefill_stats->num_external_cached_tokens == 7);
}

BOOST_AUTO_TEST_CASE(a_failed_load_drops_the_results_of_the_steps_in_flight) {
  Engine engine(4, /*async=*/true);
  engine.add({});
  engine.plan();
  engine.plan();
  BOOST_TEST(engine.finish({engine.store.blocks[0]}).outputs.empty());
  const RequestState& request = *engine.scheduler->request(RequestId{1});
  BOOST_TEST(request.num_computed_tokens == 0);
  BOOST_TEST(request.num_output_placeholders == 0);
  engine.plan();
  BOOST_TEST(engine.open.back().total_num_scheduled_tokens == 8);
  BOOST_TEST(engine.finish().outputs.empty());
  std::size_t num_tokens = 0;
  bool ended = false;
  for (int i = 0; i < 20 && (engine.scheduler->has_requests() || !engine.open.empty()); ++i) {
    if (engine.scheduler->has_requests()) engine.plan();
    for (const EngineCoreOutput& output : engine.finish().outputs) {
      num_tokens += output.new_token_ids.size();
      ended |= output.finish_reason.has_value();
    }
  }
  BOOST_TEST(ended);
  BOOST_TEST(num_tokens == 3u);
  engine.scheduler->flush();
  BOOST_TEST(engine.manager->pool().num_free_blocks() == 32);
}

/// Both requests hold blocks until their failed loads are noticed, the second one only after the
/// first one has blocks again.
BOOST_AUTO_TEST_CASE(requests_whose_loads_all_fail_do_not_wait_for_each_other) {
  Engine engine(Store(60, /*before_step=*/true));
  const std::vector<RequestId> ids = {RequestId{1}, RequestId{2}};
  for (const RequestId id : ids) {
    EngineCoreRequest request;
    request.id = id;
    request.prompt_token_ids = std::vector<TokenId>(60, static_cast<TokenId>(value(id)));
    request.params.max_tokens = 3;
    BOOST_REQUIRE(engine.scheduler->add_request(std::move(request), 0).ok());
  }
  engine.plan();
  const auto end_loads = [&](bool failed) {
    ModelRunnerOutput result;
    result.kv_connector.finished_recving = ids;
    if (failed) result.kv_connector.failed_recving = ids;
    static_cast<void>(
        run_now(engine.scheduler->update_from_output(engine.open.front(), result, 0)));
    engine.open.pop_front();
  };
  BOOST_TEST(!engine.scheduler->release_failed_loads());  // they are in progress
  end_loads(/*failed=*/true);
  engine.plan();
  BOOST_TEST((engine.scheduler->request(ids[0])->kv_load != KVLoad::kInProgress));
  BOOST_TEST(engine.scheduler->release_failed_loads());
  BOOST_TEST(!engine.scheduler->release_failed_loads());
  static_cast<void>(engine.finish());
  engine.plan();
  for (const RequestId id : ids)
    BOOST_TEST((engine.scheduler->request(id)->kv_load == KVLoad::kInProgress));
  end_loads(/*failed=*/false);
  for (int i = 0; i < 20 && engine.scheduler->has_requests(); ++i) {
    engine.plan();
    static_cast<void>(engine.finish());
  }
  BOOST_TEST(!engine.scheduler->has_requests());
  engine.scheduler->flush();
  BOOST_TEST(engine.manager->pool().num_free_blocks() == 32);
}

/// Accepts everything, and counts.
class CountingGrammar final : public GrammarMasker {
 public:
  explicit CountingGrammar(int& count) : count_(count) {}
  bool accept(TokenId) override { return ++count_ > 0; }
  void rollback(std::size_t n) override { count_ -= static_cast<int>(n); }
  [[nodiscard]] std::size_t words_per_row() const { return 1; }
  void fill_bitmask(std::span<std::int32_t> row) override { row[0] = count_; }
  [[nodiscard]] std::optional<Error> why_nothing_fits() const override { return std::nullopt; }

 private:
  int& count_;
};

BOOST_AUTO_TEST_CASE(the_grammar_of_a_resubmitted_request_goes_on_where_its_output_had_come) {
  Engine engine(0);
  EngineCoreRequest request;
  request.output_token_ids = {11, 12};
  request.params.structured_outputs.emplace();
  engine.add(std::move(request));
  engine.plan();
  BOOST_TEST(engine.open.back().scheduled_ids.empty());
  static_cast<void>(engine.finish());
  int count = 0;
  engine.scheduler->set_grammar(RequestId{1}, exact_grammar(CountingGrammar(count)));
  BOOST_TEST(count == 2);
  engine.plan();
  auto structured = engine.scheduler->grammar_step(engine.open.back());
  BOOST_REQUIRE(structured.has_value());
  BOOST_TEST(fill_masks(*std::move(structured)).output.bitmask.at(0) == 2);
  BOOST_TEST(engine.finish().outputs.at(0).finish_reason.has_value());
}

}  // namespace
}  // namespace troupe
