#pragma once
// A part of a batch's tokens as a batch of its own.

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/models/adapter.hpp"
#include "runtime/models/model.hpp"

namespace troupe {

/// Owns the arrays of a batch that has some tokens of another one: each run of neighbouring tokens
/// is a sequence, which ends with its last token, so that it attends to all that the cache holds
/// before it. Outputs are the same, in the same order.
class NarrowedBatch {
 public:
  /// `tokens`: ascending indices in `batch`, of each sequence at least its outputs and its last
  /// token; they are among the `current` ones, which is what the stream of the forward pass has
  /// rows of (empty: it has them of all). The rows that go on are input_embeddings.rows of the
  /// result. Valid until the next call, as long as `batch` is. Pre: `batch` is causal.
  [[nodiscard]] const ForwardBatch& narrow(const ForwardBatch& batch,
                                           std::span<const std::int32_t> tokens,
                                           std::span<const std::int32_t> current);

 private:
  struct GroupArrays {
    std::vector<std::int64_t> slots;
  };
  void add_sequence(const ForwardBatch& batch, std::size_t sequence,
                    std::span<const std::int32_t> tokens);

  std::vector<TokenId> token_ids_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> query_start_loc_;
  std::vector<std::int32_t> seq_lens_;
  std::vector<std::int32_t> output_start_loc_;
  std::vector<std::int32_t> table_rows_;
  std::vector<std::int32_t> adapter_ids_;
  std::vector<const Adapter*> adapters_;
  std::vector<GroupArrays> arrays_;
  std::vector<ForwardBatch::Group> groups_;
  std::vector<std::int32_t> numbers_;  // 0, 1, 2, ...
  std::vector<std::int32_t> rows_;
  ForwardBatch batch_;
};

}  // namespace troupe
