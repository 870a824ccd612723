// From the KVCacheManager's questions to the batches of events, and what is refused at start.
#include <boost/test/unit_test.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <numeric>

#include "actors/module.hpp"
#include "actors/spawn.hpp"
#include "actors/system_config.hpp"
#include "runtime/cache/kv_cache_settings.hpp"
#include "runtime/kv_events/publisher.hpp"

namespace troupe {
namespace {

struct DeterministicConfig : SystemConfig {
  DeterministicConfig() { set("scheduler.policy", caf::atom("testing")); }
};

using Batches = std::vector<KVEventBatch>;

struct Fixture {
  DeterministicConfig config;
  caf::actor_system system{config};
  caf::scheduler::test_coordinator& coordinator =
      dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  std::shared_ptr<Batches> batches = std::make_shared<Batches>();
  KVEventPublisherActor publisher;
  KVCacheManagerActor manager;
  caf::scoped_actor self{system};

  Fixture() {
    publisher = system.spawn(
        [](const std::shared_ptr<Batches>& log) -> KVEventPublisherActor::behavior_type {
          return {[log](const KVEventBatch& batch) { log->push_back(batch); }};
        },
        batches);
    KVCacheSettings settings;
    settings.groups = {{.spec = {.block_size = 2}, .layers = {0}}};
    settings.num_blocks = 6;
    settings.max_model_len = 100;
    settings.max_in_flight_tokens = 100;
    settings.events = true;
    manager = spawn_kv_cache_manager(system, settings, publisher);
  }
  ~Fixture() {
    caf::anon_send_exit(manager, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(publisher, caf::exit_reason::user_shutdown);
    coordinator.run();
  }

  static KVCacheUpdates request(std::uint64_t id, std::int32_t num_tokens, TokenId first) {
    KVCacheRequest added{.id = RequestId{id}, .num_prompt_tokens = num_tokens};
    std::vector<TokenId>& tokens = added.token_ids.edit();
    tokens.resize(static_cast<std::size_t>(num_tokens));
    std::iota(tokens.begin(), tokens.end(), first);
    return {.new_requests = {added}};
  }
  static KVCacheUpdates command(KVCacheCommandKind kind, std::uint64_t id) {
    return {.commands = {{kind, RequestId{id}}}};
  }
  template <class Question>
  void ask(Question question) {
    self->send(manager, std::move(question));
    coordinator.run();
  }
  void admit(KVCacheUpdates updates, std::uint64_t id, std::int32_t num_tokens) {
    ask(AdmitRequest{
        .updates = std::move(updates), .id = RequestId{id}, .num_new_tokens = num_tokens});
  }
};

BOOST_FIXTURE_TEST_CASE(a_step_is_a_batch_and_comes_when_its_result_is_in, Fixture) {
  KVCacheUpdates both = request(1, 4, 10);
  both.new_requests.push_back(request(2, 2, 20).new_requests[0]);
  admit(both, 1, 4);
  admit({}, 2, 2);
  BOOST_TEST(batches->empty());
  // The next step brings the tokens of this one.
  ask(AllocateSlots{.updates = {.commands = {{KVCacheCommandKind::kAppendTokens, RequestId{1}, 1}},
                                .token_ids = {14}}});
  BOOST_REQUIRE_EQUAL(batches->size(), 1u);
  const KVEventBatch& batch = batches->front();
  BOOST_TEST(batch.time > 1.7e9);
  BOOST_REQUIRE_EQUAL(batch.events.size(), 2u);
  const auto& first = std::get<BlocksStored>(batch.events[0]);
  BOOST_TEST(first.token_ids == (std::vector<TokenId>{10, 11, 12, 13}));
  BOOST_TEST(first.hashes.size() == 2u);
  BOOST_TEST((first.predecessors == std::vector<std::optional<BlockHash>>{{}, first.hashes[0]}));
  BOOST_TEST(std::get<BlocksStored>(batch.events[1]).token_ids.size() == 2u);
  ask(AllocateSlots{});
  BOOST_TEST(batches->size() == 1u);
}

BOOST_FIXTURE_TEST_CASE(the_end_of_the_last_request_publishes_pending_events, Fixture) {
  admit(request(1, 4, 10), 1, 4);
  ask(command(KVCacheCommandKind::kForgetRequest, 1));
  BOOST_REQUIRE_EQUAL(batches->size(), 1u);
  // Five blocks: the second request evicts both of the first.
  admit(request(2, 10, 50), 2, 10);
  ask(command(KVCacheCommandKind::kForgetRequest, 2));
  BOOST_REQUIRE_EQUAL(batches->size(), 2u);
  const std::vector<KVCacheEvent>& events = batches->back().events;
  BOOST_REQUIRE_EQUAL(events.size(), 3u);
  const auto& stored = std::get<BlocksStored>(batches->front().events[0]);
  BOOST_TEST((std::get<BlockRemoved>(events[0]).hash == stored.hashes[1]));
  BOOST_TEST((std::get<BlockRemoved>(events[1]).hash == stored.hashes[0]));
  BOOST_TEST(std::get<BlocksStored>(events[2]).hashes.size() == 5u);
}

BOOST_FIXTURE_TEST_CASE(a_reset_is_published_at_once, Fixture) {
  admit(request(1, 4, 10), 1, 4);
  ask(ResetPrefixCache{});  // its blocks are in use
  BOOST_REQUIRE_EQUAL(batches->size(), 1u);
  BOOST_TEST(std::holds_alternative<BlocksStored>(batches->back().events.at(0)));
  ask(ResetPrefixCache{command(KVCacheCommandKind::kForgetRequest, 1)});
  BOOST_REQUIRE_EQUAL(batches->size(), 2u);
  BOOST_TEST(std::holds_alternative<AllBlocksCleared>(batches->back().events.at(0)));
}

BOOST_AUTO_TEST_CASE(caches_are_reset_while_nothing_runs) {
  SystemConfig config;
  caf::actor_system system{config};
  StartOptions options;
  options.serve_http = false;
  options.options.model.model = TROUPE_SOURCE_DIR "/tools/demo_model/model";
  options.options.engine.kv_cache_memory_bytes = 16 << 20;
  auto engine = start(system, options);
  BOOST_REQUIRE(engine.ok());
  caf::scoped_actor self{system};
  for (const ResetCaches& what :
       {ResetCaches{.prefix_cache = true}, ResetCaches{.encoder_cache = true},
        ResetCaches{.prefix_cache = true, .encoder_cache = true, .preempt_running = true}}) {
    self->request(engine->handles.router, std::chrono::seconds(60), what)
        .receive([](const CachesReset& reset) { BOOST_TEST(reset.ok); },
                 [](const caf::error&) { BOOST_ERROR("no answer"); });
  }
  BOOST_TEST(stop(system, *engine, 0));
}

BOOST_AUTO_TEST_CASE(events_cross_between_processes) {
  KVEventBatch batch{1.5, {BlockRemoved{{{1, 2, 3}}, 4}, AllBlocksCleared{}}};
  BlocksStored stored{.hashes = {{{5}}}, .token_ids = {1, 2}, .block_size = 2};
  stored.extra_keys = {{"salt", std::pair<std::string, std::int32_t>("image", -3), BlockHash{{7}}}};
  stored.block_indices = {0};
  stored.predecessors = {std::nullopt};
  batch.events.emplace_back(stored);
  std::vector<char> bytes;
  wire::encode(batch, bytes);
  KVEventBatch read;
  BOOST_REQUIRE(wire::decode(bytes.data(), bytes.size(), read));
  BOOST_TEST((read == batch));
}

BOOST_AUTO_TEST_CASE(an_endpoint_that_is_taken_is_a_reason_not_to_start) {
  const KVEventsConfig events{.enable_kv_cache_events = true, .endpoint = "tcp://127.0.0.1:*"};
  const auto other = KVEventPublisher::start(events, {});
  BOOST_REQUIRE(other.ok());
  const std::string& endpoint = other.value()->endpoint();
  const std::string port = endpoint.substr(endpoint.rfind(':') + 1);
  SystemConfig config;
  caf::actor_system system{config};
  StartOptions options;
  options.options.model.model = TROUPE_SOURCE_DIR "/tools/demo_model/model";
  options.options.engine.kv_events_config =
      R"({"enable_kv_cache_events":true,"endpoint":"tcp://*:)" + port + "\"}";
  options.on_progress = [](const LoadProgress&) { BOOST_ERROR("the model was loaded"); };
  auto refused = start(system, options);
  BOOST_REQUIRE(!refused.ok());
  BOOST_TEST(refused.error().message ==
             "cannot open the KV events endpoint tcp://*:" + port + ": Address already in use");

  options.options.engine.kv_events_config = R"({"enable_kv_cache_events":1})";
  refused = start(system, options);
  BOOST_REQUIRE(!refused.ok());
  BOOST_TEST(refused.error().message.starts_with("kv-events-config: enable_kv_cache_events"));
  system.await_all_actors_done();
}

}  // namespace
}  // namespace troupe
