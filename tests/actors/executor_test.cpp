// The Executor with several workers: what it makes of their answers.
#include "actors/spawn.hpp"
#include "tests/support/deterministic_engine.hpp"

namespace troupe::testing {
namespace {

struct RankLog {
  std::vector<std::uint64_t> steps;
  std::vector<std::uint64_t> grammars;  ///< their steps
  std::vector<std::uint32_t> generations;
};

struct RankState {
  RankState() = default;
};

/// Answers nothing by itself.
WorkerActor::behavior_type quiet_rank(WorkerActor::stateful_pointer<RankState>,
                                      const std::shared_ptr<RankLog>& log) {
  return {
      [](const LoadModel&) { return ModelLoaded{}; },
      [](const InitializeKVCache&) { return Status{}; },
      [log](const JoinGroup& join) { log->generations.push_back(join.generation); },
      [log](const SchedulerOutput& step) { log->steps.push_back(step.step); },
      [log](const GrammarOutput& grammar) { log->grammars.push_back(grammar.step); },
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

  Fixture() {
    for (int rank = 0; rank < 4; ++rank) {
      logs.push_back(std::make_shared<RankLog>());
      workers.push_back(system.spawn(quiet_rank, logs.back()));
    }
    executor = spawn_executor(system, {workers.begin(), workers.end()},
                              {.tensor_parallel_size = 2, .pipeline_parallel_size = 2});
    coordinator.run();
  }
  ~Fixture() {
    for (const WorkerActor& worker : workers)
      caf::anon_send_exit(worker, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(executor, caf::exit_reason::user_shutdown);
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
  /// What the Scheduler has got: the steps' tokens, and minus the numbers of failed steps.
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

BOOST_FIXTURE_TEST_CASE(workers_meet_before_their_first_step, Fixture) {
  run_step(1);
  for (const auto& log : logs) {
    BOOST_TEST(log->generations == (std::vector<std::uint32_t>{0}));
    BOOST_TEST(log->steps == (std::vector<std::uint64_t>{1}));
  }
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
  for (const auto& log : logs) BOOST_TEST(log->generations.size() == 2u);
}

BOOST_FIXTURE_TEST_CASE(a_failure_on_any_rank_fails_the_step_at_once_and_the_workers_meet_anew,
                        Fixture) {
  run_step(1);
  run_step(2);
  answer(1, 2);
  fail(2, 1);
  BOOST_TEST(received() == (std::vector<std::int64_t>{-2}));
  for (const auto& log : logs) BOOST_TEST(log->generations == (std::vector<std::uint32_t>{0, 1}));
  // The others fail by it, and what they still answer counts for nothing.
  fail(1, 0);
  fail(2, 3);
  answer(1, 3);
  BOOST_TEST(received().empty());
  run_step(3);
  for (const std::int32_t rank : {0, 1, 2, 3}) answer(3, rank);
  BOOST_TEST(received() == (std::vector<std::int64_t>{12}));
  for (const auto& log : logs) BOOST_TEST(log->generations.size() == 2u);
}

}  // namespace
}  // namespace troupe::testing
