// One request for which there is no memory, among others.
#include "runtime/base/guard.hpp"

#include <boost/test/unit_test.hpp>
#include <limits>
#include <stdexcept>

#include "runtime/processors/request_journal.hpp"
#include "tests/support/limited_allocations.hpp"

namespace troupe {
namespace {

constexpr std::size_t kLarge = 1 << 20;

GenerateRequest request_of(std::uint64_t id, std::size_t num_bytes) {
  GenerateRequest request;
  request.id = RequestId{id};
  request.prompt = TextPrompt{std::string(num_bytes, 'x')};
  request.params.output_kind = OutputKind::kDelta;
  return request;
}

/// While it exists, only small blocks of memory can be allocated.
struct LittleMemory {
  LittleMemory() { testing::largest_allocation = kLarge / 2; }
  ~LittleMemory() { testing::largest_allocation = std::numeric_limits<std::size_t>::max(); }
};

BOOST_AUTO_TEST_CASE(an_exception_becomes_an_error_message) {
  BOOST_TEST(!guard([] {}).has_value());
  const auto memory = guard([] { throw std::bad_alloc(); });
  BOOST_TEST((memory.value().code == ErrorCode::kUnavailable));
  BOOST_TEST(memory->message == "the server is out of memory for this request");
  BOOST_TEST((guard([] { throw std::length_error("x"); })->code == ErrorCode::kUnavailable));
  const auto other = guard([] { throw std::runtime_error("/a/path"); });
  BOOST_TEST((other.value().code == ErrorCode::kInternal));
  BOOST_TEST(other->message == "internal error while processing the request");
  BOOST_TEST((guard([] { throw 5; })->code == ErrorCode::kInternal));
}

BOOST_AUTO_TEST_CASE(a_request_that_cannot_be_handed_out_ends_alone) {
  RequestJournal journal;
  Coordinator coordinator{1};
  BOOST_REQUIRE(journal.add({request_of(1, 10), {}}).ok());
  BOOST_REQUIRE(journal.add({request_of(2, kLarge), {}}).ok());
  BOOST_REQUIRE(journal.add({request_of(3, 10), {}}).ok());
  journal.group_ready(0);
  const LittleMemory little;
  const auto submissions = journal.take_submissions(coordinator);
  BOOST_REQUIRE(submissions.size() == 3u);
  BOOST_TEST(!submissions[0].error.has_value());
  BOOST_TEST((submissions[1].error.value().code == ErrorCode::kUnavailable));
  BOOST_TEST((submissions[1].request.id == RequestId{2}));
  BOOST_TEST(!submissions[2].error.has_value());
  BOOST_TEST(journal.num_live() == 2u);
  BOOST_TEST(journal.num_in(0) == 2u);
  BOOST_TEST(!journal.has_waiting());
}

BOOST_AUTO_TEST_CASE(
    a_request_whose_tokens_cannot_be_recorded_is_reported_and_the_others_continue) {
  RequestJournal journal;
  Coordinator coordinator{1};
  for (const std::uint64_t id : {1, 2}) BOOST_REQUIRE(journal.add({request_of(id, 10), {}}).ok());
  journal.group_ready(0);
  BOOST_TEST(journal.take_submissions(coordinator).size() == 2u);
  RequestOutputs outputs;
  for (const std::size_t num_tokens : {kLarge, std::size_t{1}}) {
    RequestOutput& output = outputs.outputs.emplace_back();
    output.id = RequestId{outputs.outputs.size()};
    output.outputs.push_back({.token_ids = std::vector<TokenId>(num_tokens, 5)});
  }
  const LittleMemory little;
  const auto failures = journal.record(outputs);
  BOOST_REQUIRE(failures.size() == 1u);
  BOOST_TEST((failures[0].id == RequestId{1}));
  BOOST_TEST((failures[0].error.code == ErrorCode::kUnavailable));
  const RequestId id = failures[0].id;
  BOOST_TEST(journal.abort({&id, 1}).to_engine.size() == 1u);
}

}  // namespace
}  // namespace troupe
