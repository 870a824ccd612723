#include "runtime/kv_transfer/peer_pages.hpp"

#include <algorithm>
#include <map>
#include <sstream>

#include "runtime/base/hash.hpp"
#include "runtime/worker/layer_caches.hpp"

namespace troupe {

Result<PeerPages> PeerPages::of(const KVCacheMemory& memory, bool uses_devices) {
  if (uses_devices && memory.device->name() != "cuda")
    return Error{
        ErrorCode::kUnsupported,
        "kv-transfer-config: kv_connector_extra_config: transport is nccl, the device is " +
            std::string(memory.device->name()),
        "kv-transfer-config"};
  PeerPages pages;
  pages.device_ = memory.device;
  for (std::size_t g = 0; g < memory.groups.size(); ++g) {
    const KVCacheGroup& group = memory.config.groups[g];
    for (const KVCacheMemory::Layer& from : memory.groups[g]) {
      const auto index = static_cast<std::size_t>(std::ranges::find(group.layers, from.layer) -
                                                  group.layers.begin());
      const KVCacheSpec& spec = group.layer_spec(index);
      const TokenShape* const token = spec.token();
      const std::int32_t unit_tokens = kernel_block_size(spec);
      Layer& layer = pages.layers_.emplace_back();
      layer.group = g;
      layer.units_per_block = spec.block_size / unit_tokens;
      layer.data = from.data;
      layer.page_bytes = from.page_bytes;
      const bool is_latent = spec.is<MlaSpec>() || spec.is<SlidingWindowMlaSpec>();
      const bool has_heads = token != nullptr && !is_latent && spec.padded_page_bytes == 0;
      layer.shape = {.layer = from.layer,
                     .unit_tokens = unit_tokens,
                     .num_parts = has_heads ? 2 : 1,
                     .num_heads = has_heads ? token->num_kv_heads : 1};
      layer.shape.head_bytes =
          from.page_bytes / layer.units_per_block / layer.shape.num_parts / layer.shape.num_heads;
    }
  }
  return pages;
}

const PeerPages::Layer* PeerPages::find(std::int32_t layer) const {
  const auto found =
      std::ranges::find_if(layers_, [&](const Layer& known) { return known.shape.layer == layer; });
  return found == layers_.end() ? nullptr : &*found;
}

std::vector<PeerLayer> PeerPages::shapes() const {
  std::vector<PeerLayer> shapes;
  for (const Layer& layer : layers_) shapes.push_back(layer.shape);
  return shapes;
}

std::byte* PeerPages::at(const Layer& layer, const std::vector<BlockId>& blocks, std::int32_t unit,
                         std::int32_t part, std::int32_t head) {
  const auto block = static_cast<std::size_t>(unit / layer.units_per_block);
  if (unit < 0 || block >= blocks.size() || blocks[block] == kNullBlock) return nullptr;
  return layer.data + blocks[block] * layer.page_bytes +
         unit % layer.units_per_block * layer.unit_bytes() +
         (part * layer.shape.num_heads + head) * layer.shape.head_bytes;
}

std::int64_t piece_bytes(const PeerLayer& layer, const PeerPiece& piece) {
  return std::ssize(piece.units) * layer.num_parts * (piece.head_end - piece.head_begin) *
         layer.head_bytes;
}

PeerOrigin peer_origin(const std::string& model_identity, const KVCacheConfig& cache,
                       std::int32_t tensor_parallel_size) {
  // Engines with other blocks may group their layers in another order.
  std::map<std::int32_t, std::string> by_layer;
  for (const KVCacheGroup& group : cache.groups) {
    for (std::size_t i = 0; i < group.layers.size(); ++i) {
      const KVCacheSpec& spec = group.layer_spec(i);
      std::ostringstream text;
      text << spec.kind_name() << ' ' << (spec.padded_page_bytes == 0 ? 0 : spec.page_bytes());
      if (const TokenShape* const token = spec.token())
        text << ' ' << token->num_kv_heads * tensor_parallel_size << ' ' << token->head_dim << ' '
             << token->head_dim_v << ' ' << static_cast<int>(token->dtype) << ' '
             << token->tokens_per_state << ' ' << token->scale_bytes;
      by_layer[group.layers[i]] = text.str();
    }
  }
  std::string all = model_identity + '\n';
  for (const auto& [layer, text] : by_layer) all += std::to_string(layer) + ' ' + text + '\n';
  return xxh3_128(all);
}

}  // namespace troupe
