#pragma once
// Attention with a bf16 unit, for bf16 and 8-bit caches: scores are products of queries and keys,
// outputs products of softmax weights and values, all rounded to bf16 (8-bit numbers are exact in
// bf16). Values are processed 32 tokens at a time, counted from position 0, whatever the block
// size, so that a row's sums are always in the same order.
//
// Several tiles of rows are processed together per chunk, and a chunk of a tile in three stages:
// scores, weights, values. With a tile unit (AMX), the scores of the next and the values of the
// previous item are interleaved with the vector code for the weights of the current one: the CPU
// executes both in parallel if their instructions are close together.

#include "kernels/cpu/attention_chunk.hpp"

namespace troupe::TROUPE_ISA {

/// All chunks of up to tiles_at_once tiles of rows of one sequence and KV head, in order of their
/// positions. Pre: attends_in_bf16(args.cache).
void attend_in_bf16(const AttentionArgs& args, const QueryTile* tiles, int num_tiles);

/// As above for one chunk of one tile; the result is its softmax.
void attend_chunk_in_bf16(const AttentionArgs& args, const QueryTile& tile, std::int64_t chunk,
                          const SoftmaxState& state);

}  // namespace troupe::TROUPE_ISA
