#pragma once
// The arrays that a model's forward pass takes, made of sequences.

#include <cstdint>
#include <span>
#include <vector>

#include "messages/scheduler_output.hpp"
#include "runtime/models/model.hpp"

namespace troupe {

/// Owns the arrays of a ForwardBatch; they keep their memory from batch to batch.
class FlatBatch {
 public:
  /// block_sizes: per KV-cache group.
  explicit FlatBatch(const std::vector<std::int32_t>& block_sizes);

  void clear();
  /// Appends a sequence's tokens from position `begin` on; the hidden states of the last
  /// num_outputs of them are asked for. Pre: at least one token; `blocks` cover them and outlive
  /// the view.
  void add(std::span<const TokenId> tokens, std::int32_t begin, const BlockTable& blocks,
           std::int32_t num_outputs);
  /// The sequences since clear(), valid until the next change.
  [[nodiscard]] ForwardBatch view();

  [[nodiscard]] std::size_t num_groups() const noexcept { return groups_.size(); }
  [[nodiscard]] std::int32_t num_tokens() const noexcept { return query_start_loc_.back(); }
  [[nodiscard]] std::int32_t num_outputs() const noexcept { return output_start_loc_.back(); }
  /// How many tokens of a sequence there are slots for.
  [[nodiscard]] std::int64_t num_slots(const BlockTable& blocks) const;

 private:
  struct GroupArrays {
    std::int32_t block_size = 0;
    std::vector<std::int64_t> slots;
    std::vector<std::int32_t> block_tables;
  };

  std::vector<TokenId> token_ids_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> query_start_loc_ = {0};
  std::vector<std::int32_t> seq_lens_;
  std::vector<std::int32_t> output_start_loc_ = {0};
  std::vector<const BlockTable*> blocks_;  // of each sequence
  std::vector<GroupArrays> groups_;
  std::vector<ForwardBatch::Group> group_views_;
};

}  // namespace troupe
