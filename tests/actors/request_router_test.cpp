// The RequestRouter between clients, two groups and a Supervisor that the test plays.
#include "actors/spawn.hpp"
#include "runtime/base/clock.hpp"
#include "tests/support/deterministic_engine.hpp"

namespace troupe::testing {
namespace {

struct Fixture {
  DeterministicConfig config;
  caf::actor_system system{config};
  caf::scheduler::test_coordinator& coordinator =
      dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  caf::scoped_actor supervisor{system};
  std::vector<std::vector<GenerateRequest>> given{2};  // by group
  std::vector<RequestId> aborted;                      // of samples, in any group
  std::vector<caf::actor> groups;
  RequestRouterActor router;
  caf::actor client;
  std::vector<RequestOutput> outputs;  // that the client has been given
  std::uint64_t next_id = 1;

  Fixture() {
    router = spawn_request_router(system, {.roles = {2, GroupRole::kBoth}, .seed = 7});
    client = spawn_client(outputs);
    for (std::uint32_t group = 0; group < 2; ++group) connect(group);
    coordinator.run();
  }
  ~Fixture() {
    caf::anon_send_exit(router, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(client, caf::exit_reason::user_shutdown);
    for (const caf::actor& group : groups)
      caf::anon_send_exit(group, caf::exit_reason::user_shutdown);
    coordinator.run();
  }

  caf::actor spawn_client(std::vector<RequestOutput>& received) {
    return system.spawn([&received](caf::event_based_actor*) {
      return caf::behavior{[&received](const RequestOutputs& outputs) {
        received.insert(received.end(), outputs.outputs.begin(), outputs.outputs.end());
      }};
    });
  }
  /// One actor stands for all of the group's.
  void connect(std::uint32_t group) {
    const caf::actor actor = system.spawn([this, group](caf::event_based_actor*) {
      return caf::behavior{[](const Subscribe&) { return Status{}; },
                           [=, this](const SubmitRequest& submission) {
                             given[group].push_back(submission.request);
                           },
                           [=, this](const AbortRequests& abort) {
                             aborted.insert(aborted.end(), abort.ids.begin(), abort.ids.end());
                           }};
    });
    groups.push_back(actor);
    report_ready(group, 1);
  }
  /// The engine that was connected for the group.
  void report_ready(std::uint32_t group, std::uint32_t incarnation) {
    const auto pointer = caf::actor_cast<caf::strong_actor_ptr>(groups[group]);
    supervisor->send(
        router, EngineReady{group, incarnation},
        std::vector<InputProcessorActor>{caf::actor_cast<InputProcessorActor>(pointer)},
        caf::actor_cast<OutputProcessorActor>(pointer), caf::actor_cast<SchedulerActor>(pointer));
  }
  RequestId submit(std::int32_t wanted_group, double arrival_time = 0, SamplingParams params = {}) {
    return submit_as(client, RequestId{next_id++}, wanted_group, std::move(params), arrival_time);
  }
  RequestId submit_as(const caf::actor& from, RequestId id, std::int32_t wanted_group = 0,
                      SamplingParams params = {}, double arrival_time = 0) {
    GenerateRequest request{.id = id, .prompt = TokensPrompt{{1}}, .params = std::move(params)};
    request.arrival_time = arrival_time;
    caf::send_as(from, caf::actor_cast<caf::actor>(router),
                 SubmitRequest{request, {.data_parallel_rank = wanted_group}});
    coordinator.run();
    return id;
  }
  /// A step of the group's engine brings these.
  void bring(std::uint32_t group, std::vector<RequestOutput> outputs) {
    caf::send_as(groups[group], caf::actor_cast<caf::actor>(router),
                 RequestOutputs{.outputs = std::move(outputs)});
    coordinator.run();
  }
  static RequestOutput output(RequestId id, const std::string& text, TokenId token, bool last) {
    CompletionOutput sample{.text = text, .token_ids = {token}};
    if (last) sample.finish_reason = FinishReason::kStop;
    RequestOutput result{.id = id, .finished = last};
    result.outputs.push_back(std::move(sample));
    return result;
  }
  /// The Supervisor answers the RequestRouter so; whether the client's answer was an error.
  bool drain(std::uint32_t group, const caf::result<Status>& ended) {
    std::optional<bool> failed;
    system.spawn<caf::hidden>([&](caf::event_based_actor* self) {
      ask(self, router, DrainGroup{group, 0})
          .then([&](const Status& status) { failed = status.error.has_value(); },
                [&](const caf::error&) { failed = true; });
    });
    coordinator.run();
    supervisor->receive([&](const EndGroup& end) {
      BOOST_TEST(end.group == group);
      return ended;
    });
    coordinator.run();
    BOOST_REQUIRE(failed.has_value());
    return *failed;
  }
};

BOOST_FIXTURE_TEST_CASE(a_drained_group_gets_no_requests, Fixture) {
  BOOST_TEST(!drain(1, Status{}));
  submit(1);
  BOOST_TEST(given[0].size() == 1u);
  BOOST_TEST(given[1].empty());
}

BOOST_FIXTURE_TEST_CASE(a_group_that_the_supervisor_keeps_gets_requests_again, Fixture) {
  BOOST_TEST(drain(1, Status{Error{ErrorCode::kInvalidArgument, "it stays", ""}}));
  submit(1);
  BOOST_TEST(given[1].size() == 1u);
}

BOOST_FIXTURE_TEST_CASE(a_group_gets_requests_again_if_the_supervisor_does_not_answer, Fixture) {
  BOOST_TEST(drain(1, caf::make_error(caf::sec::request_timeout)));
  submit(1);
  BOOST_TEST(given[1].size() == 1u);
}

BOOST_FIXTURE_TEST_CASE(requests_are_handed_out_with_their_age, Fixture) {
  submit(0, wall_seconds() - 1000);
  submit(0, wall_seconds() + 1000);  // the clock was set back
  BOOST_REQUIRE(given[0].size() == 2u);
  BOOST_TEST(given[0][0].age_s >= 1000);
  BOOST_TEST(given[0][0].age_s < 2000);
  BOOST_TEST(given[0][1].age_s == 0);
}

/// An engine that continues a request of another one draws the same tokens.
BOOST_FIXTURE_TEST_CASE(a_request_without_a_seed_gets_its_own_key, Fixture) {
  submit(0);
  submit(0);
  BOOST_REQUIRE(given[0].size() == 2u);
  const std::uint64_t key = given[0][0].params.philox_key;
  BOOST_TEST(key != 0u);
  BOOST_TEST(given[0][1].params.philox_key != key);
  submit(0, 0, {.philox_key = 9});
  BOOST_REQUIRE(given[0].size() == 3u);
  BOOST_TEST(given[0][2].params.philox_key == 9u);
}

BOOST_FIXTURE_TEST_CASE(a_restart_with_the_same_seed_draws_different_keys, Fixture) {
  submit(0);
  const RequestRouterActor first = router;
  router = spawn_request_router(system, {.roles = {2, GroupRole::kBoth}, .seed = 7, .life = 1});
  connect(0);
  coordinator.run();
  submit(0);
  caf::anon_send_exit(first, caf::exit_reason::user_shutdown);
  BOOST_REQUIRE(given[0].size() == 2u);
  BOOST_TEST(given[0][0].params.philox_key != given[0][1].params.philox_key);
}

BOOST_FIXTURE_TEST_CASE(clients_choose_their_ids_alone_and_each_gets_its_own_outputs, Fixture) {
  std::vector<RequestOutput> of_other;
  const caf::actor other = spawn_client(of_other);
  submit_as(client, RequestId{5});
  submit_as(other, RequestId{5});
  BOOST_REQUIRE(given[0].size() == 2u);
  const RequestId first = given[0][0].id;
  const RequestId second = given[0][1].id;
  BOOST_TEST((first != second));
  submit_as(other, RequestId{5});  // it has one of this id
  BOOST_REQUIRE(of_other.size() == 1u);
  BOOST_TEST((of_other[0].error->code == ErrorCode::kInvalidArgument));

  bring(0, {output(first, "a", 1, true), output(second, "b", 2, false)});
  BOOST_REQUIRE(outputs.size() == 1u);
  BOOST_TEST((outputs[0].id == RequestId{5}));
  BOOST_TEST(outputs[0].outputs[0].text == "a");
  BOOST_REQUIRE(of_other.size() == 2u);
  BOOST_TEST((of_other[1].id == RequestId{5}));
  BOOST_TEST(of_other[1].outputs[0].text == "b");

  // Only the requests of the client that has ended are aborted.
  submit_as(client, RequestId{5});
  caf::anon_send_exit(other, caf::exit_reason::user_shutdown);
  coordinator.run();
  BOOST_TEST((aborted == std::vector{second}));
  bring(0, {output(given[0][2].id, "c", 3, true)});
  BOOST_TEST(outputs.size() == 2u);
}

BOOST_FIXTURE_TEST_CASE(a_client_of_the_final_output_only_gets_all_of_it_also_after_a_loss,
                        Fixture) {
  submit(0, 0, {.output_kind = OutputKind::kFinalOnly});
  BOOST_REQUIRE(given[0].size() == 1u);
  bring(0, {output(given[0][0].id, "on", 1, false)});
  BOOST_TEST(outputs.empty());
  supervisor->send(router, EngineLost{.group = 0, .reason = "ended by the test"});
  coordinator.run();
  BOOST_REQUIRE(given[1].size() == 1u);
  BOOST_TEST((given[1][0].emitted.at(0).token_ids == std::vector<TokenId>{1}));
  bring(1, {output(given[1][0].id, "ce", 2, true)});
  BOOST_REQUIRE(outputs.size() == 1u);
  BOOST_TEST(outputs[0].finished);
  BOOST_REQUIRE(outputs[0].outputs.size() == 1u);
  BOOST_TEST(outputs[0].outputs[0].text == "once");
  BOOST_TEST((outputs[0].outputs[0].token_ids == std::vector<TokenId>{1, 2}));
}

BOOST_FIXTURE_TEST_CASE(an_engine_that_is_lost_is_not_taken_from_another_supervisor, Fixture) {
  submit(0);
  submit(1);
  BOOST_REQUIRE(given[0].size() == 1u);
  supervisor->send(router, EngineLost{.group = 0, .reason = "ended by the test"});
  coordinator.run();
  BOOST_REQUIRE(given[1].size() == 2u);  // the request continues there
  report_ready(0, 7);                    // as a Supervisor that finds it running
  coordinator.run();
  std::optional<EngineRefused> refused;
  supervisor->receive([&](const EngineRefused& what) { refused = what; });
  BOOST_TEST((refused == EngineRefused{.group = 0, .incarnation = 7}));
  submit(0);
  BOOST_TEST(given[0].size() == 1u);
  bring(0, {output(given[0][0].id, "x", 1, false)});
  BOOST_TEST(outputs.empty());  // its further outputs are dropped
}

BOOST_FIXTURE_TEST_CASE(a_drain_rejects_new_requests_and_waits_for_running_ones, Fixture) {
  submit(0);
  std::optional<Drained> drained;
  system.spawn<caf::hidden>([&](caf::event_based_actor* self) {
    ask(self, router, Drain{.timeout_s = 3600}).then([&](const Drained& done) { drained = done; });
  });
  coordinator.run();
  BOOST_TEST(!drained.has_value());
  submit(0);
  BOOST_REQUIRE(outputs.size() == 1u);
  BOOST_TEST(outputs[0].error->message == "the server is shutting down");
  bring(0, {output(given[0][0].id, "a", 1, true)});
  BOOST_REQUIRE(drained.has_value());
  BOOST_TEST(drained->num_aborted == 0);
}

BOOST_FIXTURE_TEST_CASE(a_drain_with_timeout_zero_aborts_running_requests, Fixture) {
  submit(0);
  std::optional<Drained> drained;
  system.spawn<caf::hidden>([&](caf::event_based_actor* self) {
    ask(self, router, Drain{}).then([&](const Drained& done) { drained = done; });
  });
  coordinator.run();
  BOOST_TEST((aborted == std::vector{given[0][0].id}));
  BOOST_TEST(!drained.has_value());  // the engine is to end it
  bring(0, {output(given[0][0].id, "", 0, true)});
  BOOST_REQUIRE(drained.has_value());
  BOOST_TEST(drained->num_aborted == 1);
}

}  // namespace
}  // namespace troupe::testing
