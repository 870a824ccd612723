#include "runtime/cache/block_metrics.hpp"

#include <boost/test/unit_test.hpp>

#include "runtime/cache/block_pool.hpp"
#include "runtime/cache/kv_cache_manager.hpp"

namespace troupe {
namespace {

BOOST_AUTO_TEST_CASE(a_block_is_observed_from_being_given_out_to_its_eviction) {
  BlockMetrics metrics(1, 7);
  BlockPool pool(3, false, &metrics);
  std::vector<BlockId> blocks;
  metrics.set_time(10);
  pool.take(1, blocks);
  for (const double now : {12.0, 13.5}) {
    metrics.set_time(now);
    pool.touch(blocks[0]);
  }
  const std::vector<BlockId> references(3, blocks[0]);
  pool.free(references);
  BOOST_TEST(metrics.take_ended().empty());
  metrics.set_time(20);
  std::vector<BlockId> again;
  pool.take(2, again);
  BOOST_TEST(
      (metrics.take_ended() ==
       std::vector<BlockResidency>{{.lifetime_s = 10, .idle_s = 6.5, .reuse_gaps_s = {1.5}}}));
  // The other block was never allocated before, and both are observed again.
  pool.free(again);
  metrics.set_time(21);
  again.clear();
  pool.take(2, again);
  BOOST_TEST((metrics.take_ended() ==
              std::vector<BlockResidency>(2, {.lifetime_s = 1, .idle_s = 1, .reuse_gaps_s = {}})));
}

BOOST_AUTO_TEST_CASE(of_many_hits_the_last_four_count) {
  BlockMetrics metrics(1, 7);
  metrics.on_taken(5);
  for (const double now : {1, 2, 4, 7, 11, 16}) {
    metrics.set_time(now);
    metrics.on_hit(5);
  }
  metrics.on_evicted(5);
  metrics.on_evicted(5);
  const std::vector<BlockResidency> ended = metrics.take_ended();
  BOOST_REQUIRE(ended.size() == 1u);
  BOOST_TEST((ended[0].reuse_gaps_s == std::vector<double>{3, 4, 5}));
}

BOOST_AUTO_TEST_CASE(a_sample_of_the_blocks_is_observed_and_a_reset_forgets_it) {
  BlockMetrics metrics(0.1, 7);
  for (BlockId block = 0; block < 10000; ++block) metrics.on_taken(block);
  for (BlockId block = 0; block < 5000; ++block) metrics.on_evicted(block);
  const std::size_t num_ended = metrics.take_ended().size();
  BOOST_TEST(num_ended > 400u);
  BOOST_TEST(num_ended < 600u);
  metrics.clear();
  for (BlockId block = 5000; block < 10000; ++block) metrics.on_evicted(block);
  BOOST_TEST(metrics.take_ended().empty());
}

BOOST_AUTO_TEST_CASE(the_manager_reports_evictions_with_its_replies_if_metrics_are_enabled) {
  for (const double rate : {0.0, 1.0}) {
    KVCacheSettings settings;
    settings.groups = {{.spec = {.block_size = 4}, .layers = {0}}};
    settings.num_blocks = 4;
    settings.max_model_len = settings.max_in_flight_tokens = 64;
    settings.metrics_sample_rate = rate;
    KVCacheManager manager(settings);
    BOOST_TEST((manager.metrics() != nullptr) == (rate > 0));
    std::size_t num_evicted = 0;
    for (std::uint64_t id = 1; id <= 2; ++id) {
      if (manager.metrics() != nullptr) manager.metrics()->set_time(static_cast<double>(5 * id));
      KVCacheUpdates updates;
      updates.new_requests.push_back(
          {.id = RequestId{id},
           .token_ids = std::vector<TokenId>(12, static_cast<TokenId>(id)),
           .num_prompt_tokens = 12});
      const RequestAdmitted answer =
          manager.admit({.updates = updates, .id = RequestId{id}, .num_new_tokens = 12});
      BOOST_TEST(answer.fits);
      num_evicted += answer.evicted.size();
      for (const BlockResidency& block : answer.evicted) BOOST_TEST(block.lifetime_s == 5);
      KVCacheUpdates ended;
      ended.commands.push_back({KVCacheCommandKind::kForgetRequest, RequestId{id}, 0});
      manager.apply(ended);
    }
    BOOST_TEST(num_evicted == (rate > 0 ? 3u : 0u));
  }
}

}  // namespace
}  // namespace troupe
