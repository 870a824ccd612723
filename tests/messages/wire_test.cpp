#include "messages/wire.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "messages/engine_output.hpp"
#include "messages/request.hpp"
#include "messages/scheduler_output.hpp"

namespace troupe {
namespace {

GenerateRequest sample_request() {
  GenerateRequest request;
  request.id = RequestId{42};
  request.external_id = "cmpl-1";
  request.prompt = ChatPrompt{.messages_json = R"([{"role":"user"}])"};
  request.params.seed = -7;
  request.params.stop = {"\n\n", "END"};
  request.params.logit_bias = {{5, -std::numeric_limits<float>::infinity()}};
  request.emitted = {{.token_ids = {1, 2, 3}, .cumulative_logprob = -2.5, .finished = true}};
  return request;
}

template <class T>
T round_trip(const T& message) {
  std::vector<char> bytes;
  wire::encode(message, bytes);
  T copy;
  BOOST_REQUIRE(wire::decode(bytes.data(), bytes.size(), copy));
  return copy;
}

BOOST_AUTO_TEST_CASE(a_message_survives_the_wire_in_every_field) {
  BOOST_TEST((round_trip(sample_request()) == sample_request()));
  SchedulerOutput step;
  step.new_requests.push_back(
      {.id = RequestId{1}, .token_ids = {1, 2}, .block_ids = {{1, 2}, {3}}});
  step.block_copies = {{4, 5}};
  BOOST_TEST((round_trip(step) == step));
}

BOOST_AUTO_TEST_CASE(floats_travel_bit_for_bit) {
  LogprobRows rows;
  rows.logprobs = {-std::numeric_limits<float>::infinity(), -0.0f,
                   std::numeric_limits<float>::denorm_min(), std::nanf("")};
  const LogprobRows copy = round_trip(rows);
  BOOST_TEST(std::memcmp(copy.logprobs.data(), rows.logprobs.data(), 4 * sizeof(float)) == 0);
}

BOOST_AUTO_TEST_CASE(fields_that_an_older_writer_did_not_send_keep_their_defaults) {
  std::vector<char> bytes;
  wire::VectorSink sink(bytes);
  wire::Writer(sink).put(RequestId{9});
  GenerateRequest request;
  BOOST_TEST(wire::decode(bytes.data(), bytes.size(), request));
  BOOST_TEST(value(request.id) == 9u);
  BOOST_TEST(request.params.n == 1);
}

BOOST_AUTO_TEST_CASE(damaged_bytes_are_refused_or_read_but_never_crash) {
  std::vector<char> bytes;
  wire::encode(sample_request(), bytes);
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<char> damaged = bytes;
    damaged[random() % damaged.size()] = static_cast<char>(random());
    damaged.resize(random() % (damaged.size() + 1));
    GenerateRequest request;
    refused += !wire::decode(damaged.data(), damaged.size(), request);
  }
  BOOST_TEST(refused > 1000);
}

BOOST_AUTO_TEST_CASE(a_length_beyond_the_input_is_refused_before_memory_is_taken) {
  std::vector<char> bytes;
  wire::VectorSink sink(bytes);
  wire::Writer(sink).length(std::uint64_t{1} << 40);
  wire::Reader reader(bytes.data(), bytes.size());
  std::vector<double> numbers;
  reader.get(numbers);
  BOOST_TEST(!reader.ok());
  BOOST_TEST(numbers.empty());
}

}  // namespace
}  // namespace troupe
