// The Executor with several workers: how it merges their answers.
#include "actors/spawn.hpp"
#include "tests/support/deterministic_engine.hpp"

namespace troupe::testing {
namespace {

struct RankLog {
  std::vector<std::uint64_t> steps;
  std::vector<std::uint64_t> grammars;  ///< their steps
  std::vector<std::uint32_t> generations;
  std::vector<WorkerRpc> calls;
};

struct RankState {
  RankState() = default;
};

/// Answers nothing by itself.
WorkerActor::behavior_type quiet_rank(WorkerActor::stateful_pointer<RankState>,
                                      const std::shared_ptr<RankLog>& log) {
  return {
      [log](const WorkerRpc& rpc) { log->calls.push_back(rpc); },
      [log](const JoinGroup& join) { log->generations.push_back(join.generation); },
      [log](const SchedulerOutput& step) { log->steps.push_back(step.step); },
      [log](const GrammarOutput& grammar) { log->grammars.push_back(grammar.step); },
  };
}

struct CallerLog {
  std::optional<CollectiveRpcReply> reply;
  std::int32_t progress_of_rank = -1;
};

/// As the Supervisor: passes its calls on to the Executor.
caf::behavior caller_behavior(caf::event_based_actor* self, const ExecutorActor& executor,
                              const std::shared_ptr<CallerLog>& log) {
  return {
      [=](CollectiveRpc& rpc) {
        ask(self, executor, std::chrono::hours(1), std::move(rpc))
            .then([log](CollectiveRpcReply& reply) { log->reply = std::move(reply); });
      },
      [log](const LoadProgress& progress) { log->progress_of_rank = progress.rank; },
  };
}

struct Fixture {
  DeterministicConfig config;
  caf::actor_system system{config};
  caf::scheduler::test_coordinator& coordinator =
      dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  caf::scoped_actor self{system};
  std::vector<std::shared_ptr<RankLog>> logs;
  std::vector<WorkerActor> workers;
  ExecutorActor executor;
  std::shared_ptr<CallerLog> caller_log = std::make_shared<CallerLog>();
  caf::actor caller;

  Fixture() {
    for (int rank = 0; rank < 4; ++rank) {
      logs.push_back(std::make_shared<RankLog>());
      workers.push_back(system.spawn(quiet_rank, logs.back()));
    }
    executor = spawn_executor(system, {workers.begin(), workers.end()},
                              {.tensor_parallel_size = 2, .pipeline_parallel_size = 2});
    caller = system.spawn(caller_behavior, executor, caller_log);
    coordinator.run();
  }
  ~Fixture() {
    for (const WorkerActor& worker : workers)
      caf::anon_send_exit(worker, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(executor, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(caller, caf::exit_reason::user_shutdown);
    coordinator.run();
  }

  void run_step(std::uint64_t step) {
    self->send(executor, SchedulerOutput{.step = step});
    coordinator.run();
  }
  void answer(std::uint64_t step, std::int32_t rank) {
    ModelRunnerOutput output{.step = step};
    output.rank = rank;
    output.sampled_token_ids = {10 + rank};
    caf::send_as(workers[static_cast<std::size_t>(rank)], executor, std::move(output));
    coordinator.run();
  }
  void fail(std::uint64_t step, std::int32_t rank) {
    caf::send_as(workers[static_cast<std::size_t>(rank)], executor,
                 StepFailed{step, {ErrorCode::kInternal, "made to fail"}, rank});
    coordinator.run();
  }
  void call(WorkerMethod method, double timeout_s = 60) {
    self->send(caller, CollectiveRpc{std::move(method), timeout_s});
    coordinator.run();
  }
  void reply(std::uint64_t number, std::int32_t rank, std::optional<Error> error = {},
             WorkerResult result = {}) {
    caf::send_as(workers[static_cast<std::size_t>(rank)], executor,
                 WorkerRpcReply{number, rank, std::move(result), std::move(error)});
    coordinator.run();
  }
  /// The result of the latest call; none: nothing yet, or it has been taken.
  std::optional<CollectiveRpcReply> replied() {
    return std::exchange(caller_log->reply, std::nullopt);
  }
  /// What the Scheduler received: the steps' tokens, and minus the numbers of failed steps.
  std::vector<std::int64_t> received() {
    std::vector<std::int64_t> all;
    bool more = true;
    self->receive_while(more)(
        [&](const ModelRunnerOutput& output) { all.push_back(output.sampled_token_ids.at(0)); },
        [&](const StepFailed& failure) { all.push_back(-static_cast<std::int64_t>(failure.step)); },
        caf::after(std::chrono::seconds(0)) >> [&] { more = false; });
    return all;
  }
};

BOOST_FIXTURE_TEST_CASE(workers_meet_when_they_all_have_their_cache, Fixture) {
  call(InitializeKVCache{.incarnation = 5});
  for (const std::int32_t rank : {3, 1, 0}) reply(1, rank);
  for (const auto& log : logs) BOOST_TEST(log->generations.empty());
  reply(1, 2);
  BOOST_TEST(!replied().value().error.has_value());
  run_step(1);
  for (const auto& log : logs) {
    BOOST_TEST(log->generations == (std::vector<std::uint32_t>{0}));
    BOOST_TEST(log->steps == (std::vector<std::uint64_t>{1}));
  }
}

BOOST_FIXTURE_TEST_CASE(every_worker_runs_a_method_and_the_results_come_in_the_order_of_ranks,
                        Fixture) {
  call(LoadModel{.options = {.model = "m"}});
  for (const auto& log : logs) {
    BOOST_REQUIRE_EQUAL(log->calls.size(), 1u);
    BOOST_TEST(std::get<LoadModel>(log->calls[0].method).options.model == "m");
  }
  caf::send_as(workers[2], executor, LoadProgress{.rank = 2, .fraction = 0.5});
  coordinator.run();
  for (const std::int32_t rank : {2, 0, 3, 1}) {
    BOOST_TEST(!replied().has_value());
    reply(logs[0]->calls[0].call, rank, {}, ModelLoaded{.rank = rank});
  }
  const CollectiveRpcReply all = replied().value();
  BOOST_REQUIRE_EQUAL(all.results.size(), 4u);
  for (std::int32_t rank = 0; rank < 4; ++rank)
    BOOST_TEST(std::get<ModelLoaded>(all.results[static_cast<std::size_t>(rank)]).rank == rank);
  BOOST_TEST(caller_log->progress_of_rank == 2);
}

BOOST_FIXTURE_TEST_CASE(a_method_that_fails_on_one_rank_fails_with_its_name_and_its_text, Fixture) {
  call(InitializeKVCache{});
  reply(1, 0);
  reply(1, 3, Error{ErrorCode::kIo, "no memory"});
  const CollectiveRpcReply failed = replied().value();
  BOOST_TEST(failed.error->message == "initialize_kv_cache: worker of rank 3: no memory");
  BOOST_TEST((failed.error->code == ErrorCode::kIo));
  // The others' replies are late, and of no call any more.
  reply(1, 1), reply(1, 2);
  for (const auto& log : logs) BOOST_TEST(log->generations.empty());
  call(WarmUp{});
  for (const std::int32_t rank : {0, 1, 2, 3}) reply(2, rank);
  BOOST_TEST(!replied().value().error.has_value());
}

BOOST_FIXTURE_TEST_CASE(ranks_that_do_not_reply_in_time_are_named, Fixture) {
  call(WarmUp{}, 2.5);
  reply(1, 0), reply(1, 2);
  caf::anon_send(executor, RpcDeadline{.call = 1});
  coordinator.run();
  const CollectiveRpcReply failed = replied().value();
  BOOST_TEST(failed.error->message ==
             "warm_up: no reply within 2.5 s from the workers of rank 1, 3");
  BOOST_TEST((failed.error->code == ErrorCode::kTimeout));
  reply(1, 1), reply(1, 3);
  caf::anon_send(executor, RpcDeadline{.call = 1});
  coordinator.run();
  BOOST_TEST(!replied().has_value());
}

BOOST_FIXTURE_TEST_CASE(a_step_has_the_output_ranks_result_when_all_have_answered, Fixture) {
  run_step(1);
  run_step(2);
  for (const std::int32_t rank : {2, 0, 1}) answer(1, rank);
  answer(2, 0);
  BOOST_TEST(received().empty());
  answer(1, 3);
  BOOST_TEST(received() == (std::vector<std::int64_t>{12}));
}

BOOST_FIXTURE_TEST_CASE(every_rank_gets_what_the_grammars_allow_behind_its_step, Fixture) {
  run_step(1);
  self->send(executor, GrammarOutput{.step = 1});
  coordinator.run();
  for (const auto& log : logs) BOOST_TEST(log->grammars == (std::vector<std::uint64_t>{1}));
  // One rank has failed in its forward: the others never sample the step, and no one waits.
  run_step(2);
  fail(2, 3);
  self->send(executor, GrammarOutput{.step = 2});
  coordinator.run();
  BOOST_TEST(received() == (std::vector<std::int64_t>{-2}));
  for (const auto& log : logs) BOOST_TEST(log->generations.size() == 1u);
}

BOOST_FIXTURE_TEST_CASE(a_failure_on_any_rank_fails_the_step_at_once_and_the_workers_meet_anew,
                        Fixture) {
  run_step(1);
  run_step(2);
  answer(1, 2);
  fail(2, 1);
  BOOST_TEST(received() == (std::vector<std::int64_t>{-2}));
  for (const auto& log : logs) BOOST_TEST(log->generations == (std::vector<std::uint32_t>{0}));
  // The others fail by it, and what they still answer counts for nothing.
  fail(1, 0);
  fail(2, 3);
  answer(1, 3);
  BOOST_TEST(received().empty());
  run_step(3);
  for (const std::int32_t rank : {0, 1, 2, 3}) answer(3, rank);
  BOOST_TEST(received() == (std::vector<std::int64_t>{12}));
  for (const auto& log : logs) BOOST_TEST(log->generations.size() == 1u);
}

}  // namespace
}  // namespace troupe::testing
