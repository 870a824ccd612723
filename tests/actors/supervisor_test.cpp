// The whole engine in an actor system of one's own, as an embedding application starts it.
#include <boost/test/unit_test.hpp>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

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
    GenerateRequest request{.id = RequestId{1}, .external_id = "r", .prompt = std::move(prompt)};
    request.params.temperature = 0;
    request.params.max_tokens = max_tokens;
    request.params.output_kind = OutputKind::kFinalOnly;
    self->send(engine.handles.router, SubmitRequest{.request = std::move(request)});
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

/// The actors that the Supervisor has spawned, by what they are; filled by its thread.
class SpawnedActors {
 public:
  void add(const std::string& what, const caf::actor& actor) {
    const std::lock_guard lock(mutex_);
    actors_[what].push_back(actor);
  }
  std::vector<caf::actor> all(const std::string& what) {
    const std::lock_guard lock(mutex_);
    return actors_[what];
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<caf::actor>> actors_;
};

struct TwoGroups : Fixture {
  static constexpr std::uint64_t kNumRequests = 6;
  SpawnedActors spawned;

  TwoGroups() {
    options.options.engine.data_parallel_size = 2;
    options.options.model.seed = 5;
    options.on_spawned = [this](const std::string& what, const caf::actor& actor) {
      spawned.add(what, actor);
    };
  }

  /// The tokens of requests, greedy and sampled, of an engine of its own. Meanwhile `disturb` is
  /// called once, when every request has got some.
  std::map<RequestId, std::vector<TokenId>> run_all(const std::function<void(Engine&)>& disturb) {
    auto engine = start(system, options);
    BOOST_REQUIRE_MESSAGE(engine.ok(), (engine.ok() ? "" : engine.error().message));
    caf::scoped_actor self{system};
    for (std::uint64_t id = 1; id <= kNumRequests; ++id) {
      GenerateRequest request{.id = RequestId{id}, .prompt = TextPrompt{"Once upon a time"}};
      request.params.temperature = id % 2 == 0 ? 0 : 1;
      request.params.max_tokens = 200;
      request.params.ignore_eos = true;
      request.params.output_kind = OutputKind::kDelta;
      self->send(engine->handles.router,
                 SubmitRequest{request, {.data_parallel_rank = static_cast<std::int32_t>(id % 2)}});
    }
    std::map<RequestId, std::vector<TokenId>> tokens;
    std::size_t num_finished = 0;
    bool disturbed = false;
    while (num_finished < kNumRequests) {
      self->receive([&](RequestOutputs& outputs) {
        for (const RequestOutput& output : outputs.outputs) {
          BOOST_TEST(!output.error.has_value());
          num_finished += output.finished;
          for (const CompletionOutput& sample : output.outputs) {
            auto& all = tokens[output.id];
            all.insert(all.end(), sample.token_ids.begin(), sample.token_ids.end());
          }
        }
      });
      if (!disturbed && tokens.size() == kNumRequests) {
        disturbed = true;
        disturb(*engine);
      }
    }
    BOOST_TEST(stop(system, *engine, 0));
    return tokens;
  }
};

BOOST_FIXTURE_TEST_CASE(without_http_groups_share_the_work_and_a_worker_that_ends_costs_no_token,
                        TwoGroups) {
  options.on_failure = [](const std::string& reason) { BOOST_ERROR(reason); };
  const auto expected = run_all([](Engine&) {});
  BOOST_REQUIRE_EQUAL(expected.size(), kNumRequests);
  for (const auto& [id, tokens] : expected) BOOST_TEST(tokens.size() == 200u);
  BOOST_TEST((expected.at(RequestId{1}) != expected.at(RequestId{3})));  // keys of their own

  const std::size_t num_workers = spawned.all("worker").size();
  BOOST_TEST(num_workers == 2u);
  const auto disturbed = run_all([&](Engine&) {
    caf::anon_send_exit(spawned.all("worker").back(), caf::exit_reason::kill);
    while (spawned.all("worker").size() < 2 * num_workers + 1) std::this_thread::yield();
  });
  BOOST_TEST((disturbed == expected));
  system.await_all_actors_done();
}

BOOST_FIXTURE_TEST_CASE(an_actor_that_ends_is_replaced_and_the_request_goes_on, TwoGroups) {
  options.options.engine.data_parallel_size = 1;
  options.on_failure = [](const std::string& reason) { BOOST_ERROR(reason); };
  auto engine = start(system, options);
  BOOST_REQUIRE(engine.ok());
  const RequestOutput expected = run(*engine, TextPrompt{"Once upon a time"}, 50);
  for (const char* victim : {"scheduler", "executor", "input-processor", "kv-cache-manager"}) {
    const auto before = spawned.all(victim);
    BOOST_REQUIRE(!before.empty());
    caf::anon_send_exit(before.back(), caf::exit_reason::kill);
    const RequestOutput output = run(*engine, TextPrompt{"Once upon a time"}, 50);
    BOOST_REQUIRE_EQUAL(output.outputs.size(), 1u);
    BOOST_TEST(output.outputs[0].text == expected.outputs[0].text);
    while (spawned.all(victim).size() == before.size()) std::this_thread::yield();
  }
  BOOST_TEST(stop(system, *engine, 0));
  system.await_all_actors_done();
}

}  // namespace
}  // namespace troupe
