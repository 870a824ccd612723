// The InputProcessor and a request for which there is no memory.
#include "runtime/processors/input_processor.hpp"

#include <limits>

#include "actors/spawn.hpp"
#include "tests/runtime/processors/byte_tokenizer.hpp"
#include "tests/support/deterministic_engine.hpp"
#include "tests/support/limited_allocations.hpp"

namespace troupe::testing {
namespace {

constexpr std::size_t kNumTokens = 4 << 20;

GenerateRequest request_of(std::uint64_t id, std::size_t num_tokens) {
  GenerateRequest request;
  request.id = RequestId{id};
  request.prompt = TokensPrompt{std::vector<TokenId>(num_tokens, 5)};
  return request;
}

BOOST_AUTO_TEST_CASE(a_request_for_which_there_is_no_memory_fails_alone) {
  DeterministicConfig config;
  caf::actor_system system{config};
  caf::scoped_actor frontend{system};
  caf::scoped_actor engine{system};
  const auto pointer = caf::actor_cast<caf::strong_actor_ptr>(engine);
  const auto core = std::make_shared<const InputProcessor>(
      byte_tokenizer(), nullptr,
      InputProcessorOptions{.max_model_len = 2 * static_cast<std::int32_t>(kNumTokens),
                            .vocab_size = 300});
  const InputProcessorActor actor =
      spawn_input_processor(system, core, 2, caf::actor_cast<OutputProcessorActor>(pointer),
                            caf::actor_cast<SchedulerActor>(pointer));
  GenerateRequest large = request_of(1, kNumTokens);
  largest_allocation = kNumTokens;
  frontend->send(actor, SubmitRequest{std::move(large), {}});
  frontend->receive([](const RequestOutputs& outputs) {
    BOOST_REQUIRE(outputs.outputs.size() == 1u);
    BOOST_TEST((outputs.outputs[0].id == RequestId{1}));
    BOOST_TEST(outputs.outputs[0].finished);
    BOOST_TEST((outputs.outputs[0].error.value().code == ErrorCode::kUnavailable));
  });
  largest_allocation = std::numeric_limits<std::size_t>::max();
  frontend->send(actor, SubmitRequest{request_of(2, 3), {}});
  engine->receive([](const OutputRequest& request) {
    BOOST_TEST((request.id == RequestId{2}));
    return Status{};
  });
  engine->receive(
      [](const EngineCoreRequests& request) { BOOST_TEST(request.samples.size() == 1u); });
  caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
}

}  // namespace
}  // namespace troupe::testing
