// Executor and Workers on two sides of shared-memory rings: in two actor systems, and in processes
// that are killed.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <functional>

#include "actors/spawn.hpp"
#include "actors/system_config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/transport/step_rings.hpp"
#include "tests/support/deterministic_engine.hpp"
#include "tests/support/fake_worker.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using testing::fake_token;
using testing::FakeWorkerLog;

/// What runs into it has failed.
constexpr auto kPatience = 60s;

/// A step with one new request, whose number is the step's: the worker answers with its first
/// token.
SchedulerOutput step_of(std::uint64_t number) {
  SchedulerOutput step;
  step.step = number;
  step.new_requests.push_back(
      {.id = RequestId{number}, .token_ids = {1, 2, 3}, .num_prompt_tokens = 3});
  step.scheduled_ids = {RequestId{number}};
  step.num_scheduled_tokens = {3};
  return step;
}

SchedulerOutput structured_step_of(std::uint64_t number) {
  SchedulerOutput step = step_of(number);
  step.has_structured_output_requests = true;
  return step;
}

ParallelConfig ranks(std::int32_t count) { return {.tensor_parallel_size = count}; }

/// The Scheduler's side: asks an Executor for steps, takes what comes.
struct Asker {
  caf::scoped_actor self;
  ExecutorActor executor;

  using Answer = std::variant<std::monostate, ModelRunnerOutput, StepFailed, caf::error>;
  Answer next() {
    Answer answer;
    self->receive([&](ModelRunnerOutput& output) { answer = std::move(output); },
                  [&](StepFailed& failure) { answer = std::move(failure); },
                  [&](caf::down_msg& down) { answer = std::move(down.reason); },
                  caf::after(kPatience) >> [] {});
    return answer;
  }
  void check_step(std::uint64_t number) {
    self->send(executor, step_of(number));
    check_answer(number, fake_token(RequestId{number}, 3));
  }
  /// A structured one, whose mask leaves one token.
  void check_structured_step(std::uint64_t number) {
    const auto wanted = static_cast<TokenId>(number % 32);
    self->send(executor, structured_step_of(number));
    self->send(executor, GrammarOutput{.step = number,
                                       .ids = {RequestId{number}},
                                       .num_rows = {1},
                                       .words_per_row = 42,
                                       .bitmask = [&] {
                                         std::vector<std::int32_t> row(42);
                                         row[0] =
                                             static_cast<std::int32_t>(std::uint32_t{1} << wanted);
                                         return row;
                                       }()});
    check_answer(number, wanted);
  }
  void check_answer(std::uint64_t number, TokenId token) {
    const Answer answer = next();
    BOOST_REQUIRE(std::holds_alternative<ModelRunnerOutput>(answer));
    const auto& output = std::get<ModelRunnerOutput>(answer);
    BOOST_TEST(output.step == number);
    BOOST_REQUIRE_EQUAL(output.sampled_token_ids.size(), 1u);
    BOOST_TEST(output.sampled_token_ids[0] == token);
  }
  /// The reason of the end of what is monitored; steps may fail before.
  std::string wait_for_end(caf::actor_system& system, int& num_failed_steps) {
    for (;;) {
      const Answer answer = next();
      BOOST_REQUIRE(answer.index() != 0);
      if (std::holds_alternative<StepFailed>(answer)) ++num_failed_steps;
      if (const auto* reason = std::get_if<caf::error>(&answer)) return to_text(*reason, system);
    }
  }
};

template <class Handle>
void end(const Handle& actor) {
  caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
}

struct Fixture {
  SystemConfig engine_config, worker_config;
  caf::actor_system engine{engine_config}, other{worker_config};
  std::shared_ptr<FakeWorkerLog> log = std::make_shared<FakeWorkerLog>();
};

BOOST_FIXTURE_TEST_CASE(an_executor_runs_steps_on_workers_behind_rings, Fixture) {
  const std::shared_ptr<StepRings> rings = StepRings::create({.ranks = {0}}).value();
  const WorkerActor worker = spawn_fake_worker(other, log);
  const auto sink = spawn_remote_executor(other, rings->worker(0), worker).value();
  const WorkerActor workers = spawn_remote_workers(engine, rings);
  Asker asker{caf::scoped_actor{engine}, spawn_executor(engine, {workers})};
  for (std::uint64_t n = 1; n <= 200; ++n) asker.check_step(n);
  end(asker.executor), end(workers), end(sink), end(worker);
}

BOOST_FIXTURE_TEST_CASE(all_ranks_behind_one_ring_answer_a_step_together, Fixture) {
  const std::shared_ptr<StepRings> rings = StepRings::create({.ranks = {0, 1}}).value();
  const WorkerActor first = spawn_fake_worker(other, log);
  const auto second_log = std::make_shared<FakeWorkerLog>();
  const WorkerActor second = spawn_fake_worker(other, second_log);
  const auto first_sink = spawn_remote_executor(other, rings->worker(0), first).value();
  const auto second_sink = spawn_remote_executor(other, rings->worker(1), second).value();
  const WorkerActor workers = spawn_remote_workers(engine, rings);
  Asker asker{caf::scoped_actor{engine}, spawn_executor(engine, {workers}, ranks(2))};
  for (std::uint64_t n = 1; n <= 200; ++n) asker.check_step(n);
  // Their answers are read, so that the logs are at rest.
  BOOST_TEST(log->num_steps == 200u);
  BOOST_TEST(second_log->num_steps == 200u);
  end(asker.executor), end(workers);
  end(first_sink), end(second_sink), end(first), end(second);
}

BOOST_FIXTURE_TEST_CASE(a_worker_here_and_one_behind_a_ring_are_one_group, Fixture) {
  const std::shared_ptr<StepRings> rings = StepRings::create({.ranks = {1}}).value();
  const WorkerActor near = spawn_fake_worker(engine, log);
  const WorkerActor far = spawn_fake_worker(other, std::make_shared<FakeWorkerLog>());
  const auto sink = spawn_remote_executor(other, rings->worker(0), far).value();
  const WorkerActor workers = spawn_remote_workers(engine, rings);
  Asker asker{caf::scoped_actor{engine}, spawn_executor(engine, {near, workers}, ranks(2))};
  for (std::uint64_t n = 1; n <= 50; ++n) asker.check_step(n);
  end(asker.executor), end(workers), end(near), end(sink), end(far);
}

BOOST_FIXTURE_TEST_CASE(a_method_runs_on_a_worker_here_and_on_those_behind_a_ring, Fixture) {
  const std::shared_ptr<StepRings> rings = StepRings::create({.ranks = {1}}).value();
  const auto far_log = std::make_shared<FakeWorkerLog>();
  far_log->rank = 1;
  const WorkerActor near = spawn_fake_worker(engine, log);
  const WorkerActor far = spawn_fake_worker(other, far_log);
  const auto sink = spawn_remote_executor(other, rings->worker(0), far).value();
  const WorkerActor workers = spawn_remote_workers(engine, rings);
  Asker asker{caf::scoped_actor{engine}, spawn_executor(engine, {near, workers}, ranks(2))};
  const auto call = [&] {
    CollectiveRpcReply reply;
    asker.self
        ->request(asker.executor, kPatience,
                  CollectiveRpc{LoadModel{.options = {.model = "m"}}, 60})
        .receive([&](CollectiveRpcReply& answer) { reply = std::move(answer); },
                 [&](const caf::error& error) { BOOST_ERROR(to_text(error, engine)); });
    return reply;
  };
  const CollectiveRpcReply all = call();
  BOOST_REQUIRE_EQUAL(all.results.size(), 2u);
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    const auto& loaded = std::get<ModelLoaded>(all.results[static_cast<std::size_t>(rank)]);
    BOOST_TEST(loaded.rank == rank);
    BOOST_TEST(loaded.architecture == "m");
  }
  far_log->rpc_error = Error{ErrorCode::kIo, "no such file"};
  BOOST_TEST(call().error->message == "load_model: worker of rank 1: no such file");
  end(asker.executor), end(workers), end(near), end(sink), end(far);
}

BOOST_FIXTURE_TEST_CASE(the_end_of_a_worker_fails_open_steps_and_ends_both_sides, Fixture) {
  log->keep_quiet = true;
  const std::shared_ptr<StepRings> rings = StepRings::create({.ranks = {0}}).value();
  const WorkerActor worker = spawn_fake_worker(other, log);
  const auto sink = spawn_remote_executor(other, rings->worker(0), worker).value();
  const WorkerActor workers = spawn_remote_workers(engine, rings);
  Asker asker{caf::scoped_actor{engine}, spawn_executor(engine, {workers})};
  asker.self->monitor(workers);
  asker.self->send(asker.executor, step_of(1));
  log->num_taken.wait(0);
  caf::anon_send_exit(worker, caf::exit_reason::kill);
  int num_failed_steps = 0;
  const std::string reason = asker.wait_for_end(engine, num_failed_steps);
  BOOST_TEST_INFO(reason);
  BOOST_TEST(reason.find("of rank 0") != std::string::npos);
  // The failure of the step takes the way through the Executor.
  if (num_failed_steps == 0) BOOST_TEST((asker.next().index() == 2));
  end(asker.executor);
}

BOOST_FIXTURE_TEST_CASE(a_worker_continues_under_a_new_incarnation, Fixture) {
  const WorkerActor worker = spawn_fake_worker(other, log);
  for (std::uint64_t incarnation = 1; incarnation <= 5; ++incarnation) {
    const std::shared_ptr<StepRings> rings =
        StepRings::create({.ranks = {0}, .incarnation = incarnation}).value();
    const auto sink = spawn_remote_executor(other, rings->worker(0), worker).value();
    caf::scoped_actor watcher{other};
    watcher->monitor(sink);
    const WorkerActor workers = spawn_remote_workers(engine, rings);
    Asker asker{caf::scoped_actor{engine}, spawn_executor(engine, {workers})};
    for (std::uint64_t n = 1; n <= 20; ++n) asker.check_step(n);
    end(asker.executor), end(workers);
    bool ended = false;
    watcher->receive([&](caf::down_msg&) { ended = true; }, caf::after(kPatience) >> [] {});
    BOOST_TEST(ended);
  }
  end(worker);
}

BOOST_AUTO_TEST_CASE(a_whole_engine_gives_the_same_tokens_through_rings) {
  for (const bool async : {false, true}) {
    SystemConfig config;
    caf::actor_system system{config};
    testing::EngineHarness engine(system, testing::demo_tokenizer(),
                                  {.async_scheduling = async, .through_rings = true});
    constexpr std::uint64_t kRequests = 8;
    for (std::uint64_t id = 1; id <= kRequests; ++id)
      engine.add(RequestId{id}, testing::DeterministicEngine::prompt(10 + id), 40);
    engine.frontend_log->wait_for(kRequests);
    for (std::uint64_t id = 1; id <= kRequests; ++id) {
      const auto& tokens = engine.frontend_log->token_ids[RequestId{id}];
      BOOST_REQUIRE_EQUAL(tokens.size(), 40u);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        BOOST_TEST(tokens[i] == fake_token(RequestId{id}, static_cast<std::int32_t>(10 + id + i)));
      }
    }
  }
}

// ---- Processes ---------------------------------------------------------------------------------

/// A forked process that runs `body` until it is killed. Made while this process has one thread.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(::fork()) {
    BOOST_REQUIRE(pid_ >= 0);
    if (pid_ != 0) return;
    body();
    ::_exit(0);
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_;
};

/// A worker's process.
void serve_steps(const WorkerRings& names) {
  SystemConfig config;
  caf::actor_system system{config};
  const WorkerActor worker = spawn_fake_worker(system, std::make_shared<FakeWorkerLog>());
  const auto sink = spawn_remote_executor(system, names, worker);
  for (;;) ::pause();
}

/// The step that is open then may wait for its mask.
BOOST_AUTO_TEST_CASE(a_killed_worker_process_ends_the_group_with_its_rank_and_a_new_one_goes_on) {
  for (std::uint64_t incarnation = 1; incarnation <= 3; ++incarnation) {
    const std::shared_ptr<StepRings> rings =
        StepRings::create({.ranks = {0, 1}, .incarnation = incarnation}).value();
    Child first([&] { serve_steps(rings->worker(0)); });
    Child second([&] { serve_steps(rings->worker(1)); });
    SystemConfig config;
    caf::actor_system system{config};
    const WorkerActor workers = spawn_remote_workers(system, rings);
    Asker asker{caf::scoped_actor{system}, spawn_executor(system, {workers}, ranks(2))};
    asker.self->monitor(workers);
    for (std::uint64_t n = 1; n <= 50; ++n)
      asker.check_step(n), asker.check_structured_step(50 + n);
    asker.self->send(asker.executor, structured_step_of(101));
    second.kill();
    // The step fails, unless the group had ended before: then the Supervisor reports it.
    int num_failed_steps = 0;
    const std::string reason = asker.wait_for_end(system, num_failed_steps);
    BOOST_TEST_INFO(reason);
    BOOST_TEST(reason.find("worker of rank 1") != std::string::npos);
    BOOST_TEST(num_failed_steps <= 1);
    end(asker.executor);
  }
}

BOOST_AUTO_TEST_CASE(a_killed_engine_process_ends_the_workers_end_of_the_rings) {
  int pipe_ends[2];
  BOOST_REQUIRE(::pipe(pipe_ends) == 0);
  Child engine([&] {
    const std::shared_ptr<StepRings> rings = StepRings::create({.ranks = {0}}).value();
    std::vector<char> bytes;
    wire::encode(rings->worker(0), bytes);
    if (::write(pipe_ends[1], bytes.data(), bytes.size()) < 0) return;
    SystemConfig config;
    caf::actor_system system{config};
    const WorkerActor workers = spawn_remote_workers(system, rings);
    const ExecutorActor executor = spawn_executor(system, {workers});
    caf::scoped_actor self{system};
    for (std::uint64_t n = 1;; ++n) {
      self->send(executor, step_of(n));
      self->receive([](const ModelRunnerOutput&) {}, [](const StepFailed&) {});
    }
  });
  char bytes[512];
  const ssize_t size = ::read(pipe_ends[0], bytes, sizeof bytes);
  BOOST_REQUIRE(size > 0);
  ::close(pipe_ends[0]), ::close(pipe_ends[1]);
  WorkerRings names;
  BOOST_REQUIRE(wire::decode(bytes, static_cast<std::size_t>(size), names));

  SystemConfig config;
  caf::actor_system system{config};
  const auto log = std::make_shared<FakeWorkerLog>();
  const WorkerActor worker = spawn_fake_worker(system, log);
  const auto sink = spawn_remote_executor(system, names, worker).value();
  caf::scoped_actor self{system};
  self->monitor(sink);
  engine.kill();
  std::string reason;
  self->receive([&](caf::down_msg& down) { reason = to_text(down.reason, system); },
                caf::after(kPatience) >> [] {});
  BOOST_TEST(reason.find("has ended") != std::string::npos);
  end(worker);
}

BOOST_AUTO_TEST_CASE(a_worker_whose_rings_cannot_be_opened_ends_with_the_reason) {
  SystemConfig config;
  caf::actor_system system{config};
  NodeConfig place;
  place.name = "worker-0";
  place.workers = {0};
  const NodeHandles node = spawn_node(system, Options{}, place);
  caf::scoped_actor self{system};
  caf::strong_actor_ptr worker;
  self->request(node.node, kPatience, SpawnWorker{})
      .receive([&](const Status&, const ActorHandles& handles) { worker = handles.at(0); },
               [](const caf::error&) {});
  BOOST_REQUIRE(worker);
  self->monitor(caf::actor_cast<caf::actor>(worker));
  WorkerRings gone = StepRings::create({.ranks = {0}}).value()->worker(0);
  self->send(node.node, OpenRings{0, gone});
  std::string reason;
  self->receive([&](caf::down_msg& down) { reason = to_text(down.reason, system); },
                caf::after(kPatience) >> [] {});
  BOOST_TEST(
      reason.find("a worker has no rings: there is no ring " + gone.calls) != std::string::npos,
      reason);
  end(node.node);
}

}  // namespace
}  // namespace troupe
