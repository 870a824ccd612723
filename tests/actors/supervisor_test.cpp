// The whole engine in an actor system of one's own, as an embedding application starts it.
#include <boost/test/unit_test.hpp>
#include <future>

#include "actors/module.hpp"
#include "actors/system_config.hpp"

namespace troupe {
namespace {

struct Fixture {
  SystemConfig config;
  caf::actor_system system{config};
  StartOptions options;

  Fixture() {
    options.serve_http = false;
    options.options.model.model = TROUPE_SOURCE_DIR "/tools/demo_model/model";
    options.options.engine.kv_cache_memory_bytes = 16 << 20;
  }

  /// The final output of one greedy request.
  RequestOutput run(Engine& engine, Prompt prompt, std::int32_t max_tokens) {
    caf::scoped_actor self{system};
    self->request(engine.handles.output_processor, caf::infinite, Subscribe{})
        .receive([](const Status&) {}, [](const caf::error&) { BOOST_ERROR("not subscribed"); });
    GenerateRequest request{.id = RequestId{1}, .external_id = "r", .prompt = std::move(prompt)};
    request.params.temperature = 0;
    request.params.max_tokens = max_tokens;
    request.params.output_kind = OutputKind::kFinalOnly;
    self->send(engine.handles.input_processors.front(), std::move(request));
    RequestOutput last;
    while (!last.finished) {
      self->receive([&](RequestOutputs& outputs) {
        for (RequestOutput& output : outputs.outputs) last = std::move(output);
      });
    }
    return last;
  }
};

BOOST_FIXTURE_TEST_CASE(an_engine_starts_answers_and_stops, Fixture) {
  double last_fraction = 0;
  options.on_progress = [&](const LoadProgress& progress) { last_fraction = progress.fraction; };
  auto engine = start(system, options);
  BOOST_REQUIRE_MESSAGE(engine.ok(), (engine.ok() ? "" : engine.error().message));
  BOOST_TEST(last_fraction > 0.5);
  BOOST_TEST(engine->started.model.max_model_len == 2048);
  const RequestOutput output = run(*engine, TextPrompt{"The capital of Spain is"}, 2);
  BOOST_REQUIRE_EQUAL(output.outputs.size(), 1u);
  BOOST_TEST(output.outputs[0].text.starts_with(" Madrid"));
  BOOST_TEST((output.outputs[0].finish_reason == FinishReason::kLength));
  BOOST_TEST(stop(system, *engine, 0));
}

BOOST_FIXTURE_TEST_CASE(options_that_make_no_sense_are_refused_before_anything_starts, Fixture) {
  options.options.engine.speculative_config = R"({"method": "ngram"})";
  const auto engine = start(system, options);
  BOOST_REQUIRE(!engine.ok());
  BOOST_TEST(engine.error().param == "speculative-config");
}

BOOST_FIXTURE_TEST_CASE(a_wrong_request_fails_alone, Fixture) {
  auto engine = start(system, options);
  BOOST_REQUIRE(engine.ok());
  const RequestOutput refused = run(*engine, TokensPrompt{std::vector<TokenId>(3000, 5)}, 2);
  BOOST_REQUIRE(refused.error.has_value());
  BOOST_TEST(refused.error->message == "prompt has 3000 tokens, max_model_len is 2048");
  BOOST_TEST(!run(*engine, TokensPrompt{{5, 6, 7}}, 2).error.has_value());
  BOOST_TEST(stop(system, *engine, 0));
}

BOOST_FIXTURE_TEST_CASE(what_cannot_start_says_why_and_leaves_nothing_behind, Fixture) {
  options.options.model.model = "no-such-folder";
  auto missing = start(system, options);
  BOOST_REQUIRE(!missing.ok());
  BOOST_TEST(missing.error().message.find("no-such-folder") != std::string::npos);

  options.options.model.model = TROUPE_SOURCE_DIR "/tools/demo_model/model";
  options.options.engine.kv_cache_memory_bytes = 1 << 16;
  auto too_small = start(system, options);
  BOOST_REQUIRE(!too_small.ok());
  BOOST_TEST(too_small.error().message.find("2048") != std::string::npos);

  options.options.model.override_generation_config = R"({"top_p":3})";
  options.on_progress = [](const LoadProgress&) { BOOST_ERROR("the model was loaded"); };
  auto wrong_option = start(system, options);
  BOOST_REQUIRE(!wrong_option.ok());
  BOOST_TEST(wrong_option.error().message.starts_with("override-generation-config: top_p"));
  system.await_all_actors_done();
}

BOOST_FIXTURE_TEST_CASE(an_engine_one_of_whose_actors_died_is_there_again_for_who_asked_for_it,
                        Fixture) {
  std::promise<EngineHandles> restarted;
  options.on_restart = [&](const EngineHandles& handles) { restarted.set_value(handles); };
  auto engine = start(system, options);
  BOOST_REQUIRE(engine.ok());
  const SchedulerActor dead = engine->handles.scheduler;
  caf::anon_send_exit(dead, caf::exit_reason::kill);
  engine->handles = restarted.get_future().get();
  BOOST_TEST((engine->handles.scheduler != dead));
  const RequestOutput output = run(*engine, TextPrompt{"The capital of Spain is"}, 2);
  BOOST_REQUIRE_EQUAL(output.outputs.size(), 1u);
  BOOST_TEST(output.outputs[0].text.starts_with(" Madrid"));
  BOOST_TEST(stop(system, *engine, 0));
}

BOOST_FIXTURE_TEST_CASE(the_death_of_an_actor_is_reported_and_the_rest_can_be_stopped, Fixture) {
  std::promise<std::string> failure;
  options.on_failure = [&](const std::string& reason) { failure.set_value(reason); };
  auto engine = start(system, options);
  BOOST_REQUIRE(engine.ok());
  caf::anon_send_exit(engine->handles.scheduler, caf::exit_reason::kill);
  BOOST_TEST(failure.get_future().get().starts_with("scheduler ended"));
  BOOST_TEST(!stop(system, *engine, 0));
  system.await_all_actors_done();
}

}  // namespace
}  // namespace troupe
