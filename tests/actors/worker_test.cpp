// The real Worker behind its messages: a structured step is computed at once, and sampled when it
// is known what the grammars allow.
#include <boost/test/unit_test.hpp>

#include "actors/spawn.hpp"
#include "actors/system_config.hpp"
#include "runtime/cache/kv_cache_config.hpp"

namespace troupe::testing {
namespace {

using namespace std::chrono_literals;

/// What runs into it has failed.
constexpr auto kPatience = 60s;
constexpr std::uint32_t kIncarnation = 3;

struct Fixture {
  SystemConfig config;
  caf::actor_system system{config};
  caf::scoped_actor self{system};
  WorkerActor worker = spawn_worker(system, 0);
  ModelLoaded model;

  using Answer = std::variant<std::monostate, ModelRunnerOutput, StepFailed>;

  Fixture() {
    model = std::get<ModelLoaded>(
        call(LoadModel{.options = {.model = TROUPE_SOURCE_DIR "/tools/demo_model/model",
                                   .threads = 1,
                                   .max_model_len = 256,
                                   .max_num_seqs = 8,
                                   .max_num_batched_tokens = 64}}));
    initialize(kIncarnation);
  }
  ~Fixture() { caf::anon_send_exit(worker, caf::exit_reason::user_shutdown); }

  WorkerRpcReply reply_to(WorkerMethod method) {
    self->send(worker, WorkerRpc{++num_calls, std::move(method)});
    WorkerRpcReply reply;
    bool got = false;
    self->receive_while([&] { return !got; })(
        [&](WorkerRpcReply& answer) { reply = std::move(answer), got = true; },
        [](const LoadProgress&) {}, caf::after(kPatience) >> [&] { got = true; });
    BOOST_TEST(reply.call == num_calls);
    return reply;
  }
  WorkerResult call(WorkerMethod method) {
    WorkerRpcReply reply = reply_to(std::move(method));
    BOOST_REQUIRE_MESSAGE(!reply.error, (reply.error ? reply.error->message : ""));
    return std::move(reply.result);
  }
  void initialize(std::uint32_t incarnation) {
    const KVCacheConfig cache =
        make_kv_cache_config(model.layer_specs(), {.available_bytes = 8 << 20,
                                                   .max_model_len = model.max_model_len,
                                                   .max_in_flight_tokens = 64})
            .value();
    call(InitializeKVCache{cache, incarnation});
    num_groups = cache.groups.size();
  }
  Answer next() {
    Answer answer;
    bool got = false;
    while (!got) {
      self->receive([&](ModelRunnerOutput& output) { answer = std::move(output), got = true; },
                    [&](StepFailed& failure) { answer = std::move(failure), got = true; },
                    [](const LoadProgress&) {}, caf::after(kPatience) >> [&] { got = true; });
    }
    return answer;
  }
  /// The token of the step's only request.
  TokenId token_of(std::uint64_t step) {
    const Answer answer = next();
    BOOST_REQUIRE(std::holds_alternative<ModelRunnerOutput>(answer));
    const auto& output = std::get<ModelRunnerOutput>(answer);
    BOOST_TEST(output.step == step);
    BOOST_REQUIRE_EQUAL(output.sampled_token_ids.size(), 1u);
    return output.sampled_token_ids[0];
  }
  /// A prompt of three tokens.
  SchedulerOutput step_of(std::uint64_t number, bool structured) const {
    SchedulerOutput step{.step = number};
    NewRequestData request{
        .id = RequestId{number}, .token_ids = {11, 222, 333}, .num_prompt_tokens = 3};
    request.params.temperature = 0;
    request.block_ids.assign(num_groups, {1});
    step.new_requests.push_back(std::move(request));
    step.scheduled_ids = {RequestId{number}};
    step.num_scheduled_tokens = {3};
    step.total_num_scheduled_tokens = 3;
    if (number > 1) step.finished_ids = {RequestId{number - 1}};
    step.has_structured_output_requests = structured;
    step.incarnation = kIncarnation;
    return step;
  }
  /// Only this token.
  GrammarOutput allow(std::uint64_t step, TokenId token) const {
    const auto width = static_cast<std::size_t>(model.vocab_size + 31) / 32;
    GrammarOutput grammar{.step = step,
                          .incarnation = kIncarnation,
                          .ids = {RequestId{step}},
                          .num_rows = {1},
                          .words_per_row = static_cast<std::int32_t>(width)};
    grammar.bitmask.resize(width);
    grammar.bitmask[static_cast<std::size_t>(token) / 32] =
        static_cast<std::int32_t>(std::uint32_t{1} << (token % 32));
    return grammar;
  }

  std::size_t num_groups = 0;
  std::uint64_t num_calls = 0;
};

BOOST_FIXTURE_TEST_CASE(a_worker_that_is_warm_gives_the_same_tokens, Fixture) {
  self->send(worker, step_of(1, false));
  const TokenId cold = token_of(1);
  initialize(kIncarnation);
  call(WarmUp{});
  self->send(worker, step_of(1, false));
  BOOST_TEST(token_of(1) == cold);
  call(WarmUp{});  // between steps
  self->send(worker, step_of(2, false));
  BOOST_TEST(token_of(2) == cold);
}

BOOST_FIXTURE_TEST_CASE(a_method_that_fails_says_why_and_the_worker_goes_on, Fixture) {
  const auto failed =
      reply_to(LoadModel{.options = {.model = "/nowhere", .max_num_batched_tokens = 64}});
  BOOST_REQUIRE(failed.error.has_value());
  BOOST_TEST(failed.error->message.find("/nowhere") != std::string::npos, failed.error->message);
  self->send(worker, step_of(1, false));
  token_of(1);
}

BOOST_FIXTURE_TEST_CASE(a_structured_step_is_sampled_when_its_mask_comes_others_at_once, Fixture) {
  self->send(worker, step_of(1, false));
  const TokenId free = token_of(1);
  for (const TokenId wanted : {100, 101}) {
    const auto number = static_cast<std::uint64_t>(wanted - 98);
    self->send(worker, step_of(number, true));
    // None of the two samples it.
    self->send(worker, allow(number + 1, 7));  // of another step
    GrammarOutput other = allow(number, 7);
    other.incarnation = kIncarnation - 1;
    self->send(worker, other);  // of another engine
    self->send(worker, allow(number, wanted));
    BOOST_TEST(token_of(number) == wanted);
    self->send(worker, allow(number, 9));  // once more
  }
  // None of these has been answered.
  self->send(worker, step_of(4, false));
  BOOST_TEST(token_of(4) == free);
  // An empty one, as for requests that have ended: nothing is masked.
  self->send(worker, step_of(5, true));
  self->send(worker, GrammarOutput{.step = 5, .incarnation = kIncarnation});
  BOOST_TEST(token_of(5) == free);
}

BOOST_FIXTURE_TEST_CASE(a_mask_that_does_not_fit_the_step_fails_it_and_not_the_worker, Fixture) {
  self->send(worker, step_of(1, true));
  GrammarOutput narrow = allow(1, 7);
  narrow.words_per_row = 1;
  narrow.bitmask.resize(1);
  self->send(worker, narrow);
  const Answer answer = next();
  BOOST_REQUIRE(std::holds_alternative<StepFailed>(answer));
  BOOST_TEST(std::get<StepFailed>(answer).step == 1u);
  self->send(worker, allow(1, 7));  // too late
  self->send(worker, step_of(2, true));
  self->send(worker, allow(2, 50));
  BOOST_TEST(token_of(2) == 50);
}

BOOST_FIXTURE_TEST_CASE(another_engine_begins_while_a_step_waits_for_its_mask, Fixture) {
  self->send(worker, step_of(1, true));
  initialize(kIncarnation + 1);
  self->send(worker, allow(1, 7));  // of the engine before
  SchedulerOutput step = step_of(1, true);
  step.incarnation = kIncarnation + 1;
  self->send(worker, step);
  GrammarOutput grammar = allow(1, 60);
  grammar.incarnation = kIncarnation + 1;
  self->send(worker, grammar);
  BOOST_TEST(token_of(1) == 60);
}

}  // namespace
}  // namespace troupe::testing
