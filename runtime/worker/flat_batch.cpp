#include "runtime/worker/flat_batch.hpp"

#include <utility>

#include "runtime/base/check.hpp"

namespace troupe {

FlatBatch::FlatBatch(const BlockTables& tables)
    : tables_(&tables), arrays_(tables.num_groups()), groups_(tables.num_groups()) {}

void FlatBatch::clear() {
  token_ids_.clear();
  positions_.clear();
  token_types_.clear();
  has_second_texts_ = false;
  query_start_loc_.assign(1, 0);
  seq_lens_.clear();
  output_start_loc_.assign(1, 0);
  table_rows_.clear();
  adapter_ids_.clear();
  spans_.clear();
  span_start_loc_.assign(1, 0);
  embedded_tokens_.clear();
  embedding_rows_.clear();
  encoder_rows_.clear();
  encoder_lens_.clear();
  token_table_rows_.clear();
  for (GroupArrays& arrays : arrays_) {
    arrays.slots.clear();
    arrays.states_before.clear();
    arrays.states_after.clear();
  }
}

void FlatBatch::add(std::span<const TokenId> tokens, std::int32_t begin, std::int32_t table_row,
                    std::int32_t num_outputs, const Extras& extras) {
  const auto end = begin + static_cast<std::int32_t>(tokens.size());
  const std::int64_t num_slots = tables_->num_slots(table_row);
  CHECK(begin < end && end <= num_slots, begin, end, num_slots);
  CHECK(num_outputs >= 0 && num_outputs <= end - begin, num_outputs, begin, end);
  for (const TwoWaySpan& span : extras.spans)
    CHECK(span.begin < span.end && span.end <= end, span.begin, span.end, end);
  CHECK(extras.embedded_tokens.size() == extras.embedding_rows.size(),
        extras.embedded_tokens.size(), extras.embedding_rows.size());
  for (const std::int32_t token : extras.embedded_tokens)
    embedded_tokens_.push_back(query_start_loc_.back() + token);
  embedding_rows_.insert(embedding_rows_.end(), extras.embedding_rows.begin(),
                         extras.embedding_rows.end());
  spans_.insert(spans_.end(), extras.spans.begin(), extras.spans.end());
  span_start_loc_.push_back(static_cast<std::int32_t>(spans_.size()));
  adapter_ids_.push_back(extras.adapter_id);
  encoder_rows_.insert(encoder_rows_.end(), extras.encoder_rows.begin(), extras.encoder_rows.end());
  if (extras.num_encoder_rows > 0) {
    encoder_lens_.insert(encoder_lens_.end(), tokens.size(), extras.num_encoder_rows);
    token_table_rows_.insert(token_table_rows_.end(), tokens.size(), table_row);
    while (std::ssize(encoder_starts_) <= std::ssize(encoder_lens_))
      encoder_starts_.push_back(static_cast<std::int32_t>(encoder_starts_.size()));
  }
  token_ids_.insert(token_ids_.end(), tokens.begin(), tokens.end());
  const std::int32_t second = extras.second_text_begin;
  has_second_texts_ |= second > 0;
  for (std::int32_t position = begin; position < end; ++position) {
    positions_.push_back(position);
    token_types_.push_back(second > 0 && position >= second ? 1 : 0);
  }
  query_start_loc_.push_back(query_start_loc_.back() + end - begin);
  seq_lens_.push_back(end);
  output_start_loc_.push_back(output_start_loc_.back() + num_outputs);
  table_rows_.push_back(table_row);
  for (std::size_t g = 0; g < arrays_.size(); ++g) {
    const std::span<const BlockId> blocks = tables_->blocks(table_row, g);
    const std::int32_t block_size = tables_->block_size(g);
    const bool is_encoder = tables_->content(g) == BlockContent::kEncoder;
    const auto num_new_rows = static_cast<std::int32_t>(extras.encoder_rows.size());
    const auto first_slot = is_encoder ? 0 : begin;
    const auto end_slot = is_encoder ? num_new_rows : end;
    for (std::int32_t position = first_slot; position < end_slot; ++position) {
      const std::int64_t block = blocks[static_cast<std::size_t>(position / block_size)];
      arrays_[g].slots.push_back(block * block_size + position % block_size);
    }
    if (is_encoder)
      CHECK(extras.num_encoder_rows <= std::ssize(blocks) * block_size, extras.num_encoder_rows,
            blocks.size());
    if (tables_->content(g) == BlockContent::kStates)
      add_states(blocks, block_size, begin, end, extras, arrays_[g]);
  }
}

void FlatBatch::add_states(std::span<const BlockId> blocks, std::int32_t block_size,
                           std::int32_t begin, std::int32_t end, const Extras& extras,
                           GroupArrays& arrays) {
  // Of the state behind `position`, which a step that ended at step_end with so many drafts kept.
  const auto block_of = [&](std::int32_t position, std::int32_t step_end, std::int32_t drafts) {
    const std::int32_t first = step_end - 1 - drafts;
    CHECK(position >= first && position < step_end, position, step_end, drafts);
    const std::int32_t entry = (step_end - 1) / block_size + position - first;
    CHECK(entry < std::ssize(blocks), entry, blocks.size(), position);
    return blocks[static_cast<std::size_t>(entry)];
  };
  if (begin == 0)
    arrays.states_before.push_back(kNullBlock);
  else if (extras.previous_end == 0)
    arrays.states_before.push_back(block_of(begin - 1, begin, 0));
  else
    arrays.states_before.push_back(
        block_of(begin - 1, extras.previous_end, extras.previous_drafts));
  const std::int32_t first_kept = end - 1 - extras.num_drafts;
  for (std::int32_t position = begin; position < end; ++position)
    arrays.states_after.push_back(
        position < first_kept ? kNullBlock : block_of(position, end, extras.num_drafts));
}

ForwardBatch FlatBatch::view(ConstMatrix outputs) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    groups_[g] = {.slots = arrays_[g].slots.data(),
                  .num_slots = arrays_[g].slots.size(),
                  .block_tables = tables_->data(g),
                  .block_table_stride = tables_->stride(g),
                  .num_blocks = tables_->num_blocks(g)};
    if (tables_->content(g) != BlockContent::kStates) continue;
    groups_[g].states_before = arrays_[g].states_before.data();
    groups_[g].states_after = arrays_[g].states_after.data();
  }
  return {
      .token_ids = token_ids_,
      .positions = positions_,
      .token_types = has_second_texts_ ? std::span<const std::int32_t>(token_types_)
                                       : std::span<const std::int32_t>(),
      .query_start_loc = query_start_loc_,
      .seq_lens = seq_lens_,
      .output_start_loc = output_start_loc_,
      .block_table_rows = table_rows_,
      .block_table_row_ids = tables_->row_ids(),
      .groups = groups_,
      .input_embeddings = {.tokens = embedded_tokens_, .rows = embedding_rows_, .outputs = outputs},
      .encoder_inputs = {.rows = encoder_rows_,
                         .outputs = outputs,
                         .starts = std::span(encoder_starts_).first(encoder_lens_.size() + 1),
                         .lens = encoder_lens_,
                         .table_rows = token_table_rows_},
      .two_way_spans = spans_,
      .span_start_loc = span_start_loc_,
      .adapter_ids = adapter_ids_};
}

}  // namespace troupe
