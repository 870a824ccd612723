#include "runtime/worker/layer_caches.hpp"

#include <boost/test/unit_test.hpp>
#include <vector>

namespace troupe {
namespace {

constexpr std::int64_t kNumBlocks = 3;
constexpr TokenShape kToken = {.num_kv_heads = 2, .head_dim = 64, .dtype = DType::kBF16};

BOOST_AUTO_TEST_CASE(a_layer_sees_pages_of_its_kind) {
  std::byte memory{};
  const auto pages_of = [&](const KVCacheSpec& spec) {
    const auto cache = layer_cache(spec, 5, &memory, kNumBlocks, spec.page_bytes());
    BOOST_REQUIRE_MESSAGE(cache.ok(), spec.kind_name());
    BOOST_TEST(cache->group == 5u);
    return cache->pages;
  };
  for (const KVCacheSpec& spec : {KVCacheSpec{.kind = FullAttentionSpec{kToken}},
                                  KVCacheSpec{.kind = SlidingWindowSpec{kToken}},
                                  KVCacheSpec{.kind = ChunkedLocalAttentionSpec{kToken}},
                                  KVCacheSpec{.kind = CrossAttentionSpec{kToken}}}) {
    const auto pages = std::get<KvCacheView>(pages_of(spec));
    BOOST_TEST(pages.data == &memory);
    BOOST_TEST((pages.type == ElementType::kBF16));
    BOOST_TEST(pages.num_blocks == kNumBlocks);
    BOOST_TEST(pages.block_size == 16);
    BOOST_TEST(pages.num_kv_heads == 2);
    BOOST_TEST(pages.head_dim == 64);
  }
  TokenShape latent{.num_kv_heads = 1, .head_dim = 576, .dtype = DType::kI8, .scale_bytes = 4};
  for (const KVCacheSpec& spec :
       {KVCacheSpec{.kind = MlaSpec{latent}}, KVCacheSpec{.kind = SlidingWindowMlaSpec{latent}}}) {
    const auto pages = std::get<LatentCacheView>(pages_of(spec));
    BOOST_TEST(pages.data == &memory);
    BOOST_TEST((pages.type == ElementType::kI8));
    BOOST_TEST(pages.block_size == 16);
    BOOST_TEST(pages.dim == 576);
    BOOST_TEST(pages.block_bytes() == 16 * (576 + 4));
  }
  // Larger blocks are several of the kernels', in the same memory; others are left whole.
  const KVCacheSpec large{.kind = FullAttentionSpec{kToken}, .block_size = 128};
  BOOST_TEST(kernel_block_size(large) == 16);
  const auto divided = std::get<KvCacheView>(pages_of(large));
  BOOST_TEST(divided.block_size == 16);
  BOOST_TEST(divided.num_blocks == 8 * kNumBlocks);
  const auto latents =
      std::get<LatentCacheView>(pages_of({.kind = MlaSpec{latent}, .block_size = 64}));
  BOOST_TEST(latents.block_size == 16);
  BOOST_TEST(latents.num_blocks == 4 * kNumBlocks);
  const KVCacheSpec odd{.kind = FullAttentionSpec{kToken}, .block_size = 24};
  BOOST_TEST(kernel_block_size(odd) == 24);
  BOOST_TEST(std::get<KvCacheView>(pages_of(odd)).num_blocks == kNumBlocks);
  BOOST_TEST(kernel_block_size({.kind = MambaSpec{.state_bytes = 8}, .block_size = 512}) == 512);
  // A page that is padded, to have the size of another group's, is one block of the kernels'.
  KVCacheSpec gaps = large;
  gaps.padded_page_bytes = large.page_bytes() + 4096;
  const auto padded = std::get<KvCacheView>(pages_of(gaps));
  BOOST_TEST(kernel_block_size(gaps) == 128);
  BOOST_TEST(padded.block_size == 128);
  BOOST_TEST(padded.num_blocks == kNumBlocks);
  BOOST_TEST(padded.page_stride() == gaps.padded_page_bytes);
  // A state's page may be larger than the state.
  const KVCacheSpec states{.kind = MambaSpec{.state_bytes = 1000}, .padded_page_bytes = 4096};
  const auto pages = std::get<StateCacheView>(pages_of(states));
  BOOST_TEST(pages.data == &memory);
  BOOST_TEST(pages.num_blocks == kNumBlocks);
  BOOST_TEST(pages.state_bytes == 1000);
  BOOST_TEST(pages.page_bytes == 4096);
  BOOST_TEST(
      std::holds_alternative<std::monostate>(pages_of({.kind = EncoderOnlyAttentionSpec{}})));
}

BOOST_AUTO_TEST_CASE(pages_of_another_size_than_the_layers_are_refused) {
  std::byte memory{};
  const KVCacheSpec spec{.kind = FullAttentionSpec{kToken}};
  const auto padded = layer_cache(spec, 0, &memory, kNumBlocks, spec.page_bytes() + 64);
  BOOST_REQUIRE(!padded.ok());
  BOOST_TEST((padded.error().code == ErrorCode::kUnsupported));
  BOOST_TEST(padded.error().message == "a page takes 8192 bytes, the pool's pages 8256");
  KVCacheSpec small = spec;
  small.padded_page_bytes = spec.page_bytes() - 64;
  BOOST_TEST(!layer_cache(small, 0, &memory, kNumBlocks, small.page_bytes()).ok());
  // No kernel reads values of another size than keys.
  TokenShape narrow = kToken;
  narrow.head_dim_v = 32;
  const KVCacheSpec values{.kind = FullAttentionSpec{narrow}};
  BOOST_TEST(!layer_cache(values, 0, &memory, kNumBlocks, values.page_bytes()).ok());
  const KVCacheSpec states{.kind = MambaSpec{.state_bytes = 1000}};
  BOOST_TEST(!layer_cache(states, 0, &memory, kNumBlocks, 999).ok());
}

}  // namespace
}  // namespace troupe
