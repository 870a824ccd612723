// New keys and values into their pages.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/kv_layout.hpp"
#include "kernels/cpu/rows.hpp"

namespace troupe::TROUPE_ISA {

void write_kv(const OpContext& context, const WriteKvArgs& args) noexcept {
  const KvCacheView& cache = args.cache;
  with_element_type(cache.type, [&](auto type) {
    constexpr ElementType kType = decltype(type)::value;
    for_each_row(context, args.k.num_tokens, cache.num_kv_heads * cache.head_dim * 4,
                 [&](std::int64_t token) {
                   const std::int64_t slot = args.slots[token];
                   if (slot < 0) return;
                   const std::int64_t block = slot / cache.block_size;
                   const std::int64_t offset = slot % cache.block_size;
                   for (std::int64_t head = 0; head < cache.num_kv_heads; ++head) {
                     const float* k = args.k.row(token, head);
                     const float* v = args.v.row(token, head);
                     std::byte* keys = key_block(cache, block, head);
                     std::byte* values = value_block(cache, block, head);
                     for (std::int64_t d = 0; d < cache.head_dim; ++d) {
                       store_element<kType>(keys, key_number(cache, offset, d), k[d]);
                     }
                     for (std::int64_t d = 0; d < cache.head_dim; ++d) {
                       store_element<kType>(values, value_number(cache, offset, d), v[d]);
                     }
                   }
                 });
  });
}

}  // namespace troupe::TROUPE_ISA
