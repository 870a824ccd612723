// The Frontend between two groups and a Supervisor that the test plays.
#include "actors/spawn.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/http/server.hpp"
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
  std::vector<caf::actor> groups;
  FrontendActor frontend;
  std::uint64_t next_id = 1;

  Fixture() {
    ServerConfig server;
    server.service.model_names = {"m"};
    server.service.defaults.max_model_len = 100;
    server.service.defaults.data_parallel_size = 2;
    frontend = spawn_frontend(system, server, 7);
    for (std::uint32_t group = 0; group < 2; ++group) connect(group);
    coordinator.run();
  }
  ~Fixture() {
    caf::anon_send_exit(frontend, caf::exit_reason::user_shutdown);
    for (const caf::actor& group : groups)
      caf::anon_send_exit(group, caf::exit_reason::user_shutdown);
    coordinator.run();
  }

  /// One actor stands for all of the group's.
  void connect(std::uint32_t group) {
    const caf::actor actor = system.spawn([requests = &given[group]](caf::event_based_actor*) {
      return caf::behavior{[](const Subscribe&) { return Status{}; },
                           [=](const GenerateRequest& request) { requests->push_back(request); }};
    });
    groups.push_back(actor);
    const auto pointer = caf::actor_cast<caf::strong_actor_ptr>(actor);
    supervisor->send(
        frontend, EngineReady{group},
        std::vector<InputProcessorActor>{caf::actor_cast<InputProcessorActor>(pointer)},
        caf::actor_cast<OutputProcessorActor>(pointer), caf::actor_cast<SchedulerActor>(pointer));
  }
  void submit(std::int32_t wanted_group, double arrival_time = 0, SamplingParams params = {}) {
    GenerateRequest request{
        .id = RequestId{next_id++}, .prompt = TokensPrompt{{1}}, .params = std::move(params)};
    request.arrival_time = arrival_time;
    post(frontend, SubmitRequest{request, {.data_parallel_rank = wanted_group}});
    coordinator.run();
  }
  /// The Supervisor answers the Frontend so; whether the client's answer was an error.
  bool drain(std::uint32_t group, const caf::result<Status>& ended) {
    std::optional<bool> failed;
    system.spawn<caf::hidden>([&](caf::event_based_actor* self) {
      ask(self, frontend, DrainGroup{group, 0})
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

/// An engine that goes on with a request of another one draws the same tokens.
BOOST_FIXTURE_TEST_CASE(a_request_that_brings_no_seed_is_handed_out_with_a_key_of_its_own,
                        Fixture) {
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

/// Engines are connected before the port is opened, and opening it can fail.
BOOST_FIXTURE_TEST_CASE(outputs_and_a_drain_before_the_port_is_open_end_nothing, Fixture) {
  RequestOutputs outputs;
  outputs.outputs.push_back({.id = RequestId{1}});
  caf::send_as(groups[0], caf::actor_cast<caf::actor>(frontend), outputs);
  coordinator.run();
  bool drained = false;
  system.spawn<caf::hidden>([&](caf::event_based_actor* self) {
    ask(self, frontend, Drain{.timeout_s = 0}).then([&](const Drained& done) {
      drained = done.num_aborted == 0;
    });
  });
  coordinator.run();
  BOOST_TEST(drained);
}

}  // namespace
}  // namespace troupe::testing
