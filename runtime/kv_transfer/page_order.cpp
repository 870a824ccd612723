#include "runtime/kv_transfer/page_order.hpp"

#include <cstring>
#include <numeric>
#include <variant>

#include "runtime/base/check.hpp"
#include "runtime/models/half_floats.hpp"
#include "runtime/models/model.hpp"
#include "runtime/worker/layer_caches.hpp"

namespace troupe {
namespace {

float number_at(const std::byte* at, ElementType type) {
  if (type == ElementType::kF32) {
    float number = 0;
    std::memcpy(&number, at, sizeof number);
    return number;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return type == ElementType::kBF16 ? widen_bf16(bits) : widen_f16(bits);
}

template <std::size_t kBytes>
void scatter_numbers(std::span<const std::uint32_t> places, const std::byte* from, std::byte* to) {
  for (std::size_t i = 0; i < places.size(); ++i)
    std::memcpy(to + places[i] * kBytes, from + i * kBytes, kBytes);
}

template <std::size_t kBytes>
void gather_numbers(std::span<const std::uint32_t> places, const std::byte* from, std::byte* to) {
  for (std::size_t i = 0; i < places.size(); ++i)
    std::memcpy(to + i * kBytes, from + places[i] * kBytes, kBytes);
}

}  // namespace

Result<PageOrder> PageOrder::of(Device& device, const KVCacheSpec& spec) {
  const TokenShape* const token = spec.token();
  const bool has_rows = token != nullptr && token->scale_bytes == 0 && spec.is<FullAttentionSpec>();
  if (!has_rows || !device.is_host())
    return Error{ErrorCode::kUnsupported,
                 std::string("kv-transfer-config: pages of the kind ") + spec.kind_name() +
                     (token != nullptr && token->scale_bytes != 0 ? " of 8 bits" : "") +
                     (device.is_host() ? "" : " on a GPU") + " cannot be divided into rows",
                 "kv-transfer-config"};
  std::vector<std::byte> page(static_cast<std::size_t>(spec.page_bytes()) + 64);
  void* aligned = page.data();
  std::size_t room = page.size();
  std::byte* const data = static_cast<std::byte*>(
      std::align(64, static_cast<std::size_t>(spec.page_bytes()), aligned, room));
  CHECK(data != nullptr);
  ASSIGN_OR_RETURN(const LayerKvCache cache, layer_cache(spec, 0, data, 1, spec.page_bytes()));
  const KvCacheView& view = std::get<KvCacheView>(cache.pages);

  PageOrder order;
  order.num_heads_ = view.num_kv_heads;
  order.content_size_ = 2 * view.head_dim;
  order.number_bytes_ = static_cast<std::size_t>(element_bytes(view.type));
  const std::int64_t num_tokens = spec.block_size;
  const std::int64_t row = view.num_kv_heads * view.head_dim;
  order.rows_.resize(static_cast<std::size_t>(2 * num_tokens * row));
  std::vector<std::int64_t> slots(static_cast<std::size_t>(num_tokens));
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<float> keys(static_cast<std::size_t>(num_tokens * row));
  std::vector<float> values(keys.size());
  // Whole numbers up to 256 are exact in each type.
  constexpr std::uint32_t kBits = 7;
  for (std::uint32_t shift = 0; (order.rows_.size() - 1) >> shift != 0; shift += kBits) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto dim = static_cast<std::size_t>(view.head_dim);
      const std::size_t key = i / dim * 2 * dim + i % dim;
      keys[i] = static_cast<float>((key >> shift) & ((1U << kBits) - 1));
      values[i] = static_cast<float>(((key + dim) >> shift) & ((1U << kBits) - 1));
    }
    const ConstHeads k{keys.data(), num_tokens, view.num_kv_heads, view.head_dim, row};
    const ConstHeads v{values.data(), num_tokens, view.num_kv_heads, view.head_dim, row};
    device.ops().rope_and_write_kv(device.context(),
                                   {.q = Heads{nullptr, num_tokens, 0, view.head_dim, 0},
                                    .k = k,
                                    .v = v,
                                    .slots = slots.data(),
                                    .cache = view});
    for (std::size_t i = 0; i < order.rows_.size(); ++i)
      order.rows_[i] |=
          static_cast<std::uint32_t>(number_at(data + i * order.number_bytes_, view.type)) << shift;
  }
  return order;
}

void PageOrder::to_rows(std::span<const std::byte> page, std::span<std::byte> rows) const {
  CHECK(page.size() == page_bytes() && rows.size() == page_bytes(), page.size(), rows.size());
  if (number_bytes_ == 4) return scatter_numbers<4>(rows_, page.data(), rows.data());
  scatter_numbers<2>(rows_, page.data(), rows.data());
}

void PageOrder::to_page(std::span<const std::byte> rows, std::span<std::byte> page) const {
  CHECK(page.size() == page_bytes() && rows.size() == page_bytes(), page.size(), rows.size());
  if (number_bytes_ == 4) return gather_numbers<4>(rows_, rows.data(), page.data());
  gather_numbers<2>(rows_, rows.data(), page.data());
}

}  // namespace troupe
