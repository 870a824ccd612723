// Whose requests those in the engine are, and which keys they draw with.
#include "runtime/processors/request_clients.hpp"

#include <boost/test/unit_test.hpp>
#include <set>

#include "runtime/processors/request_keys.hpp"

namespace troupe {
namespace {

constexpr RequestId kId{7};

RequestOutput piece(RequestId id, std::int32_t index, const std::string& text, TokenId token,
                    bool last = false) {
  CompletionOutput sample{.index = index, .text = text, .token_ids = {token}};
  sample.cumulative_logprob = -token;
  if (last) sample.finish_reason = FinishReason::kLength;
  RequestOutput output{.id = id, .finished = last};
  output.outputs.push_back(std::move(sample));
  return output;
}

BOOST_AUTO_TEST_CASE(clients_may_choose_the_same_ids) {
  RequestClients book(100);
  const auto a = book.add_client();
  const auto b = book.add_client();
  const RequestId first = book.add(a, kId, 3, false).value();
  const RequestId second = book.add(b, kId, 1, false).value();
  BOOST_TEST((first == RequestId{101}));
  BOOST_TEST((second == RequestId{104}));  // behind the samples of the first
  BOOST_TEST((book.allocate(1) == RequestId{105}));
  BOOST_TEST((book.find(a, kId) == first));
  BOOST_TEST((book.find(b, kId) == second));
  BOOST_TEST(!book.find(a, RequestId{8}));
  BOOST_TEST(book.add(a, kId, 1, false).error().message ==
             "id 7 is in use by another live request of this client");
}

BOOST_AUTO_TEST_CASE(outputs_go_to_their_clients_under_their_own_ids_until_they_end) {
  RequestClients book;
  const auto a = book.add_client();
  const auto b = book.add_client();
  const RequestId first = book.add(a, kId, 1, false).value();
  const RequestId second = book.add(b, kId, 1, false).value();
  auto shares = book.share_out({piece(second, 0, "x", 1), piece(first, 0, "y", 2, true),
                                piece(second, 0, "z", 3), piece(RequestId{99}, 0, "no", 4)});
  BOOST_REQUIRE_EQUAL(shares.size(), 2u);
  BOOST_TEST(shares[0].client == b);
  BOOST_REQUIRE_EQUAL(shares[0].outputs.size(), 2u);
  BOOST_TEST((shares[0].outputs[1].id == kId));
  BOOST_TEST(shares[0].outputs[1].outputs[0].text == "z");
  BOOST_TEST(shares[1].client == a);
  BOOST_TEST(book.num_live() == 1u);
  BOOST_TEST(book.share_out({piece(first, 0, "late", 5)}).empty());
  BOOST_TEST(book.add(a, kId, 1, false).ok());
}

BOOST_AUTO_TEST_CASE(removing_a_client_removes_its_requests) {
  RequestClients book;
  const auto a = book.add_client();
  const auto b = book.add_client();
  const RequestId first = book.add(a, kId, 1, false).value();
  const RequestId second = book.add(a, RequestId{8}, 1, false).value();
  const RequestId other = book.add(b, kId, 1, false).value();
  BOOST_TEST((book.remove_client(a) == std::vector{first, second}));
  BOOST_TEST(book.remove_client(a).empty());
  BOOST_TEST(book.share_out({piece(first, 0, "late", 5)}).empty());
  book.remove(other);
  BOOST_TEST(book.num_live() == 0u);
}

BOOST_AUTO_TEST_CASE(a_client_of_the_final_output_gets_all_pieces_merged) {
  RequestClients book;
  const auto client = book.add_client();
  const RequestId id = book.add(client, kId, 2, true).value();
  RequestOutput first = piece(id, 1, "b1", 1);
  first.prompt_token_ids = {9, 9};
  first.prefill_stats = PrefillStats{.num_prompt_tokens = 2, .num_cached_tokens = 1};
  first.num_cached_tokens = 1;
  BOOST_TEST(book.share_out({first}).empty());
  RequestOutput second = piece(id, 0, "a1", 2);
  second.outputs.push_back(piece(id, 1, "b2", 3, true).outputs[0]);
  second.finished_times.push_back({.num_generation_tokens = 2});
  BOOST_TEST(book.share_out({second}).empty());
  RequestOutput last = piece(id, 0, "a2", 4, true);
  last.finished_times.push_back({.num_generation_tokens = 2});
  const auto shares = book.share_out({last});
  BOOST_REQUIRE_EQUAL(shares.size(), 1u);
  BOOST_REQUIRE_EQUAL(shares[0].outputs.size(), 1u);
  const RequestOutput& all = shares[0].outputs[0];
  BOOST_TEST((all.id == kId));
  BOOST_TEST(all.finished);
  BOOST_TEST(all.prompt_token_ids.size() == 2u);
  BOOST_TEST(all.num_cached_tokens == 1);
  BOOST_TEST(all.finished_times.size() == 2u);
  BOOST_REQUIRE_EQUAL(all.outputs.size(), 2u);
  BOOST_TEST(all.outputs[0].text == "a1a2");
  BOOST_TEST((all.outputs[0].token_ids == std::vector<TokenId>{2, 4}));
  BOOST_TEST(all.outputs[0].cumulative_logprob == -4);
  BOOST_TEST((all.outputs[0].finish_reason == FinishReason::kLength));
  BOOST_TEST(all.outputs[1].text == "b1b2");
}

BOOST_AUTO_TEST_CASE(no_two_rows_of_keys_share_one_and_a_row_is_the_same_each_time) {
  std::set<std::uint64_t> keys;
  for (const std::uint64_t seed : {0, 1}) {
    for (const std::uint64_t stream : {0, 1, 2}) {
      RequestKeys row({seed, stream});
      RequestKeys again({seed, stream});
      for (int i = 0; i < 100; ++i) {
        const std::uint64_t key = row.draw();
        BOOST_TEST(key == again.draw());
        keys.insert(key);
      }
    }
  }
  BOOST_TEST(keys.size() == 600u);
  BOOST_TEST(!keys.contains(0));
}

}  // namespace
}  // namespace troupe
