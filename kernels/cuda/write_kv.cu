// New keys and values into their pages.

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/kv_layout.cuh"
#include "kernels/cuda/launch.cuh"

namespace troupe::cuda {
namespace {

template <class T>
void write_kv_as(const OpContext& context, const WriteKvArgs& args) {
  const std::int64_t head_dim = args.cache.head_dim;
  const std::int64_t token_size = args.cache.num_kv_heads * head_dim;
  for_each_element(context, args.k.num_tokens * token_size, [=] __device__(std::int64_t index) {
    const std::int64_t token = index / token_size;
    const std::int64_t slot = args.slots[token];
    if (slot < 0) return;
    const std::int64_t head = index % token_size / head_dim;
    const std::int64_t d = index % head_dim;
    const std::int64_t block = slot / args.cache.block_size;
    const std::int64_t offset = slot % args.cache.block_size;
    key_block<T>(args.cache, block, head)[d * args.cache.block_size + offset] =
        from_float<T>(args.k.row(token, head)[d]);
    value_block<T>(args.cache, block, head)[offset * head_dim + d] =
        from_float<T>(args.v.row(token, head)[d]);
  });
}

}  // namespace

void write_kv(const OpContext& context, const WriteKvArgs& args) noexcept {
  with_element_type(args.cache.type,
                    [&](auto zero) { write_kv_as<decltype(zero)>(context, args); });
}

}  // namespace troupe::cuda
