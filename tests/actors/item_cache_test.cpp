// The InputProcessor and the engine's cache of items: what is left out, and what is sent again.
#include <filesystem>
#include <string>

#include "actors/server_settings.hpp"
#include "actors/spawn.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/processors/input_processor.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/support/deterministic_engine.hpp"

namespace troupe::testing {
namespace {

namespace fs = std::filesystem;
const fs::path kGolden = TROUPE_GOLDEN_DIR;

std::shared_ptr<const InputProcessor> processor_with(const std::string& cache_type) {
  Options options;
  options.model.model = (kGolden / "models" / "models" / "llava").string();
  options.media.allowed_local_media_path = (kGolden / "images").string();
  options.media.mm_processor_cache_type = cache_type;
  options.media.mm_processor_cache_gb = 0.01;
  const ModelConfig config = load_model_config(options.model.model).value();
  ModelLoaded model{.max_model_len = static_cast<std::int32_t>(config.max_model_len),
                    .vocab_size = static_cast<std::int32_t>(config.vocab_size)};
  model.max_item_embeds = static_cast<std::int32_t>(config.image_tokens->per_image);
  std::shared_ptr<const Tokenizer> tokenizer = Tokenizer::load(options.model.model).value();
  return make_input_processor(options, model, {}, std::move(tokenizer), nullptr).value();
}

SubmitRequest request_of(std::uint64_t id) {
  const std::string url = "file://" + (kGolden / "images" / "rgb.png").string();
  nlohmann::json messages;
  messages.push_back(
      {{"role", "user"}, {"content", {{{"type", "image_url"}, {"image_url", {{"url", url}}}}}}});
  GenerateRequest request;
  request.id = RequestId{id};
  request.prompt = ChatPrompt{.messages_json = messages.dump()};
  return {.request = std::move(request), .placement = {.session_id = "session"}};
}

/// An InputProcessor, and in the place of the actors behind it `engine`.
struct Setup {
  explicit Setup(const std::string& cache_type) : system(config), client(system), engine(system) {
    const auto pointer = caf::actor_cast<caf::strong_actor_ptr>(engine);
    actor = spawn_input_processor(system, processor_with(cache_type), 2,
                                  caf::actor_cast<OutputProcessorActor>(pointer),
                                  caf::actor_cast<SchedulerActor>(pointer));
  }
  ~Setup() { caf::anon_send_exit(actor, caf::exit_reason::user_shutdown); }

  void submit(std::uint64_t id) {
    client->send(actor, request_of(id));
    engine->receive([&](const OutputRequest& request) {
      BOOST_TEST((request.id == RequestId{id}));
      num_hits = request.num_mm_hits;
      return Status{};
    });
  }
  /// The next message to the Scheduler has data.
  EngineCoreRequest with_data() {
    EngineCoreRequest sample;
    engine->receive([&](EngineCoreRequests& request) { sample = request.samples.at(0); });
    BOOST_REQUIRE(sample.mm_features.size() == 1u);
    BOOST_TEST(sample.mm_features[0].data != nullptr);
    return sample;
  }
  /// Not used here.
  EngineCoreRequest without_data(bool is_missing) {
    EngineCoreRequest sample;
    engine->receive([&](CachedItemRequests& request) {
      sample = request.samples.at(0);
      ItemsMissing missing;
      if (is_missing) missing.identifiers.push_back(sample.mm_features.at(0).identifier);
      return missing;
    });
    BOOST_TEST(sample.mm_features.at(0).data == nullptr);
    return sample;
  }

  DeterministicConfig config;
  caf::actor_system system;
  caf::scoped_actor client;
  caf::scoped_actor engine;
  InputProcessorActor actor;
  std::int32_t num_hits = 0;
};

BOOST_AUTO_TEST_CASE(an_image_that_the_engine_lacks_is_sent_again_and_the_client_sees_nothing) {
  for (const std::string kind : {"lru", "shm"}) {
    Setup setup(kind);
    setup.submit(1);
    BOOST_TEST(setup.num_hits == 0);
    const EngineCoreRequest first = setup.with_data();
    setup.submit(2);
    BOOST_TEST(setup.num_hits == 1);
    EngineCoreRequest second = setup.without_data(/*is_missing=*/true);
    const EngineCoreRequest again = setup.with_data();  // it is not registered again
    BOOST_TEST((again.id == RequestId{2}));
    BOOST_TEST(again.session_id == "session");
    BOOST_TEST(*again.mm_features[0].data == *first.mm_features[0].data);
    second.mm_features = again.mm_features;
    BOOST_TEST((second == again));
    setup.submit(3);
    static_cast<void>(setup.without_data(/*is_missing=*/false));
    setup.client->request(setup.actor, caf::infinite, ResetCaches{.mm_cache = true})
        .receive([](const CachesReset& reset) { BOOST_TEST(reset.ok); },
                 [](const caf::error&) { BOOST_FAIL("no answer"); });
    setup.submit(4);
    BOOST_TEST(setup.num_hits == 0);
    static_cast<void>(setup.with_data());
  }
}

BOOST_AUTO_TEST_CASE(a_front_end_that_keeps_images_sends_their_data_each_time) {
  Setup setup("processor_only");
  setup.submit(1);
  const EngineCoreRequest first = setup.with_data();
  setup.submit(2);
  BOOST_TEST(setup.num_hits == 1);
  BOOST_TEST(setup.with_data().mm_features[0].data == first.mm_features[0].data);
}

BOOST_AUTO_TEST_CASE(a_request_that_is_aborted_while_the_engine_is_asked_is_not_sent_again) {
  Setup setup("lru");
  setup.submit(1);
  static_cast<void>(setup.with_data());
  setup.submit(2);
  setup.engine->receive([&](CachedItemRequests& request) {
    setup.client->send(setup.actor, AbortRequests{{RequestId{2}}});  // arrives before the answer
    return ItemsMissing{{request.samples.at(0).mm_features.at(0).identifier}};
  });
  std::size_t num_aborts = 0;  // of the OutputProcessor and the Scheduler
  setup.engine->receive_for(num_aborts, std::size_t{2})([](const AbortRequests&) {});
  setup.submit(3);
  static_cast<void>(setup.with_data());
}

}  // namespace
}  // namespace troupe::testing
