#include "runtime/cache/kv_cache_manager.hpp"

#include <boost/test/unit_test.hpp>

namespace troupe {
namespace {

constexpr AttentionWindow kWindow = {.num_tokens = 17};
constexpr MambaSpec kAligned = {.mode = MambaMode::kAlign};

template <class Kind>
KVCacheSpec spec_of(const Kind& kind, std::int32_t block_size) {
  return {.kind = kind, .block_size = block_size};
}

KVCacheSettings settings_of(const std::vector<KVCacheSpec>& specs) {
  KVCacheSettings settings;
  for (const KVCacheSpec& spec : specs) settings.groups.push_back({.spec = spec});
  settings.num_blocks = 100;
  settings.max_model_len = settings.max_in_flight_tokens = 512;
  return settings;
}

/// A prompt of the tokens first, first + 1, ...
CachedRequest& add(KVCacheManager& manager, std::uint64_t id, std::int32_t num_tokens,
                   TokenId first = 0) {
  KVCacheRequest request{.id = RequestId{id}};
  for (TokenId token = first; token < first + num_tokens; ++token)
    request.token_ids.edit().push_back(token);
  request.num_prompt_tokens = num_tokens;
  return manager.add_request(std::move(request));
}

/// Computes tokens [computed, end), from a hit if computed is 0.
bool compute(KVCacheManager& manager, CachedRequest& request, std::int32_t computed,
             std::int32_t end, CacheHit* hit = nullptr) {
  manager.new_step_starts();
  const std::int32_t num_hit = hit == nullptr ? 0 : hit->num_tokens;
  return manager.allocate_slots(request,
                                {.num_computed_tokens = computed,
                                 .num_new_tokens = end - computed - num_hit,
                                 .num_hit_tokens = num_hit,
                                 .hit = hit},
                                nullptr);
}

BOOST_AUTO_TEST_CASE(latent_attention_hits_as_full_attention_does) {
  for (const KVCacheSpec& spec : {spec_of(FullAttentionSpec{}, 8), spec_of(MlaSpec{}, 8)}) {
    KVCacheManager manager(settings_of({spec}));
    BOOST_TEST(compute(manager, add(manager, 1, 40), 0, 40));
    CachedRequest& second = add(manager, 2, 40);
    CacheHit hit = manager.get_computed_blocks(second);
    BOOST_TEST(hit.num_tokens == 32);
    BOOST_TEST((hit.blocks == BlockTable{{1, 2, 3, 4}}));
  }
}

BOOST_AUTO_TEST_CASE(a_latent_window_slides_as_any_other) {
  KVCacheManager manager(settings_of({spec_of(SlidingWindowMlaSpec{.window = kWindow}, 8)}));
  CachedRequest& first = add(manager, 1, 64);
  BOOST_TEST(compute(manager, first, 0, 64));
  manager.remove_skipped_blocks(first, 64);
  BOOST_TEST((first.groups[0].blocks == std::vector<BlockId>{0, 0, 0, 0, 0, 0, 7, 8}));
  CacheHit hit = manager.get_computed_blocks(add(manager, 2, 64));
  BOOST_TEST(hit.num_tokens == 56);
  BOOST_TEST((hit.blocks == BlockTable{{0, 0, 0, 0, 0, 6, 7}}));
}

BOOST_AUTO_TEST_CASE(cross_attention_takes_its_blocks_once_and_gives_all_back) {
  KVCacheSettings settings =
      settings_of({spec_of(FullAttentionSpec{}, 16), spec_of(CrossAttentionSpec{}, 16)});
  settings.prefix_caching = false;
  settings.num_blocks = 1 + 6;
  KVCacheManager manager(settings);
  CachedRequest& request = add(manager, 1, 5);
  BlockTable taken(2);
  KVCacheManager::Slots slots{.num_new_tokens = 5, .num_encoder_tokens = 100};
  BOOST_TEST(!manager.allocate_slots(request, slots, &taken));  // 1 + 7 blocks
  BOOST_TEST(manager.pool().num_free_blocks() == 6);
  slots.num_encoder_tokens = 70;
  slots.full_sequence_must_fit = true;
  BOOST_TEST(manager.allocate_slots(request, slots, &taken));
  BOOST_TEST((taken == BlockTable{{1}, {2, 3, 4, 5, 6}}));
  // The decoder continues; the encoder's part is unchanged.
  taken.assign(2, {});
  BOOST_TEST(
      manager.allocate_slots(request, {.num_computed_tokens = 5, .num_new_tokens = 1}, &taken));
  BOOST_TEST((taken == BlockTable{{}, {}}));
  manager.remove_skipped_blocks(request, 6);
  manager.free(request);
  BOOST_TEST(manager.pool().num_free_blocks() == 6);
}

/// Full attention and states in blocks of 16 tokens, hashes for every 8.
KVCacheSettings partial_settings() {
  KVCacheSettings settings = settings_of({spec_of(FullAttentionSpec{}, 16), spec_of(kAligned, 16)});
  settings.prefix_match_unit = 8;
  return settings;
}

BOOST_AUTO_TEST_CASE(a_hit_that_ends_inside_a_block_gets_a_copy_of_it) {
  KVCacheManager manager(partial_settings());
  BOOST_TEST(manager.coordinator().num_groups() == 2u);
  CachedRequest& first = add(manager, 1, 45);
  // As the Scheduler cuts it: at the last block boundary, at the last hash boundary, the rest.
  BOOST_TEST(compute(manager, first, 0, 32));
  BOOST_TEST(compute(manager, first, 32, 40));
  BOOST_TEST(first.groups[1].cached_tail.has_value());
  BOOST_TEST(compute(manager, first, 40, 45));
  // The state after 40 tokens moves on in its block; the cache knows a copy.
  BlockCopies copies = manager.take_block_copies();
  BOOST_REQUIRE(copies.size() == 1u);
  BOOST_TEST(copies[0].first == first.groups[1].blocks.back());
  const BlockId kept = copies[0].second;
  BOOST_TEST(manager.pool().num_references(kept) == 0);
  BOOST_TEST(manager.pool().prefix_map().num_tokens(kept) == 40);

  CachedRequest& second = add(manager, 2, 45);
  CacheHit hit = manager.get_computed_blocks(second);
  BOOST_TEST(hit.num_tokens == 40);
  const BlockId shared = first.groups[0].blocks[2];
  BOOST_TEST(
      (hit.blocks ==
       BlockTable{{first.groups[0].blocks[0], first.groups[0].blocks[1], shared}, {0, 0, kept}}));
  BOOST_TEST(compute(manager, second, 0, 45, &hit));
  copies = manager.take_block_copies();
  BOOST_REQUIRE(copies.size() == 2u);
  BOOST_TEST(copies[0].first == shared);
  BOOST_TEST(copies[0].second == second.groups[0].blocks[2]);
  BOOST_TEST(copies[1].first == kept);
  BOOST_TEST(copies[1].second == second.groups[1].blocks[2]);
  for (const auto& [source, destination] : copies)
    BOOST_TEST(manager.pool().num_references(destination) == 1);
  manager.forget(RequestId{1});
  manager.forget(RequestId{2});
  BOOST_TEST(manager.pool().num_free_blocks() == 99);
}

BOOST_AUTO_TEST_CASE(a_state_is_not_hit_in_the_step_that_writes_it) {
  KVCacheManager manager(settings_of({spec_of(FullAttentionSpec{}, 8), spec_of(kAligned, 8)}));
  CachedRequest& first = add(manager, 1, 40);
  BOOST_TEST(compute(manager, first, 0, 32));
  CachedRequest& second = add(manager, 2, 40);
  CacheHit hit = manager.get_computed_blocks(second);
  BOOST_TEST(hit.num_tokens == 32);
  const KVCacheManager::Slots slots{.num_new_tokens = 8, .num_hit_tokens = 32, .hit = &hit};
  BOOST_TEST(!manager.allocate_slots(second, slots, nullptr));
  manager.new_step_starts();
  BOOST_TEST(manager.allocate_slots(second, slots, nullptr));
}

BOOST_AUTO_TEST_CASE(a_checkpoint_keeps_a_state_from_inside_a_step) {
  MambaSpec states = kAligned;
  states.num_prefill_checkpoint_blocks = 1;
  states.prefill_checkpoint_alignment = 8;
  KVCacheManager manager(settings_of({spec_of(FullAttentionSpec{}, 8), spec_of(states, 8)}));
  CachedRequest& first = add(manager, 1, 45);
  BOOST_TEST(compute(manager, first, 0, 45));  // in one step
  BOOST_TEST((first.groups[1].blocks == std::vector<BlockId>{0, 0, 0, 0, 7, 8}));
  BOOST_TEST(manager.pool().prefix_map().num_tokens(7) == 40);
  CacheHit hit = manager.get_computed_blocks(add(manager, 2, 45));
  BOOST_TEST(hit.num_tokens == 40);
  BOOST_TEST((hit.blocks[1] == std::vector<BlockId>{0, 0, 0, 0, 7}));
}

BOOST_AUTO_TEST_CASE(a_partial_block_hit_is_replaced_by_a_longer_external_hit) {
  KVCacheManager manager(partial_settings());
  KVCacheUpdates updates;
  for (const std::uint64_t id : {1, 2}) {
    KVCacheRequest& request = updates.new_requests.emplace_back();
    request.id = RequestId{id};
    request.num_prompt_tokens = 60;
    for (TokenId token = 0; token < (id == 1 ? 45 : 60); ++token)
      request.token_ids.edit().push_back(token);
  }
  updates.new_requests[0].num_prompt_tokens = 45;
  manager.apply(updates);
  CachedRequest& first = manager.request(RequestId{1});
  for (const auto& [begin, end] : {std::pair(0, 32), std::pair(32, 40), std::pair(40, 45)})
    BOOST_TEST(compute(manager, first, begin, end));
  static_cast<void>(manager.take_block_copies());
  manager.new_step_starts();
  BOOST_TEST(manager.lookup({.id = RequestId{2}}).num_tokens == 40);
  const RequestAdmitted admitted = manager.admit({.id = RequestId{2},
                                                  .num_hit_tokens = 32,
                                                  .use_hit = true,
                                                  .num_external_tokens = 24,
                                                  .num_new_tokens = 4});
  BOOST_TEST(admitted.fits);
  BOOST_TEST(manager.take_block_copies().empty());
  const CachedRequest& second = manager.request(RequestId{2});
  BOOST_TEST(second.groups[0].blocks.size() == 4u);
  BOOST_TEST(second.groups[0].blocks[1] == first.groups[0].blocks[1]);
  BOOST_TEST(second.groups[0].blocks[2] != first.groups[0].blocks[2]);
  BOOST_TEST(second.groups[1].blocks.size() == 4u);
  BOOST_TEST(second.groups[1].blocks[2] == kNullBlock);
}

/// Other prompts take every block that is free.
void evict_all(KVCacheManager& manager) {
  static std::uint64_t next = 1000;
  for (int i = 0; i < 6; ++i) {
    const std::uint64_t id = next++;
    CachedRequest& request = add(manager, id, 160, static_cast<TokenId>(id * 1000));
    BOOST_REQUIRE(compute(manager, request, 0, 160));
    manager.forget(RequestId{id});
  }
}

std::int32_t hit_of(KVCacheManager& manager, std::uint64_t id, TokenId first = 0) {
  const std::int32_t num_tokens =
      manager.get_computed_blocks(add(manager, id, 64, first)).num_tokens;
  manager.forget(RequestId{id});
  return num_tokens;
}

BOOST_AUTO_TEST_CASE(a_pinned_prefix_stays_in_all_groups_until_it_is_released) {
  KVCacheSettings settings = settings_of(
      {spec_of(FullAttentionSpec{}, 8), spec_of(SlidingWindowSpec{.window = kWindow}, 8)});
  settings.max_pinned_blocks = 10;
  KVCacheManager manager(settings);
  const std::int32_t num_free = manager.pool().num_free_blocks();
  CachedRequest& first = add(manager, 1, 64);
  manager.pin_when_cached(first, 43);
  BOOST_TEST(compute(manager, first, 0, 24));
  BOOST_TEST(manager.num_pinned_blocks() == 0);
  // The window's blocks there would not be cached otherwise: nothing ends there.
  BOOST_TEST(compute(manager, first, 24, 64));
  BOOST_TEST(manager.num_pinned_blocks() == 5 + 2);
  manager.forget(RequestId{1});
  BOOST_TEST(hit_of(manager, 2) == 56);
  evict_all(manager);
  BOOST_TEST(hit_of(manager, 3) == 40);
  BOOST_TEST(manager.pool().num_free_blocks() == num_free - 7);
  // Of another one of the same prompt nothing counts twice.
  CachedRequest& again = add(manager, 4, 64);
  CacheHit hit = manager.get_computed_blocks(again);
  manager.pin_when_cached(again, 40);
  BOOST_TEST(compute(manager, again, 0, 64, &hit));
  BOOST_TEST(manager.num_pinned_blocks() == 7);
  manager.forget(RequestId{4});
  manager.release_prefix(RequestId{1}, 43);
  evict_all(manager);
  BOOST_TEST(hit_of(manager, 5) == 40);
  manager.release_prefix(RequestId{4}, 40);
  BOOST_TEST(manager.num_pinned_blocks() == 0);
  BOOST_TEST(manager.pool().num_free_blocks() == num_free);
  evict_all(manager);
  BOOST_TEST(hit_of(manager, 6) == 0);
  BOOST_TEST(manager.reset_prefix_cache());
}

BOOST_AUTO_TEST_CASE(pins_have_a_share_of_the_cache_and_the_oldest_goes_first) {
  KVCacheSettings settings = settings_of({spec_of(FullAttentionSpec{}, 8)});
  settings.max_pinned_blocks = 10;
  KVCacheManager manager(settings);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    CachedRequest& request = add(manager, id, 64, static_cast<TokenId>(id * 1000));
    manager.pin_when_cached(request, id == 3 ? 32 : 40);
    BOOST_TEST(compute(manager, request, 0, 64));
    manager.forget(RequestId{id});
  }
  BOOST_TEST(manager.num_pinned_blocks() == 9);
  evict_all(manager);
  BOOST_TEST(hit_of(manager, 4, 1000) == 0);
  BOOST_TEST(hit_of(manager, 5, 2000) == 40);
  BOOST_TEST(hit_of(manager, 6, 3000) == 32);
  // More than the share is not pinned, and takes nothing from the others.
  CachedRequest& large = add(manager, 7, 96, 7000);
  manager.pin_when_cached(large, 96);
  BOOST_TEST(compute(manager, large, 0, 96));
  BOOST_TEST(manager.num_pinned_blocks() == 9);
}

BOOST_AUTO_TEST_CASE(what_a_session_keeps_is_found_with_a_window_too) {
  KVCacheSettings settings = settings_of(
      {spec_of(FullAttentionSpec{}, 8), spec_of(SlidingWindowSpec{.window = kWindow}, 8)});
  KVCacheManager manager(settings);
  CachedRequest& turn = add(manager, 1, 42);
  BOOST_TEST(compute(manager, turn, 0, 42));
  std::vector<TokenId> answer;
  for (TokenId token = 42; token < 65; ++token) answer.push_back(token);
  for (std::int32_t done = 42; done < 65; ++done) {
    manager.append_tokens(turn, {&answer[static_cast<std::size_t>(done - 42)], 1});
    if (done < 64) BOOST_TEST(compute(manager, turn, done, done + 1));
  }
  // All 64 computed tokens, and the prompt.
  for (const std::int32_t end : {64, 41}) manager.keep_prefix(turn, end, 0, /*bounded=*/false);
  manager.forget(RequestId{1});
  BOOST_TEST(manager.num_pinned_blocks() == 0);
  evict_all(manager);
  const auto hit = [&](std::uint64_t id, std::int32_t num_tokens) {
    const std::int32_t found = manager.get_computed_blocks(add(manager, id, num_tokens)).num_tokens;
    manager.forget(RequestId{id});
    return found;
  };
  BOOST_TEST(hit(2, 90) == 64);
  // An answer that comes back in another form: the prompt is what the turns share.
  CachedRequest& other = add(manager, 3, 60);
  other.info.token_ids.edit()[50] = 999;
  other.hashes.clear();
  manager.append_tokens(other, {});
  BOOST_TEST(manager.get_computed_blocks(other).num_tokens == 40);
}

}  // namespace
}  // namespace troupe
