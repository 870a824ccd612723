#pragma once
// The arrays that a model's forward pass takes, made of sequences.

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/models/model.hpp"
#include "runtime/worker/block_tables.hpp"

namespace troupe {

/// Owns the arrays of a ForwardBatch but its block tables; they keep their memory from batch to
/// batch. What a sequence adds grows with its tokens in the batch, not with those before them.
///
/// The state behind a step's last token that is no draft goes to the block of the step's last
/// token, and those behind its drafts to the blocks that follow in the table, which are there for
/// them (MambaSpec::num_speculative_blocks).
class FlatBatch {
 public:
  /// The tables outlive the batch.
  explicit FlatBatch(const BlockTables& tables);

  /// What a sequence may have beside its tokens.
  struct Extras {
    std::span<const TwoWaySpan> spans;              ///< those that hold one of the tokens, in order
    std::span<const std::int32_t> embedded_tokens;  ///< indices among the tokens, ascending
    std::span<const std::int32_t> embedding_rows;   ///< for each of these, of the outputs
    std::int32_t adapter_id = 0;
    std::int32_t second_text_begin = 0;          ///< tokens from here on are of type 1; 0: none
    std::span<const std::int32_t> encoder_rows;  ///< of the outputs: input that is new in the step
    std::int32_t num_encoder_rows = 0;           ///< of the request's input; 0: it has none
    std::int32_t num_drafts = 0;  ///< of the tokens, the last ones: they may not count
    /// The sequence's step before this one: where it ended, drafts included, and how many of its
    /// tokens were drafts. 0: there is none, and states come from the prefix cache.
    std::int32_t previous_end = 0;
    std::int32_t previous_drafts = 0;
  };

  void clear();
  /// Appends a sequence's tokens from position `begin` on; the hidden states of the last
  /// num_outputs of them are asked for. Pre: at least one token; the blocks of `table_row` cover
  /// them; a span ends with the last token or before it.
  void add(std::span<const TokenId> tokens, std::int32_t begin, std::int32_t table_row,
           std::int32_t num_outputs, const Extras& extras);
  void add(std::span<const TokenId> tokens, std::int32_t begin, std::int32_t table_row,
           std::int32_t num_outputs) {
    add(tokens, begin, table_row, num_outputs, Extras{});
  }
  /// The sequences since clear(), valid until the next change, also of the tables. `outputs`: where
  /// the embedding_rows are.
  [[nodiscard]] ForwardBatch view(ConstMatrix outputs = {});

  [[nodiscard]] std::int32_t num_tokens() const noexcept { return query_start_loc_.back(); }
  [[nodiscard]] std::int32_t num_outputs() const noexcept { return output_start_loc_.back(); }

 private:
  struct GroupArrays {
    std::vector<std::int64_t> slots;
    std::vector<BlockId> states_before;
    std::vector<BlockId> states_after;
  };
  /// Of a sequence's tokens [begin, end) in a group with these blocks.
  static void add_states(std::span<const BlockId> blocks, std::int32_t block_size,
                         std::int32_t begin, std::int32_t end, const Extras& extras,
                         GroupArrays& arrays);

  const BlockTables* tables_;
  std::vector<TokenId> token_ids_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> token_types_;
  bool has_second_texts_ = false;
  std::vector<std::int32_t> query_start_loc_ = {0};
  std::vector<std::int32_t> seq_lens_;
  std::vector<std::int32_t> output_start_loc_ = {0};
  std::vector<std::int32_t> table_rows_;
  std::vector<std::int32_t> adapter_ids_;
  std::vector<TwoWaySpan> spans_;
  std::vector<std::int32_t> span_start_loc_ = {0};
  std::vector<std::int32_t> embedded_tokens_;
  std::vector<std::int32_t> embedding_rows_;
  std::vector<std::int32_t> encoder_rows_;
  std::vector<std::int32_t> encoder_starts_ = {0};  // 0, 1, 2, ...: of the largest batch so far
  std::vector<std::int32_t> encoder_lens_;
  std::vector<std::int32_t> token_table_rows_;
  std::vector<GroupArrays> arrays_;  // per group
  std::vector<ForwardBatch::Group> groups_;
};

}  // namespace troupe
