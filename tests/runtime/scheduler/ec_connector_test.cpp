// EC connectors: outputs of encoders that are loaded instead of being computed.

#include "runtime/scheduler/ec_connector.hpp"

#include <boost/test/unit_test.hpp>
#include <map>
#include <set>

#include "runtime/scheduler/scheduler.hpp"
#include "tests/support/local_ports.hpp"

namespace troupe {
namespace {

/// Returns what the test sets.
class ToldConnector final : public ECConnector {
 public:
  std::optional<bool> has_cache_item(const MultiModalFeature& item, double) override {
    const std::string& identifier = item.identifier;
    ++num_queries[identifier];
    if (unknown.contains(identifier)) return std::nullopt;
    return stored.contains(identifier);
  }
  void update_state_after_alloc(const RequestState& request,
                                const MultiModalFeature& item) override {
    loads.push_back(std::to_string(value(request.id)) + item.identifier);
  }
  std::string build_connector_meta(const SchedulerOutput&) override {
    std::string text;
    for (const std::string& load : std::exchange(loads, {})) text += load + " ";
    return text;
  }
  void update_connector_output(const ECConnectorOutput& output) override {
    reports.push_back(output);
    for (const std::string& identifier : output.failed) stored.erase(identifier);
  }
  bool request_finished(const RequestState& request) override {
    return delayed.contains(request.id);
  }
  void release(const std::string& identifier) override { released.push_back(identifier); }

  std::set<std::string> stored, unknown;
  std::set<RequestId> delayed;
  std::map<std::string, int> num_queries;
  std::vector<std::string> loads, released;
  std::vector<ECConnectorOutput> reports;
};

/// Images have four embeddings; a step encodes `max_embeds` of them.
struct ImageEngine {
  static constexpr std::int32_t kEmbeds = 4;

  explicit ImageEngine(std::int32_t max_embeds = kEmbeds, std::int32_t capacity = 64,
                       std::int32_t max_tokens = 64, bool encode_ahead = false)
      : encoder_manager({.capacity = capacity}), encoder_port(encoder_manager) {
    KVCacheSettings settings;
    settings.groups = {KVCacheGroup{.spec = {.block_size = 4}}};
    settings.num_blocks = 101;
    settings.max_model_len = 64;
    settings.max_in_flight_tokens = 2 * max_tokens;
    manager.emplace(settings);
    port.emplace(*manager);
    SchedulerConfig config{.max_model_len = 64,
                           .num_blocks = 101,
                           .max_num_seqs = 4,
                           .max_num_batched_tokens = max_tokens};
    config.max_encoder_embeds = max_embeds;
    config.encode_ahead = encode_ahead;
    scheduler.emplace(config, *port, &encoder_port, nullptr, &connector);
  }
  /// Each of the letters is an image; three tokens of text come before each of them.
  RequestId add(const std::string& images, std::int32_t max_tokens = 1) {
    EngineCoreRequest request;
    request.id = RequestId{++last_id};
    request.params.max_tokens = max_tokens;
    auto& tokens = request.prompt_token_ids.edit();
    const auto text = [&] {
      for (int i = 0; i < 3; ++i)
        tokens.push_back(static_cast<TokenId>(last_id * 100 + tokens.size()));
    };
    for (const char image : images) {
      text();
      request.mm_features.push_back({.modality = "image",
                                     .identifier = std::string(1, image),
                                     .offset = static_cast<std::int32_t>(tokens.size()),
                                     .length = kEmbeds,
                                     .data = std::make_shared<const std::vector<char>>(1)});
      tokens.resize(tokens.size() + kEmbeds, 7);
    }
    text();
    const RequestId id = request.id;
    BOOST_REQUIRE(scheduler->add_request(std::move(request), 0).ok());
    return id;
  }
  SchedulerOutput plan() { return run_now(scheduler->schedule(0)); }
  EngineCoreOutputs finish(const SchedulerOutput& step, ECConnectorOutput report = {}) {
    ModelRunnerOutput result;
    result.ids = step.scheduled_ids;
    for (const RequestId id : result.ids) {
      const RequestState* state = scheduler->request(id);
      const bool samples = state != nullptr && state->num_computed_tokens == state->num_tokens();
      result.num_sampled.push_back(samples ? 1 : 0);
      if (samples) result.sampled_token_ids.push_back(9);
    }
    result.ec_connector = std::move(report);
    return run_now(scheduler->update_from_output(step, result, 0));
  }
  /// "1a 2b": what a step encodes.
  static std::string encoded(const SchedulerOutput& step) {
    std::string text;
    for (const auto& [id, item] : step.scheduled_encoder_inputs)
      text += std::to_string(value(id)) + "." + std::to_string(item) + " ";
    return text;
  }
  [[nodiscard]] bool encoder_cache_is_free() {
    scheduler->flush();
    return encoder_manager.num_freeable() == 64;
  }

  EncoderCacheManager encoder_manager;
  LocalEncoderCache encoder_port;
  std::optional<KVCacheManager> manager;
  std::optional<LocalKVCache> port;
  ToldConnector connector;
  std::optional<Scheduler> scheduler;
  std::uint64_t last_id = 0;
};

BOOST_AUTO_TEST_CASE(what_the_connector_has_is_loaded_and_costs_no_encoder_budget) {
  ImageEngine engine;
  engine.connector.stored = {"b", "c"};
  engine.add("abc");
  engine.add("d");
  const SchedulerOutput first = engine.plan();
  BOOST_TEST(ImageEngine::encoded(first) == "1.0 ");
  BOOST_TEST(first.ec_connector_metadata == "1b 1c ");
  // The second request's image has to wait for a step with budget; its text does not.
  BOOST_TEST((first.num_scheduled_tokens == std::vector<std::int32_t>{24, 3}));
  EngineCoreOutputs outputs = engine.finish(first, {.loaded = {"b", "c"}});
  BOOST_TEST(
      (outputs.stats->encoder_transfer == EncoderTransferStats{.num_queries = 3, .num_hits = 2}));
  const SchedulerOutput second = engine.plan();
  BOOST_TEST(ImageEngine::encoded(second) == "2.0 ");
  BOOST_TEST(second.ec_connector_metadata.empty());
  engine.finish(second);
  BOOST_TEST(engine.encoder_cache_is_free());
}

BOOST_AUTO_TEST_CASE(an_image_larger_than_the_budget_is_loaded_but_not_without_room) {
  ImageEngine engine(/*max_embeds=*/1);
  engine.connector.stored = {"a"};
  engine.add("a");
  BOOST_TEST(engine.plan().ec_connector_metadata == "1a ");
  ImageEngine full(4, /*capacity=*/6);
  full.connector.stored = {"a", "b"};
  full.add("ab");
  const SchedulerOutput step = full.plan();
  BOOST_TEST(step.ec_connector_metadata == "1a ");
  BOOST_TEST(step.num_scheduled_tokens.at(0) == 10);  // up to the second image
}

BOOST_AUTO_TEST_CASE(one_output_is_loaded_once_for_all_of_its_items) {
  ImageEngine engine;
  engine.connector.stored = {"a"};
  engine.add("aa");
  engine.add("a");
  const SchedulerOutput step = engine.plan();
  BOOST_TEST(step.ec_connector_metadata == "1a ");
  BOOST_TEST(ImageEngine::encoded(step).empty());
  BOOST_TEST((step.num_scheduled_tokens == std::vector<std::int32_t>{17, 10}));
  engine.finish(step);
  BOOST_TEST(engine.encoder_cache_is_free());
  // It is still there, and not loaded again.
  engine.add("a");
  const SchedulerOutput next = engine.plan();
  BOOST_TEST(next.ec_connector_metadata.empty());
  BOOST_TEST(ImageEngine::encoded(next).empty());
}

BOOST_AUTO_TEST_CASE(a_request_waits_for_an_answer_and_others_do_not) {
  ImageEngine engine;
  engine.connector.unknown = {"a"};
  const RequestId first = engine.add("a");
  BOOST_TEST(engine.connector.num_queries.at("a") == 1);  // when it arrives
  engine.add("b");
  // Its text is computed, nothing of the image.
  SchedulerOutput step = engine.plan();
  BOOST_TEST((step.num_scheduled_tokens == std::vector<std::int32_t>{3, 10}));
  BOOST_TEST(ImageEngine::encoded(step) == "2.0 ");
  BOOST_TEST(engine.scheduler->awaits_connector());
  engine.finish(step);
  step = engine.plan();
  BOOST_TEST(step.scheduled_ids.empty());
  BOOST_TEST(engine.scheduler->awaits_connector());
  engine.finish(step);
  engine.connector.unknown.clear();
  engine.connector.stored = {"a"};
  step = engine.plan();
  BOOST_TEST((step.scheduled_ids == std::vector{first}));
  BOOST_TEST(step.ec_connector_metadata == "1a ");
  BOOST_TEST(!engine.scheduler->awaits_connector());
}

BOOST_AUTO_TEST_CASE(a_request_that_begins_with_an_unknown_image_is_passed_by_others) {
  ImageEngine engine;
  EngineCoreRequest request;
  request.id = RequestId{77};
  request.params.max_tokens = 1;
  request.prompt_token_ids = {7, 7, 7, 7, 1};
  request.mm_features = {{.modality = "image", .identifier = "a", .offset = 0, .length = 4}};
  engine.connector.unknown = {"a"};
  BOOST_REQUIRE(engine.scheduler->add_request(std::move(request), 0).ok());
  const RequestId second = engine.add("b");
  SchedulerOutput step = engine.plan();
  BOOST_TEST((step.scheduled_ids == std::vector{second}));
  engine.finish(step);
  engine.connector.unknown.clear();
  step = engine.plan();
  BOOST_TEST((step.scheduled_ids == std::vector{RequestId{77}}));
  BOOST_TEST(ImageEngine::encoded(step) == "77.0 ");
}

BOOST_AUTO_TEST_CASE(what_is_cached_here_needs_no_answer) {
  ImageEngine engine;
  engine.add("a", /*max_tokens=*/1);
  engine.finish(engine.plan());
  engine.connector.unknown = {"a"};
  engine.add("a");
  const SchedulerOutput step = engine.plan();
  BOOST_TEST(step.num_scheduled_tokens.at(0) == 10);
  BOOST_TEST(ImageEngine::encoded(step).empty());
  BOOST_TEST(step.ec_connector_metadata.empty());
}

BOOST_AUTO_TEST_CASE(reports_are_handed_on_and_what_failed_is_encoded_when_it_is_needed_again) {
  ImageEngine engine(4, 64, /*max_tokens=*/8);
  engine.connector.stored = {"a"};
  engine.add("a", 3);
  const SchedulerOutput step = engine.plan();
  BOOST_TEST(step.ec_connector_metadata == "1a ");
  const ECConnectorOutput report{.saved = {"a"}, .failed = {"a"}};
  const EngineCoreOutputs outputs = engine.finish(step, report);
  BOOST_TEST(
      (outputs.stats->encoder_transfer ==
       EncoderTransferStats{.num_queries = 1, .num_hits = 1, .num_failed = 1, .num_saved = 1}));
  BOOST_TEST((engine.connector.reports == std::vector{report}));
  // The workers have lost everything.
  BOOST_TEST(run_now(engine.scheduler->recover_from_failed_steps({}, 0)));
  const SchedulerOutput again = engine.plan();
  BOOST_TEST(again.reset_encoder_cache);
  BOOST_TEST(again.ec_connector_metadata.empty());
  BOOST_TEST(ImageEngine::encoded(again) == "1.0 ");
}

/// "a": the item that a step encodes ahead; "a!": with its data.
std::string ahead(const SchedulerOutput& step) {
  if (!step.encode_ahead) return "";
  return step.encode_ahead->identifier + (step.encode_ahead->data == nullptr ? "" : "!");
}

BOOST_AUTO_TEST_CASE(an_image_is_encoded_beside_the_steps_of_others_before_its_own) {
  ImageEngine engine(4, 64, 64, /*encode_ahead=*/true);
  const RequestId text = engine.add("", /*max_tokens=*/9);
  engine.finish(engine.plan());
  const RequestId seeing = engine.add("ab");
  SchedulerOutput step = engine.plan();
  // The text before the image needs no encoder.
  BOOST_TEST((step.scheduled_ids == std::vector{text, seeing}));
  BOOST_TEST((step.num_scheduled_tokens == std::vector<std::int32_t>{1, 3}));
  BOOST_TEST(ahead(step) == "a!");
  engine.finish(step);
  for (int i = 0; i < 2; ++i) {
    step = engine.plan();
    BOOST_TEST((step.scheduled_ids == std::vector{text}));
    BOOST_TEST(ahead(step) == "a");  // its data has been sent
    engine.finish(step, {.encoded_ahead =
                             i == 0 ? std::vector<std::string>{} : std::vector<std::string>{"a"}});
  }
  step = engine.plan();
  BOOST_TEST(ImageEngine::encoded(step) == "2.0 ");
  BOOST_TEST((step.num_scheduled_tokens == std::vector<std::int32_t>{1, 7}));
  BOOST_TEST(ahead(step) == "b!");
  engine.finish(step, {.encoded_ahead = {"b"}});
  step = engine.plan();
  BOOST_TEST(ImageEngine::encoded(step) == "2.1 ");
  BOOST_TEST(ahead(step).empty());
  engine.finish(step);
  // One that is cached or can be loaded is not encoded.
  engine.connector.stored = {"c"};
  engine.add("ac");
  step = engine.plan();
  BOOST_TEST(step.ec_connector_metadata == "3c ");
  BOOST_TEST(ahead(step).empty());
}

BOOST_AUTO_TEST_CASE(what_was_encoded_for_a_request_that_cannot_use_it_gives_way) {
  ImageEngine engine(4, 64, 64, /*encode_ahead=*/true);
  const RequestId first = engine.add("a");
  BOOST_TEST(ahead(engine.plan()) == "a!");
  // The request that needed it has finished.
  engine.scheduler->finish_requests({&first, 1}, RequestStatus::kFinishedAborted);
  engine.add("b");
  SchedulerOutput step = engine.plan();
  BOOST_TEST(ahead(step) == "b!");
  engine.finish(step, {.encoded_ahead = {"a"}});  // too late
  BOOST_TEST(ahead(engine.plan()) == "b");
  // The workers have lost it with a failed step.
  BOOST_TEST(run_now(engine.scheduler->recover_from_failed_steps({}, 0)));
  BOOST_TEST(ahead(engine.plan()) == "b!");
}

BOOST_AUTO_TEST_CASE(an_identifier_is_released_when_its_last_request_has_gone) {
  ImageEngine engine(64);
  const RequestId first = engine.add("aba", 5);
  const RequestId second = engine.add("a", 5);
  engine.finish(engine.plan());
  BOOST_TEST(engine.connector.released.empty());
  engine.scheduler->finish_requests({&first, 1}, RequestStatus::kFinishedAborted);
  BOOST_TEST((engine.connector.released == std::vector<std::string>{"b"}));
  engine.scheduler->finish_requests({&second, 1}, RequestStatus::kFinishedAborted);
  BOOST_TEST((engine.connector.released == std::vector<std::string>{"b", "a"}));
}

BOOST_AUTO_TEST_CASE(the_images_of_all_chunks_of_a_session_are_looked_up_and_released) {
  ImageEngine engine(64);
  const auto chunk = [](const std::string& image) {
    EngineCoreRequest request;
    request.id = RequestId{5};
    request.resumable = true;
    request.params.max_tokens = 1;
    request.prompt_token_ids = {1, 7, 7, 7, 7, 2};
    request.mm_features = {{.modality = "image", .identifier = image, .offset = 1, .length = 4}};
    return request;
  };
  engine.connector.stored = {"b"};
  BOOST_REQUIRE(engine.scheduler->add_request(chunk("a"), 0).ok());
  BOOST_REQUIRE(engine.scheduler->add_request(chunk("b"), 0).ok());
  const SchedulerOutput first = engine.plan();
  BOOST_TEST(ImageEngine::encoded(first) == "5.0 ");
  engine.finish(first);
  BOOST_TEST(engine.connector.num_queries.contains("b"));
  const SchedulerOutput second = engine.plan();
  BOOST_TEST(second.ec_connector_metadata == "5b ");
  engine.finish(second);
  BOOST_TEST(engine.connector.released.empty());
  EngineCoreRequest end = chunk("c");
  end.resumable = false;
  BOOST_REQUIRE(engine.scheduler->add_request(end, 0).ok());
  BOOST_TEST((engine.connector.released == std::vector<std::string>{"a", "b"}));
  BOOST_TEST(engine.encoder_cache_is_free());
}

BOOST_AUTO_TEST_CASE(a_connector_may_delay_the_release_of_a_finished_request) {
  ImageEngine engine(64);
  const RequestId id = engine.add("a", 5);
  engine.connector.delayed = {id};
  const SchedulerOutput step = engine.plan();  // its image is in use until the step's result
  engine.scheduler->finish_requests({&id, 1}, RequestStatus::kFinishedAborted);
  engine.finish(step);
  BOOST_TEST(!engine.encoder_cache_is_free());
  BOOST_TEST(engine.connector.released.empty());
  BOOST_TEST(engine.scheduler->has_requests());
  BOOST_TEST(engine.scheduler->awaits_connector());
  EngineCoreRequest same;
  same.id = id;
  same.prompt_token_ids = {1};
  BOOST_TEST(!engine.scheduler->add_request(same, 0).ok());
  const SchedulerOutput empty = engine.plan();
  engine.finish(empty, {.finished_sending = {id, RequestId{999}}});
  BOOST_TEST(engine.encoder_cache_is_free());
  BOOST_TEST((engine.connector.released == std::vector<std::string>{"a"}));
  BOOST_TEST(!engine.scheduler->has_requests());
  BOOST_TEST(engine.scheduler->add_request(same, 0).ok());
}

}  // namespace
}  // namespace troupe
