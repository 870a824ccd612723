// Messages through CAF's own serialiser: what travels between processes.
#include <boost/test/unit_test.hpp>
#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>
#include <cmath>
#include <limits>

#include "actors/system_config.hpp"
#include "messages/actor_interfaces.hpp"

namespace troupe {
namespace {

BOOST_AUTO_TEST_CASE(caf_carries_floats_that_it_would_distort_by_itself) {
  RequestOutputs outputs;
  outputs.outputs.push_back({.id = RequestId{7}});
  outputs.outputs[0].outputs.push_back(
      {.logprobs = {{{.token_id = 1, .logprob = -std::numeric_limits<float>::infinity()},
                     {.token_id = 2, .logprob = -0.0f},
                     {.token_id = 3, .logprob = std::numeric_limits<float>::denorm_min()}}}});
  std::vector<char> bytes;
  caf::binary_serializer writer{nullptr, bytes};
  BOOST_REQUIRE(!writer(outputs));
  RequestOutputs copy;
  caf::binary_deserializer reader{nullptr, bytes};
  BOOST_REQUIRE(!reader(copy));
  BOOST_TEST((copy == outputs));
  BOOST_TEST(std::signbit(copy.outputs[0].outputs[0].logprobs[0][1].logprob));
}

BOOST_AUTO_TEST_CASE(a_message_of_any_registered_type_survives_with_its_type) {
  SystemConfig config;
  caf::actor_system system{config};
  SchedulerOutput step;
  step.step = 3;
  step.scheduled_ids = {RequestId{1}, RequestId{2}};
  const caf::message message = caf::make_message(step);
  std::vector<char> bytes;
  caf::binary_serializer writer{system, bytes};
  BOOST_REQUIRE(!writer(message));
  caf::message copy;
  caf::binary_deserializer reader{system, bytes};
  BOOST_REQUIRE(!reader(copy));
  BOOST_REQUIRE((copy.match_elements<SchedulerOutput>()));
  BOOST_TEST((copy.get_as<SchedulerOutput>(0) == step));
}

BOOST_AUTO_TEST_CASE(handles_travel_beside_a_message) {
  SystemConfig config;
  caf::actor_system system{config};
  const caf::message message =
      caf::make_message(EngineReady{.group = 3}, std::vector<InputProcessorActor>(2),
                        OutputProcessorActor{}, SchedulerActor{});
  std::vector<char> bytes;
  caf::binary_serializer writer{system, bytes};
  BOOST_REQUIRE(!writer(message));
  caf::message copy;
  caf::binary_deserializer reader{system, bytes};
  BOOST_REQUIRE(!reader(copy));
  BOOST_REQUIRE((copy.match_elements<EngineReady, std::vector<InputProcessorActor>,
                                     OutputProcessorActor, SchedulerActor>()));
  BOOST_TEST(copy.get_as<EngineReady>(0).group == 3u);
  BOOST_TEST(copy.get_as<std::vector<InputProcessorActor>>(1).size() == 2u);
}

BOOST_AUTO_TEST_CASE(damaged_bytes_are_an_error_not_a_message) {
  std::vector<char> bytes;
  caf::binary_serializer writer{nullptr, bytes};
  GenerateRequest request{.external_id = "r"};
  BOOST_REQUIRE(!writer(request));
  bytes.resize(bytes.size() / 2);
  caf::binary_deserializer reader{nullptr, bytes};
  GenerateRequest copy;
  BOOST_TEST(static_cast<bool>(reader(copy)));
}

}  // namespace
}  // namespace troupe
