#include "runtime/processors/coordinator.hpp"

#include <boost/test/unit_test.hpp>

namespace troupe {
namespace {

using Candidates = std::vector<Coordinator::Candidate>;

GenerateRequest text_of(std::string text) {
  GenerateRequest request;
  request.prompt = TextPrompt{std::move(text)};
  return request;
}

SchedulerStats load_of(std::int32_t waiting, std::int32_t running, double kv_cache_usage = 0) {
  SchedulerStats stats;
  stats.num_waiting_reqs = waiting;
  stats.num_running_reqs = running;
  stats.kv_cache_usage = kv_cache_usage;
  return stats;
}

struct Fixture {
  Coordinator coordinator{2};
  Candidates both = {{.group = 0}, {.group = 1}};

  std::size_t route(const GenerateRequest& request, const Placement& placement = {}) {
    return coordinator.route(request, placement, both).group;
  }
  void idle() {
    for (const std::size_t group : {0, 1}) coordinator.observe(group, load_of(0, 0));
  }
};

BOOST_FIXTURE_TEST_SUITE(coordinator, Fixture)

BOOST_AUTO_TEST_CASE(equal_groups_take_turns) {
  std::vector<std::size_t> chosen;
  for (int i = 0; i < 4; ++i) {
    chosen.push_back(route(text_of("hello")));
    idle();
  }
  BOOST_TEST((chosen == std::vector<std::size_t>{0, 1, 0, 1}));
}

BOOST_AUTO_TEST_CASE(a_burst_is_distributed_before_any_group_reports_its_load) {
  int num_first = 0;
  for (int i = 0; i < 10; ++i) num_first += route(text_of("hello")) == 0;
  BOOST_TEST(num_first == 5);
}

BOOST_AUTO_TEST_CASE(the_group_with_less_to_do_gets_the_request) {
  coordinator.observe(0, load_of(1, 4));
  coordinator.observe(1, load_of(0, 3));
  BOOST_TEST(route(text_of("hello")) == 1u);
  idle();
  both[1].num_in_flight = 2;  // on their way
  BOOST_TEST(route(text_of("hello")) == 0u);
  BOOST_TEST(route(text_of("hello")) == 0u);
}

BOOST_AUTO_TEST_CASE(requests_waiting_for_a_full_cache_weigh_more) {
  coordinator.observe(0, load_of(2, 1, 0.9));  // 3 + 2 * 6 * 0.4
  coordinator.observe(1, load_of(0, 7, 0.9));
  BOOST_TEST(route(text_of("hello")) == 1u);
  coordinator.observe(0, load_of(2, 1, 0.4));
  coordinator.observe(1, load_of(0, 7, 0.9));
  BOOST_TEST(route(text_of("hello")) == 0u);
}

BOOST_AUTO_TEST_CASE(a_prompt_goes_where_its_beginning_has_been_within_a_bound) {
  const std::string story(20 * Coordinator::kPieceBytes, 'a');
  coordinator.observe(0, load_of(0, 1));
  BOOST_TEST(route(text_of(story)) == 1u);
  for (const std::int32_t lead : {0, 4, Coordinator::kMaxLocality - 1}) {
    coordinator.observe(0, load_of(0, 0));
    coordinator.observe(1, load_of(0, lead));
    BOOST_TEST(route(text_of(story + std::to_string(lead))) == 1u);
  }
  coordinator.observe(0, load_of(0, 0));
  coordinator.observe(1, load_of(0, Coordinator::kMaxLocality + 1));
  BOOST_TEST(route(text_of(story + "?")) == 0u);
}

BOOST_AUTO_TEST_CASE(a_short_match_weighs_little_and_other_beginnings_nothing) {
  const std::string piece(Coordinator::kPieceBytes, 'a');
  coordinator.observe(0, load_of(0, 1));
  BOOST_TEST(route(text_of(piece + piece)) == 1u);
  coordinator.observe(0, load_of(0, 0));
  coordinator.observe(1, load_of(0, 2));
  BOOST_TEST(route(text_of(piece + "b" + piece)) == 0u);  // one piece, two requests
  GenerateRequest salted = text_of(piece + piece);
  salted.cache_salt = "mine";
  coordinator.observe(0, load_of(0, 0));
  coordinator.observe(1, load_of(0, 1));
  BOOST_TEST(route(salted) == 0u);
}

BOOST_AUTO_TEST_CASE(
    chats_share_beginnings_with_the_same_tools_only_and_token_ids_among_themselves) {
  GenerateRequest chat;
  ChatPrompt prompt{.messages_json = std::string(4 * Coordinator::kPieceBytes, 'm')};
  chat.prompt = prompt;
  coordinator.observe(0, load_of(0, 1));
  BOOST_TEST(route(chat) == 1u);
  coordinator.observe(0, load_of(0, 0));
  coordinator.observe(1, load_of(0, 2));
  BOOST_TEST(route(chat) == 1u);
  prompt.tools_json = "[]";
  chat.prompt = prompt;
  coordinator.observe(0, load_of(0, 0));
  coordinator.observe(1, load_of(0, 2));
  BOOST_TEST(route(chat) == 0u);

  GenerateRequest tokens;
  tokens.prompt = TokensPrompt{std::vector<TokenId>(200, 7)};
  coordinator.observe(0, load_of(0, 1));
  coordinator.observe(1, load_of(0, 0));
  BOOST_TEST(route(tokens) == 1u);
  coordinator.observe(0, load_of(0, 0));
  coordinator.observe(1, load_of(0, 2));
  BOOST_TEST(route(tokens) == 1u);
}

BOOST_AUTO_TEST_CASE(a_lost_group_has_nothing_cached) {
  const std::string story(8 * Coordinator::kPieceBytes, 'a');
  coordinator.observe(0, load_of(0, 1));
  BOOST_TEST(route(text_of(story)) == 1u);
  coordinator.forget(1);
  coordinator.observe(0, load_of(0, 0));
  coordinator.observe(1, load_of(0, 1));
  BOOST_TEST(route(text_of(story)) == 0u);
}

BOOST_AUTO_TEST_CASE(a_request_goes_to_the_group_that_it_selects_if_that_accepts_requests) {
  const Placement second = {.data_parallel_rank = 1};
  coordinator.observe(1, load_of(50, 50));
  BOOST_TEST(route(text_of("hello"), second) == 1u);
  const Candidates first = {{.group = 0}};
  BOOST_TEST(coordinator.route(text_of("hello"), second, first).group == 0u);
}

BOOST_AUTO_TEST_CASE(a_session_stays_where_it_is_as_long_as_it_can) {
  const Placement session = {.session_id = "s"};
  const Candidates first = {{.group = 0}};
  const Candidates second = {{.group = 1}};
  BOOST_TEST(coordinator.route(text_of("hello"), session, second).group == 1u);
  coordinator.observe(1, load_of(5, 5));
  BOOST_TEST(route(text_of("hello"), session) == 1u);
  BOOST_TEST(coordinator.route(text_of("hello"), session, first).group == 0u);
  BOOST_TEST(route(text_of("hello"), session) == 0u);
}

BOOST_AUTO_TEST_CASE(the_latest_keys_are_kept) {
  RecentMap<int, char> map(2);
  map.put(1, 'a');
  map.put(2, 'b');
  map.put(1, 'c');
  map.put(3, 'd');
  BOOST_TEST(map.find(2) == nullptr);
  BOOST_TEST(*map.find(1) == 'c');
  BOOST_TEST(*map.find(3) == 'd');
}

// Group 0 computes prompts, group 1 generates from them, group 2 does either.
struct Roles {
  Coordinator coordinator{{GroupRole::kPrefill, GroupRole::kDecode, GroupRole::kBoth}, 100};
  Candidates all = {{.group = 0}, {.group = 1}, {.group = 2}};

  static GenerateRequest tokens_of(std::size_t count, TokenId first = 1) {
    GenerateRequest request;
    request.prompt = TokensPrompt{std::vector<TokenId>(count, first)};
    return request;
  }
  Coordinator::Route route(const GenerateRequest& request, bool may_split = true,
                           const Placement& placement = {}) {
    return coordinator.route(request, placement, all, may_split);
  }
};

BOOST_FIXTURE_TEST_CASE(long_prompts_go_to_the_group_for_them, Roles) {
  BOOST_TEST((route(tokens_of(100)) == Coordinator::Route{0, true}));
  BOOST_TEST((route(text_of(std::string(400, 'x'))) == Coordinator::Route{0, true}));
  BOOST_TEST(route(tokens_of(99)).group != 0u);
  BOOST_TEST(route(text_of(std::string(399, 'x'))).group != 0u);
  BOOST_TEST(route(tokens_of(100), /*may_split=*/false).group != 0u);
  BOOST_TEST(!route(tokens_of(100), /*may_split=*/false).prefill_only);
}

BOOST_FIXTURE_TEST_CASE(what_the_other_group_has_cached_does_not_count, Roles) {
  const GenerateRequest story = tokens_of(1000, 7);
  const auto group = route(story, /*may_split=*/false, {.session_id = "s"}).group;
  BOOST_TEST((route(story, true, {.session_id = "s"}) == Coordinator::Route{group, false}));
  GenerateRequest longer = tokens_of(1200, 7);
  BOOST_TEST(route(longer, true, {.session_id = "s"}).prefill_only);
}

BOOST_FIXTURE_TEST_CASE(a_group_that_is_named_gets_the_whole_request, Roles) {
  BOOST_TEST(
      (route(tokens_of(500), true, {.data_parallel_rank = 0}) == Coordinator::Route{0, false}));
  BOOST_TEST(
      (route(tokens_of(500), true, {.data_parallel_rank = 1}) == Coordinator::Route{1, false}));
}

BOOST_FIXTURE_TEST_CASE(groups_do_the_work_of_those_that_are_missing, Roles) {
  all = {{.group = 0}};
  BOOST_TEST((route(tokens_of(500)) == Coordinator::Route{0, false}));
  all = {{.group = 1}};
  BOOST_TEST((route(tokens_of(500)) == Coordinator::Route{1, false}));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
