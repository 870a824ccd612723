#include "runtime/scheduler/scheduler.hpp"

#include <boost/test/unit_test.hpp>
#include <functional>
#include <map>

#include "tests/runtime/scheduler/scheduler_fixture.hpp"
#include "tests/support/local_ports.hpp"

namespace troupe {
namespace {

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
    BOOST_TEST(run_now(scheduler.update_from_output(output, result, 0)).outputs.size() == 8u);
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
      BOOST_TEST(run_now(scheduler.recover_from_failed_steps(std::span(&output, 1), 0)));
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
    const EngineCoreOutputs outputs = run_now(scheduler.update_from_output(output, result, 0));
    for (const EngineCoreOutput& out : outputs.outputs) {
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
  Reply<BlockOps> get_block_ops(GetBlockOps question) override {
    return later(manager_.get_block_ops(question));
  }
  Reply<BlockTableRead> read_block_table(ReadBlockTable question) override {
    return later(manager_.read_block_table(question));
  }
  Reply<InvalidBlocksFound> find_invalid_blocks(FindInvalidBlocks question) override {
    return later(manager_.find_invalid_blocks(question));
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

BOOST_AUTO_TEST_CASE(a_step_continues_when_the_reply_arrives_and_may_be_dropped_before) {
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
  late_answer();  // no longer awaited
}

EngineCoreRequest chunk_of(RequestId id, std::size_t num_tokens) {
  EngineCoreRequest chunk;
  chunk.id = id;
  chunk.params.max_tokens = 2;
  chunk.prompt_token_ids.edit().assign(num_tokens, 5);
  chunk.resumable = true;
  return chunk;
}

BOOST_AUTO_TEST_CASE(samples_of_a_request_share_their_prompt_until_they_run) {
  constexpr std::int32_t kPromptTokens = 20;
  SchedulerFixture test(SchedulerFixture::small());  // four run at once
  const EngineCoreRequest request = test.request(kPromptTokens, 3);
  const TokenId* const prompt = request.prompt_token_ids.data();
  std::vector<RequestId> ids;
  for (int i = 0; i < 10; ++i) {
    EngineCoreRequest sample = request;
    sample.id = RequestId{static_cast<std::uint64_t>(i + 1)};
    ids.push_back(test.add(std::move(sample)));
  }
  test.step();
  std::size_t num_sharing = 0;
  for (const RequestId id : ids) {
    const RequestState& state = *test.scheduler->request(id);
    const SharedVector<TokenId>& cached = test.manager->request(id).info.token_ids;
    BOOST_TEST((state.token_ids.data() == prompt) == !test.running(id));
    if (!test.running(id)) BOOST_TEST(cached.data() == prompt);
    num_sharing += state.token_ids.data() == prompt;
  }
  BOOST_TEST(num_sharing == 6u);
  while (test.ended.size() < ids.size()) test.step();
  BOOST_TEST(std::vector<TokenId>(prompt, prompt + kPromptTokens) ==
                 std::vector<TokenId>(request.prompt_token_ids),
             boost::test_tools::per_element());
  BOOST_TEST(test.all_blocks_free());
}

BOOST_AUTO_TEST_CASE(a_chunk_that_makes_a_session_too_long_ends_it_alone) {
  SchedulerFixture engine(SchedulerFixture::small());  // max_model_len 64
  EngineCoreRequest first = engine.request(20, 1);
  first.resumable = true;
  const RequestId session = engine.add(std::move(first));
  const RequestId other = engine.add(engine.request(20, 30));
  engine.step();
  engine.ended.clear();  // its first turn
  BOOST_REQUIRE(engine.scheduler->add_request(chunk_of(session, 45), engine.now).ok());
  for (int i = 0; i < 3; ++i) engine.step();
  BOOST_TEST(engine.ended.at(session).error.value().message ==
             "the session would have 65 tokens with this chunk, max_model_len is 64");
  BOOST_TEST(engine.running(other));
  while (engine.running(other)) engine.step();
  BOOST_TEST(engine.all_blocks_free());
}

/// A head's drafts, which all are wrong, in steps that are planned ahead.
struct HeadFixture : SchedulerFixture {
  HeadFixture() : SchedulerFixture(config_of_head()) {}
  static SchedulerConfig config_of_head() {
    SchedulerConfig config = small();
    config.async_scheduling = true;
    config.speculative = {.num_draft_tokens = 3,
                          .num_lookahead_tokens = 3,
                          .num_prefill_lookahead = 1,
                          .adaptive = true};
    return config;
  }
  /// The number of tokens that the step had for each request.
  std::map<RequestId, std::int32_t> step(std::vector<RequestId> undrafted = {}) {
    planned = run_now(scheduler->schedule(now += 1));
    ModelRunnerOutput result;
    result.ids = planned.scheduled_ids;
    result.num_sampled.assign(result.ids.size(), 1);
    result.sampled_token_ids.assign(result.ids.size(), 7);
    result.drafting.undrafted = std::move(undrafted);
    take(run_now(scheduler->update_from_output(planned, result, now)));
    std::map<RequestId, std::int32_t> counts;
    for (std::size_t i = 0; i < result.ids.size(); ++i)
      counts[result.ids[i]] = planned.num_scheduled_tokens[i];
    return counts;
  }
  SchedulerOutput planned;
};

BOOST_FIXTURE_TEST_CASE(requests_that_get_no_guesses_have_no_rows_for_them, HeadFixture) {
  const RequestId first = add(request(8, 40));
  const RequestId second = add(request(8, 40));
  step();
  BOOST_TEST(planned.num_drafts_to_make == 3);
  auto counts = step({first});
  BOOST_TEST(counts.at(first) == 4);
  counts = step();
  BOOST_TEST(counts.at(first) == 1);
  BOOST_TEST(counts.at(second) > 1);
  step({second});
  counts = step();
  BOOST_TEST(counts.at(first) == 1);
  BOOST_TEST(counts.at(second) == 1);
  BOOST_TEST(planned.num_drafts_to_make == 0);
  BOOST_TEST(planned.max_draft_rows == 0);
  // One that begins now has no holes, and a preempted one will have none when it is back.
  const RequestId third = add(request(8, 40));
  step();
  BOOST_TEST(planned.max_draft_rows > 0);
  BOOST_REQUIRE(scheduler->request(first)->is_undrafted);
  BOOST_TEST(run_now(scheduler->reset_prefix_cache(/*preempt_running=*/true, now)));
  step();
  BOOST_TEST(!scheduler->request(first)->is_undrafted);
  BOOST_TEST(running(third));
}

}  // namespace
}  // namespace troupe
