#include "runtime/transport/step_rings.hpp"

#include <boost/test/unit_test.hpp>
#include <limits>
#include <numeric>

#include "messages/wire.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

Deadline patient() { return std::chrono::steady_clock::now() + 60s; }
Deadline now() { return std::chrono::steady_clock::now(); }

StepRingsOptions two_ranks() {
  return {.ranks = {2, 3}, .incarnation = 7, .num_chunks = 4, .chunk_bytes = 4096};
}

SchedulerOutput step_of(std::uint64_t number, std::size_t num_tokens = 3) {
  SchedulerOutput step;
  step.step = number;
  NewRequestData request{.id = RequestId{number}, .block_ids = {{1, 2}}};
  request.token_ids.resize(num_tokens);
  std::iota(request.token_ids.begin(), request.token_ids.end(), 0);
  request.params.stop = {"\n"};
  step.new_requests.push_back(std::move(request));
  step.scheduled_ids = {RequestId{number}};
  return step;
}

template <class T, class Message>
T taken(Result<std::optional<Message>> received) {
  BOOST_REQUIRE_MESSAGE(received.ok(), (received.ok() ? "" : received.error().message));
  BOOST_REQUIRE(received->has_value());
  BOOST_REQUIRE(std::holds_alternative<T>(**received));
  return std::get<T>(std::move(**received));
}

struct Fixture {
  std::unique_ptr<StepRings> engine = StepRings::create(two_ranks()).value();
  std::unique_ptr<WorkerStepRings> first = WorkerStepRings::open(engine->worker(0)).value();
  std::unique_ptr<WorkerStepRings> second = WorkerStepRings::open(engine->worker(1)).value();
};

BOOST_FIXTURE_TEST_CASE(every_worker_gets_every_call_and_the_engine_every_answer_with_its_rank,
                        Fixture) {
  BOOST_REQUIRE(engine->send(JoinGroup{4}, patient()).ok());
  for (std::uint64_t n = 0; n < 20; ++n) {
    BOOST_REQUIRE(engine->send(step_of(n), patient()).ok());
    for (const auto& worker : {first.get(), second.get()}) {
      if (n == 0) BOOST_TEST((taken<JoinGroup>(worker->receive(patient())) == JoinGroup{4}));
      BOOST_TEST((taken<SchedulerOutput>(worker->receive(patient())) == step_of(n)));
    }
    ModelRunnerOutput output{.step = n, .ids = {RequestId{n}}, .sampled_token_ids = {5}};
    output.logprobs.logprobs = {-std::numeric_limits<float>::infinity()};
    BOOST_REQUIRE(first->send(output, patient()).ok());
    BOOST_REQUIRE(second->send(StepFailed{n, {ErrorCode::kInternal, "why"}}, patient()).ok());
    output.rank = 2;
    BOOST_TEST((taken<ModelRunnerOutput>(engine->receive(0, patient())) == output));
    BOOST_TEST((taken<StepFailed>(engine->receive(1, patient())) ==
                StepFailed{n, {ErrorCode::kInternal, "why"}, 3}));
  }
  BOOST_TEST(!engine->receive(0, now())->has_value());
  BOOST_TEST(!first->receive(now())->has_value());
}

BOOST_FIXTURE_TEST_CASE(a_step_longer_than_a_chunk_arrives_whole, Fixture) {
  const SchedulerOutput step = step_of(1, 3000);  // 12,000 bytes of tokens, 4 chunks of 4096
  BOOST_REQUIRE(engine->send(step, patient()).ok());
  BOOST_TEST((taken<SchedulerOutput>(first->receive(patient())) == step));
  BOOST_TEST((taken<SchedulerOutput>(second->receive(patient())) == step));
}

BOOST_FIXTURE_TEST_CASE(what_the_grammars_allow_arrives_behind_its_step_at_every_worker, Fixture) {
  for (std::uint64_t n = 1; n <= 5; ++n) {
    GrammarOutput grammar{.step = n, .ids = {RequestId{n}}, .num_rows = {1}, .words_per_row = 2500};
    grammar.bitmask.assign(2500, 0x5555);  // as many as a row of a large vocabulary: 3 chunks
    BOOST_REQUIRE(engine->send(step_of(n), patient()).ok());
    BOOST_REQUIRE(engine->send(grammar, patient()).ok());
    for (const auto& worker : {first.get(), second.get()}) {
      BOOST_TEST((taken<SchedulerOutput>(worker->receive(patient())) == step_of(n)));
      BOOST_TEST((taken<GrammarOutput>(worker->receive(patient())) == grammar));
    }
  }
}

BOOST_FIXTURE_TEST_CASE(methods_arrive_at_every_worker_and_their_replies_with_the_rank, Fixture) {
  const WorkerRpc rpc{9, LoadModel{.options = {.model = "m"}, .ranks = {{}, {.device = "cpu"}}}};
  BOOST_REQUIRE(engine->send(rpc, patient()).ok());
  BOOST_TEST((taken<WorkerRpc>(first->receive(patient())) == rpc));
  BOOST_TEST((taken<WorkerRpc>(second->receive(patient())) == rpc));
  BOOST_REQUIRE(second->send(LoadProgress{0, 0.25, "weights"}, patient()).ok());
  BOOST_TEST(
      (taken<LoadProgress>(engine->receive(1, patient())) == LoadProgress{3, 0.25, "weights"}));
  WorkerRpcReply reply{.call = 9, .result = ModelLoaded{.architecture = "A"}, .error = {}};
  BOOST_REQUIRE(first->send(reply, patient()).ok());
  reply.rank = 2;
  BOOST_TEST((taken<WorkerRpcReply>(engine->receive(0, patient())) == reply));
}

BOOST_FIXTURE_TEST_CASE(steps_wait_for_a_worker_that_opens_its_end_late, Fixture) {
  auto other = StepRings::create({.ranks = {0}}).value();
  BOOST_REQUIRE(other->send(step_of(1), patient()).ok());
  const auto late = WorkerStepRings::open(other->worker(0)).value();
  BOOST_TEST((taken<SchedulerOutput>(late->receive(patient())) == step_of(1)));
}

BOOST_AUTO_TEST_CASE(messages_of_another_incarnation_are_dropped) {
  const auto engine = StepRings::create({.ranks = {0}, .incarnation = 8}).value();
  WorkerRings names = engine->worker(0);
  BOOST_TEST(names.incarnation == 8u);
  names.incarnation = 7;
  const auto old = WorkerStepRings::open(names).value();
  BOOST_REQUIRE(old->send(ModelRunnerOutput{.step = 1}, patient()).ok());
  BOOST_TEST(!engine->receive(0, now())->has_value());
  BOOST_REQUIRE(engine->send(step_of(1), patient()).ok());
  BOOST_TEST(!old->receive(now())->has_value());
}

BOOST_FIXTURE_TEST_CASE(a_worker_that_leaves_is_named_and_the_engine_wakes, Fixture) {
  second.reset();
  const auto answer = engine->receive(1, patient());
  BOOST_REQUIRE(!answer.ok());
  BOOST_TEST((answer.error().code == ErrorCode::kAborted));
  BOOST_TEST(answer.error().message.starts_with("worker of rank 3: "));
  // Its result is not awaited.
  for (std::uint64_t n = 0; n < 20; ++n) {
    BOOST_REQUIRE(engine->send(step_of(n), patient()).ok());
    taken<SchedulerOutput>(first->receive(patient()));
  }
}

BOOST_FIXTURE_TEST_CASE(a_worker_that_is_detached_learns_of_it, Fixture) {
  engine->detach(0);
  BOOST_TEST((first->receive(patient()).error().code == ErrorCode::kAborted));
  BOOST_TEST((first->send(ModelRunnerOutput{}, patient()).error().code == ErrorCode::kAborted));
  BOOST_TEST((engine->receive(0, patient()).error().code == ErrorCode::kAborted));
}

BOOST_FIXTURE_TEST_CASE(a_failed_send_names_the_ranks_and_the_reader_that_ended, Fixture) {
  second.reset();
  for (int i = 0; i < 4; ++i) BOOST_REQUIRE(engine->send(JoinGroup{}, now()).ok());
  const auto sent = engine->send(JoinGroup{}, now());
  BOOST_REQUIRE(!sent.ok());
  BOOST_TEST((sent.error().code == ErrorCode::kTimeout));
  BOOST_TEST(sent.error().message.starts_with("workers of rank 2, 3 (gone): "));
}

BOOST_FIXTURE_TEST_CASE(workers_learn_that_the_engine_has_left, Fixture) {
  engine.reset();
  BOOST_TEST((first->receive(patient()).error().code == ErrorCode::kAborted));
  BOOST_TEST((second->send(ModelRunnerOutput{}, patient()).error().code == ErrorCode::kAborted));
}

BOOST_FIXTURE_TEST_CASE(two_processes_cannot_be_the_same_worker, Fixture) {
  const auto again = WorkerStepRings::open(engine->worker(0));
  BOOST_REQUIRE(!again.ok());
  BOOST_TEST((again.error().code == ErrorCode::kInvalidArgument));
}

BOOST_AUTO_TEST_CASE(another_build_is_refused_with_both_in_the_text) {
  const auto theirs = SharedMemoryRing::create({.build_id = "troupe 0.0.1, messages 0123"}).value();
  const auto opened = WorkerStepRings::open({.calls = theirs->name(), .answers = theirs->name()});
  BOOST_REQUIRE(!opened.ok());
  BOOST_TEST((opened.error().code == ErrorCode::kUnsupported));
  BOOST_TEST(opened.error().message.find("troupe 0.0.1, messages 0123") != std::string::npos);
  BOOST_TEST(opened.error().message.find(step_rings_build_id()) != std::string::npos);
}

BOOST_AUTO_TEST_CASE(what_is_not_a_message_is_an_error) {
  const auto send_raw = [](std::vector<char> bytes) {
    const auto calls = SharedMemoryRing::create({.build_id = step_rings_build_id()}).value();
    const auto answers = SharedMemoryRing::create({.build_id = step_rings_build_id()}).value();
    const auto writer = RingWriter::attach(calls, 0).value();
    const auto worker =
        WorkerStepRings::open({.calls = calls->name(), .answers = answers->name()}).value();
    BOOST_REQUIRE(writer->write(bytes, patient()).ok());
    const auto received = worker->receive(patient());
    return received.ok() ? ErrorCode::kOk : received.error().code;
  };
  const std::vector<char> join{0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0};
  BOOST_TEST((send_raw(join) == ErrorCode::kOk));
  std::vector<char> too_long = join, no_such_kind = join, too_short = join;
  too_long.push_back(0);
  no_such_kind[8] = 2;
  too_short.resize(11);
  for (const auto& bytes : {std::vector<char>{}, too_long, no_such_kind, too_short})
    BOOST_TEST((send_raw(bytes) == ErrorCode::kCorrupt));
}

}  // namespace
}  // namespace troupe
