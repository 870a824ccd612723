#include "runtime/cache/encoder_cache_manager.hpp"

#include <boost/test/unit_test.hpp>

namespace troupe {
namespace {

/// Requests 1, 2, ... with one item each, named "a", "b", ..., of ten embeddings.
std::unique_ptr<EncoderCacheManager> manager_with(int num_requests,
                                                  const EncoderCacheSettings& settings) {
  auto manager = make_encoder_cache_manager(settings);
  for (int i = 0; i < num_requests; ++i)
    manager->set_request(
        RequestId{static_cast<std::uint64_t>(i) + 1},
        {{.identifier = std::string(1, static_cast<char>('a' + i)), .length = 10}});
  return manager;
}

std::vector<std::string> evicted_first(const char* kind) {
  const auto made = manager_with(4, {.capacity = 30, .manager = kind});
  EncoderCacheManager& manager = *made;
  const RequestId a{1}, b{2}, c{3}, d{4};
  for (const RequestId id : {a, b, c}) manager.allocate(id, 0);
  // Used in the order a, b, c; released in the order c, a, b. Then c is used and released once
  // more.
  for (const RequestId id : {c, a, b}) manager.free(id);
  BOOST_TEST(manager.check_and_reference(c, 0));
  manager.free(c);
  BOOST_TEST(manager.check_and_reference(a, 0));
  BOOST_TEST(manager.check_and_reference(b, 0));
  manager.free(b);
  manager.free(a);
  BOOST_TEST(manager.evictable().size() == 3u);
  const std::vector<std::string> order = manager.evictable();
  BOOST_TEST(manager.can_allocate(d, 0, 10, 10));
  manager.allocate(d, 0);
  const std::vector<std::string> freed = manager.take_freed_identifiers();
  BOOST_TEST((freed == std::vector<std::string>{order[0], order[1]}));
  return order;
}

BOOST_AUTO_TEST_CASE(the_output_released_first_is_evicted_first) {
  BOOST_TEST((evicted_first("EncoderCacheManager") == std::vector<std::string>{"c", "b", "a"}));
}

BOOST_AUTO_TEST_CASE(under_lru_the_least_recently_used_output_is_evicted_first) {
  BOOST_TEST((evicted_first("LruEncoderCacheManager") == std::vector<std::string>{"c", "a", "b"}));
}

BOOST_AUTO_TEST_CASE(under_lfu_what_is_used_often_outlives_what_is_used_once_until_it_is_old) {
  const auto manager = manager_with(26, {.capacity = 30, .manager = "LfuEncoderCacheManager"});
  const auto use = [&](int number) {
    const RequestId id{static_cast<std::uint64_t>(number) + 1};
    const bool is_hit = manager->check_and_reference(id, 0);
    if (!is_hit) {
      BOOST_REQUIRE(manager->can_allocate(id, 0, 10, 0));
      manager->allocate(id, 0);
    }
    manager->free(id);
    return is_hit;
  };
  use(0);
  for (int i = 0; i < 3; ++i) BOOST_TEST(use(0));  // "a" has been used four times
  // Two others have room beside it. Each that is evicted makes it older by one.
  for (int i = 1; i <= 8; ++i) BOOST_TEST(!use(i));
  BOOST_TEST(use(0));
  BOOST_TEST(use(8));
  BOOST_TEST(manager->evictable().front() == "h");
  for (int i = 9; i < 26; ++i) BOOST_TEST(!use(i));
  BOOST_TEST(!use(0));
}

BOOST_AUTO_TEST_CASE(a_manager_is_chosen_by_name_and_by_what_the_model_is) {
  BOOST_TEST(choose_encoder_cache_manager("", false).value() == "EncoderCacheManager");
  BOOST_TEST(choose_encoder_cache_manager("", true).value() == "EncoderDecoderCacheManager");
  for (const EncoderCacheManagerKind& kind : encoder_cache_manager_kinds()) {
    const bool is_for_both = kind.name == kEncoderDecoderCacheManager;
    BOOST_TEST(choose_encoder_cache_manager(kind.name, is_for_both).value() == kind.name);
    BOOST_TEST(!choose_encoder_cache_manager(kind.name, !is_for_both).ok());
  }
  const auto unknown = choose_encoder_cache_manager("ScoreEncoderCacheManager", false);
  BOOST_REQUIRE(!unknown.ok());
  BOOST_TEST(unknown.error().message ==
             "ec-manager-config: encoder_cache_manager_cls is ScoreEncoderCacheManager, there are "
             "EncoderCacheManager, LruEncoderCacheManager, LfuEncoderCacheManager, "
             "EncoderDecoderCacheManager");
}

BOOST_AUTO_TEST_CASE(an_output_in_use_is_never_evicted) {
  const auto made = manager_with(3, {.capacity = 20});
  EncoderCacheManager& manager = *made;
  manager.allocate(RequestId{1}, 0);
  manager.allocate(RequestId{2}, 0);
  BOOST_TEST(!manager.can_allocate(RequestId{3}, 0, 10, 0));
  manager.free(RequestId{2});
  BOOST_TEST(manager.can_allocate(RequestId{3}, 0, 10, 0));
  BOOST_TEST((manager.take_freed_identifiers() == std::vector<std::string>{"b"}));
  BOOST_TEST(manager.cached_embeds(RequestId{1}, 0) == 10);
}

BOOST_AUTO_TEST_CASE(what_is_loaded_takes_room_and_no_budget) {
  EncoderCacheManager manager({.capacity = 30});
  std::vector<MultiModalFeature> items;
  for (const char* identifier : {"a", "b", "a", "c", "d"})
    items.push_back({.identifier = identifier,
                     .offset = static_cast<std::int32_t>(items.size()) * 10,
                     .length = 10});
  manager.set_request(RequestId{1}, items);
  PlanEncoderInputs question{.id = RequestId{1},
                             .num_new_tokens = 50,
                             .max_new_tokens = 50,
                             .budget = 15,
                             .external_items = {0, 2, 3}};
  EncoderInputsPlanned answer = manager.plan(question);
  BOOST_TEST((answer.external_items == std::vector<std::int32_t>{0, 3}));
  BOOST_TEST((answer.items == std::vector<std::int32_t>{1}));
  BOOST_TEST((answer.duplicates == std::vector<std::int32_t>{2}));
  BOOST_TEST(answer.num_embeds == 10);
  BOOST_TEST(answer.num_new_tokens == 40);  // there is no room for the last one
  BOOST_TEST(!answer.is_pending());
  question.pending_items = {3};
  question.external_items = {0};
  answer = manager.plan(question);
  BOOST_TEST(answer.is_pending());
  BOOST_TEST(answer.num_new_tokens == 30);
  BOOST_TEST((answer.external_items == std::vector<std::int32_t>{0}));
  question.pending_items = {0};
  question.external_items = {};
  answer = manager.plan(question);
  BOOST_TEST(answer.is_pending());
  BOOST_TEST(answer.num_new_tokens == 0);
  // What is cached is known.
  manager.allocate(RequestId{1}, 0);
  answer = manager.plan(question);
  BOOST_TEST(!answer.is_pending());
  BOOST_TEST(answer.num_new_tokens == 30);
}

BOOST_AUTO_TEST_CASE(a_run_of_embeddings_is_never_cut_where_its_tokens_see_each_other) {
  EncoderCacheManager manager({.capacity = 100, .whole_runs = true});
  // Two rows of an image at [12, 16) and [17, 21), and another image at [30, 40).
  manager.set_request(RequestId{1}, {{.identifier = "a",
                                      .offset = 10,
                                      .length = 12,
                                      .is_embed = {0, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0}},
                                     {.identifier = "b", .offset = 30, .length = 10}});
  const auto planned = [&](std::int32_t begin, std::int32_t num_new, std::int32_t most) {
    return manager
        .plan({.id = RequestId{1},
               .num_computed_tokens = begin,
               .num_new_tokens = num_new,
               .max_new_tokens = most,
               .budget = 100})
        .num_new_tokens;
  };
  BOOST_TEST(planned(0, 12, 100) == 12);  // ends before the first run
  BOOST_TEST(planned(0, 13, 13) == 12);   // would cut it: stops before it
  BOOST_TEST(planned(0, 16, 16) == 16);   // ends with it
  BOOST_TEST(planned(0, 17, 17) == 17);   // and between the two
  BOOST_TEST(planned(0, 18, 100) == 17);
  BOOST_TEST(planned(12, 2, 100) == 4);    // begins with it: takes the rest of it
  BOOST_TEST(planned(14, 1, 2) == 2);      // begins inside, behind a cached prefix
  BOOST_TEST(planned(14, 1, 1) == 0);      // there is no room for the rest in this step
  BOOST_TEST(planned(20, 15, 100) == 10);  // stops before the next image
  BOOST_TEST(planned(30, 4, 9) == 0);
  BOOST_TEST(planned(30, 4, 10) == 10);
  BOOST_TEST(planned(22, 30, 30) == 30);
}

BOOST_AUTO_TEST_CASE(an_encoder_decoder_model_shares_nothing_and_frees_one_step_late) {
  const auto made = manager_with(2, {.capacity = 25, .manager = "EncoderDecoderCacheManager"});
  EncoderCacheManager& manager = *made;
  const RequestId a{1}, b{2};
  manager.set_request(b, {{.identifier = "a", .length = 10}});
  const auto plan = [&](RequestId id, std::int32_t computed) {
    return manager.plan(
        {.id = id, .num_computed_tokens = computed, .num_new_tokens = 12, .budget = 100});
  };
  const auto commit = [&](RequestId id) {
    manager.apply({.commands = {{EncoderCacheCommandKind::kAllocate, id, 0}}});
  };
  BOOST_TEST((plan(a, 0).items == std::vector<std::int32_t>{0}));
  commit(a);
  BOOST_TEST((plan(b, 0).items == std::vector<std::int32_t>{0}));  // encoded again
  commit(b);
  BOOST_TEST(manager.num_free() == 5);
  BOOST_TEST(plan(a, 12).items.empty());  // only with the first step
  BOOST_TEST(manager.take_freed({}).identifiers.empty());
  BOOST_TEST((manager.take_freed({}).identifiers == std::vector<std::string>{"a", "a"}));
  BOOST_TEST(manager.take_freed({}).identifiers.empty());
  // Once anything is computed, the cross-attention cache has it.
  manager.apply({.commands = {{EncoderCacheCommandKind::kFreeComputed, a, 12}}});
  BOOST_TEST(manager.num_free() == 15);
  manager.apply({.commands = {{EncoderCacheCommandKind::kFreeComputed, a, 13},
                              {EncoderCacheCommandKind::kForget, b, 0}}});
  BOOST_TEST(manager.num_free() == 25);
}

BOOST_AUTO_TEST_CASE(an_encoder_decoder_request_waits_for_room) {
  const auto made = manager_with(3, {.capacity = 20, .manager = "EncoderDecoderCacheManager"});
  EncoderCacheManager& manager = *made;
  manager.allocate(RequestId{1}, 0);
  manager.allocate(RequestId{2}, 0);
  const EncoderInputsPlanned planned =
      manager.plan({.id = RequestId{3}, .num_new_tokens = 12, .budget = 100});
  BOOST_TEST(planned.items.empty());
  BOOST_TEST(planned.num_new_tokens == 0);
}

}  // namespace
}  // namespace troupe
