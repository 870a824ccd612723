// The InputProcessor and its workers; the test is the Frontend and all that stand behind.
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <map>
#include <set>

#include "actors/spawn.hpp"
#include "actors/system_config.hpp"
#include "runtime/processors/input_processor.hpp"
#include "runtime/scheduler/work_queue.hpp"
#include "tests/runtime/processors/byte_tokenizer.hpp"

namespace troupe::testing {
namespace {

using namespace std::chrono_literals;

/// Runs until it is stopped, as far as the test is concerned.
constexpr char kEndless[] =
    "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}"
    "{% endfor %}{% endfor %}{% endfor %}";

struct Fixture {
  SystemConfig config;
  caf::actor_system system{config};
  caf::scoped_actor self{system};
  InputProcessorActor processor;
  std::vector<RequestId> registered;  // in order
  std::set<RequestId> scheduled;
  std::vector<RequestId> aborted_behind;
  std::map<RequestId, RequestOutput> ended;

  ~Fixture() { end(); }
  void start(std::size_t num_workers = 2, double max_input_time_s = 0) {
    ChatFiles files;
    files.templates["default"] = "{{ messages[0].content }}";
    ChatRendererOptions chat;
    chat.limits.max_steps = std::uint64_t{1} << 60;
    InputProcessorOptions options{.max_model_len = 1000, .vocab_size = kVocabSize};
    options.max_input_time_s = max_input_time_s;
    const auto core = std::make_shared<const InputProcessor>(
        byte_tokenizer(), ChatRenderer::create(files, chat).value(), options);
    const auto me = caf::actor_cast<caf::strong_actor_ptr>(self);
    processor =
        spawn_input_processor(system, core, num_workers, caf::actor_cast<OutputProcessorActor>(me),
                              caf::actor_cast<SchedulerActor>(me));
  }
  void end() {
    if (!processor) return;
    const InputProcessorActor ending = std::move(processor);
    caf::anon_send_exit(ending, caf::exit_reason::user_shutdown);
    self->wait_for(ending);
  }
  static ChatPrompt endless() {
    return {.messages_json = R"([{"role":"user","content":"x"}])", .chat_template = kEndless};
  }
  void generate(std::uint64_t id, Prompt prompt, std::uint32_t tenant = 0) {
    GenerateRequest request{.id = RequestId{id}, .prompt = std::move(prompt)};
    request.tenant = tenant;
    self->send(processor, SubmitRequest{std::move(request), {}});
  }
  void abort(std::uint64_t id) { self->send(processor, AbortRequests{{RequestId{id}}}); }
  /// Plays everyone until `done`; two minutes without a message are a failure.
  template <class Condition>
  void run_until(Condition done) {
    while (!done()) {
      bool late = false;
      self->receive(
          [&](const OutputRequest& request) {
            registered.push_back(request.id);
            return Status{};
          },
          [&](const EngineCoreRequests& request) {
            const RequestId id = request.samples.front().id;
            BOOST_TEST(std::count(registered.begin(), registered.end(), id) == 1);
            scheduled.insert(id);
          },
          [&](const AbortRequests& abort) {
            aborted_behind.insert(aborted_behind.end(), abort.ids.begin(), abort.ids.end());
          },
          [&](RequestOutputs& outputs) {
            for (RequestOutput& output : outputs.outputs) {
              BOOST_TEST(output.finished);
              BOOST_TEST(!ended.contains(output.id));
              ended[output.id] = std::move(output);
            }
          },
          caf::after(120s) >> [&] { late = true; });
      BOOST_REQUIRE(!late);
    }
  }
};

BOOST_FIXTURE_TEST_SUITE(input_processor_actor, Fixture)

BOOST_AUTO_TEST_CASE(short_prompts_pass_a_long_one_and_are_registered_before_they_are_scheduled) {
  start();
  for (const std::uint64_t id : {1, 2, 3}) generate(id, endless());
  for (std::uint64_t id = 10; id < 60; ++id) generate(id, TextPrompt{"hello"});
  run_until([&] { return scheduled.size() == 50; });
  BOOST_TEST(ended.empty());
  BOOST_TEST((*scheduled.begin() == RequestId{10}));
}

BOOST_AUTO_TEST_CASE(an_abort_reaches_queued_and_running_work) {
  start();
  generate(1, endless());
  generate(2, endless());
  generate(3, TextPrompt{std::string(WorkQueue::kLongBytes, 'x')});  // longer than the model takes
  abort(2);
  run_until([&] { return ended.size() == 1; });
  abort(1);
  run_until([&] { return ended.size() == 3; });  // the worker has left it, and turned to the third
  for (const std::uint64_t id : {1, 2}) {
    const RequestOutput& output = ended.at(RequestId{id});
    BOOST_TEST(!output.error.has_value());
    BOOST_REQUIRE(output.outputs.size() == 1u);
    BOOST_TEST((output.outputs[0].finish_reason == FinishReason::kAbort));
  }
  BOOST_TEST(ended.at(RequestId{3}).error->message.starts_with("prompt has 65536 "));
  BOOST_TEST(aborted_behind.empty());  // they are unknown there
}

BOOST_AUTO_TEST_CASE(an_abort_of_a_forwarded_request_is_forwarded) {
  start();
  generate(1, TextPrompt{"hello"});
  run_until([&] { return scheduled.size() == 1; });
  abort(1);
  run_until([&] { return aborted_behind.size() == 2; });  // both of those behind
}

BOOST_AUTO_TEST_CASE(work_that_exceeds_the_time_limit_fails_with_the_limit) {
  start(2, 0.05);
  generate(1, endless());
  run_until([&] { return ended.size() == 1; });
  const Error& error = *ended.at(RequestId{1}).error;
  BOOST_TEST((error.code == ErrorCode::kInvalidArgument));
  BOOST_TEST(error.message ==
             "rendering and tokenizing the prompt took too long, max_input_time_s is 0.05");
}

BOOST_AUTO_TEST_CASE(a_rendering_can_be_aborted) {
  start();
  auto answer = self->request(processor, caf::infinite,
                              RenderRequest{.prompt = endless(), .id = RequestId{7}});
  abort(7);
  std::optional<Error> error;
  answer.receive([&](const RenderReply& reply) { error = reply.error; }, [](const caf::error&) {});
  BOOST_REQUIRE(error.has_value());
  BOOST_TEST((error->code == ErrorCode::kAborted));
}

BOOST_AUTO_TEST_CASE(it_ends_at_once_whatever_its_workers_are_at) {
  start(3);
  for (const std::uint64_t id : {1, 2, 3, 4}) generate(id, endless());
  generate(10, TextPrompt{"hello"});
  run_until([&] { return scheduled.size() == 1; });
  end();
  // The system waits for its threads: with a worker that does not stop the test would not end.
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe::testing
