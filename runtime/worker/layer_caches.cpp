#include "runtime/worker/layer_caches.hpp"

#include <string>
#include <variant>

namespace troupe {
namespace {

struct Pages {
  const KVCacheSpec& spec;
  std::byte* data;
  std::int64_t num_blocks;
  std::int64_t page_bytes;
  std::int64_t kernel_blocks_per_block;

  LayerKvCache keys_and_values(const TokenShape& token) const {
    return {.pages = KvCacheView{.data = data,
                                 .type = cache_element_type(token.dtype),
                                 .num_blocks = num_blocks * kernel_blocks_per_block,
                                 .block_size = spec.block_size / kernel_blocks_per_block,
                                 .num_kv_heads = token.num_kv_heads,
                                 .head_dim = token.head_dim,
                                 .padded_page_bytes = spec.padded_page_bytes}};
  }
  LayerKvCache latents(const TokenShape& token) const {
    return {.pages = LatentCacheView{.data = data,
                                     .type = cache_element_type(token.dtype),
                                     .num_blocks = num_blocks * kernel_blocks_per_block,
                                     .block_size = spec.block_size / kernel_blocks_per_block,
                                     .num_kv_heads = token.num_kv_heads,
                                     .dim = token.head_dim,
                                     .padded_page_bytes = spec.padded_page_bytes}};
  }

  LayerKvCache operator()(const FullAttentionSpec& kind) const {
    return keys_and_values(kind.token);
  }
  LayerKvCache operator()(const SlidingWindowSpec& kind) const {
    return keys_and_values(kind.token);
  }
  LayerKvCache operator()(const ChunkedLocalAttentionSpec& kind) const {
    return keys_and_values(kind.token);
  }
  LayerKvCache operator()(const CrossAttentionSpec& kind) const {
    return keys_and_values(kind.token);
  }
  LayerKvCache operator()(const SinkFullAttentionSpec& kind) const {
    return keys_and_values(kind.token);
  }
  LayerKvCache operator()(const MlaSpec& kind) const { return latents(kind.token); }
  LayerKvCache operator()(const SlidingWindowMlaSpec& kind) const { return latents(kind.token); }
  LayerKvCache operator()(const MambaSpec& kind) const {
    return {.pages = StateCacheView{.data = data,
                                    .num_blocks = num_blocks,
                                    .state_bytes = kind.state_bytes,
                                    .page_bytes = page_bytes}};
  }
  LayerKvCache operator()(const EncoderOnlyAttentionSpec&) const { return {}; }
};

std::int64_t content_bytes(std::monostate) { return 0; }
std::int64_t content_bytes(const KvCacheView& pages) { return pages.block_bytes(); }
std::int64_t content_bytes(const LatentCacheView& pages) { return pages.block_bytes(); }
std::int64_t content_bytes(const StateCacheView& pages) { return pages.state_bytes; }

}  // namespace

ElementType cache_element_type(DType dtype) noexcept {
  switch (dtype) {
    case DType::kBF16:
      return ElementType::kBF16;
    case DType::kF16:
      return ElementType::kF16;
    case DType::kI8:
      return ElementType::kI8;
    case DType::kF8E4M3:
      return ElementType::kF8E4M3;
    default:
      return ElementType::kF32;
  }
}

std::int32_t kernel_block_size(const KVCacheSpec& spec) noexcept {
  constexpr std::int32_t kKernelBlock = 16;
  const TokenShape* token = spec.token();
  // The blocks of a kernel follow each other without gaps: a padded page is one of them.
  const bool divides = token != nullptr && token->tokens_per_state == 1 &&
                       spec.padded_page_bytes == 0 && spec.block_size % kKernelBlock == 0;
  return divides ? kKernelBlock : spec.block_size;
}

Result<LayerKvCache> layer_cache(const KVCacheSpec& spec, std::size_t group, std::byte* data,
                                 std::int64_t num_blocks, std::int64_t page_bytes) {
  const std::int64_t kernel_blocks = spec.block_size / kernel_block_size(spec);
  LayerKvCache cache =
      std::visit(Pages{spec, data, num_blocks, page_bytes, kernel_blocks}, spec.kind);
  cache.group = group;
  const std::int64_t needed =
      kernel_blocks *
      std::visit([](const auto& pages) { return content_bytes(pages); }, cache.pages);
  const bool fits = spec.padded_page_bytes == 0
                        ? needed == page_bytes
                        : needed <= page_bytes && spec.padded_page_bytes == page_bytes;
  if (!fits)
    return Error{ErrorCode::kUnsupported, "a page takes " + std::to_string(needed) +
                                              " bytes, the pool's pages " +
                                              std::to_string(page_bytes)};
  return cache;
}

}  // namespace troupe
