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
  const GrammarOutput grammar{.step = 3,
                              .incarnation = 2,
                              .ids = {RequestId{1}},
                              .num_rows = {2},
                              .num_acceptable_drafts = {1},
                              .words_per_row = 1,
                              .bitmask = {-1, 0x7f}};
  BOOST_TEST((round_trip(grammar) == grammar));
}

BOOST_AUTO_TEST_CASE(shared_vectors_are_sent_once_and_are_shared_after_decoding) {
  EngineCoreRequest sample;
  sample.prompt_token_ids = std::vector<TokenId>(10'000, 7);
  sample.params.allowed_token_ids = std::vector<TokenId>(5'000, 3);
  sample.params.stop_token_ids = {3};
  EngineCoreRequests one{{sample}};
  EngineCoreRequests many{std::vector<EngineCoreRequest>(100, sample)};
  many.samples[50].params.stop_token_ids = {4};
  std::vector<char> bytes_of_one, bytes_of_many;
  wire::encode(one, bytes_of_one);
  wire::encode(many, bytes_of_many);
  BOOST_TEST(bytes_of_one.size() > 60'000u);
  BOOST_TEST(bytes_of_many.size() < bytes_of_one.size() + 100 * 500);
  const EngineCoreRequests copy = round_trip(many);
  BOOST_TEST((copy == many));
  BOOST_TEST(copy.samples[0].prompt_token_ids.data() == copy.samples[99].prompt_token_ids.data());
}

BOOST_AUTO_TEST_CASE(an_invalid_reference_to_a_shared_vector_is_rejected) {
  for (const int distance : {1, 2, 64, 200}) {
    std::vector<char> bytes;
    wire::VectorSink sink(bytes);
    wire::Writer writer(sink);
    writer.put(SharedVector<std::string>{"text"});
    writer.put(static_cast<std::uint8_t>(1 + distance));
    wire::Reader reader(bytes.data(), bytes.size());
    SharedVector<std::string> texts;
    SharedVector<TokenId> tokens;
    reader.get(texts);
    BOOST_TEST(reader.ok());
    reader.get(tokens);
    BOOST_TEST(!reader.ok());
    BOOST_TEST(tokens.empty());
  }
}

BOOST_AUTO_TEST_CASE(a_shared_vector_that_is_edited_leaves_the_others_as_they_were) {
  const SharedVector<int> first{1, 2};
  SharedVector<int> second = first;
  second.edit().push_back(3);
  BOOST_TEST(first.size() == 2u);
  BOOST_TEST(second.size() == 3u);
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

BOOST_AUTO_TEST_CASE(elements_take_memory_only_where_all_of_them_could_be_there) {
  // A byte for each, of which each needs a hundred.
  std::vector<char> bytes;
  wire::VectorSink sink(bytes);
  wire::Writer(sink).length(1 << 20);
  bytes.resize(bytes.size() + (1 << 20));
  EngineCoreRequests requests;
  BOOST_TEST(!wire::decode(bytes.data(), bytes.size(), requests));
  BOOST_TEST(requests.samples.capacity() == 0u);
}

}  // namespace
}  // namespace troupe
