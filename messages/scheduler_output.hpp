#pragma once
// Scheduler -> Executor -> Workers: what to compute in one step. New requests are sent in full,
// known ones as differences, as a struct of arrays.

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "messages/ids.hpp"
#include "messages/request.hpp"

namespace troupe {

/// One list of block ids per KV-cache group.
using BlockTable = std::vector<std::vector<BlockId>>;

/// A request that the workers do not know (or have forgotten), in full.
struct NewRequestData {
  RequestId id{};
  std::vector<TokenId>
      token_ids;  ///< all known tokens: the prompt and, when resumed, what was generated
  std::int32_t num_prompt_tokens = 0;
  SamplingParams params;
  BlockTable block_ids;
  std::int32_t num_computed_tokens = 0;
  std::vector<MultiModalFeature> mm_features;
  std::optional<LoraRequest> lora;
  std::int32_t second_text_begin = 0;  ///< as in EngineCoreRequest
  bool operator==(const NewRequestData&) const = default;
};
TROUPE_MESSAGE(NewRequestData, id, token_ids, num_prompt_tokens, params, block_ids,
               num_computed_tokens, mm_features, lora, second_text_begin)

/// Requests that the workers know, in scheduling order. The tokens they sampled themselves are not
/// sent back to them.
struct CachedRequestData {
  std::vector<RequestId> ids;
  std::vector<std::int32_t> num_computed_tokens;  ///< before this step
  std::vector<std::int32_t> num_output_tokens;
  /// New blocks, flat: request i, group g has new_block_counts[i * num_groups + g] of them, in this
  /// order.
  std::vector<BlockId> new_block_ids;
  std::vector<std::int32_t> new_block_counts;  ///< empty if no request got a block
  bool operator==(const CachedRequestData&) const = default;
};
TROUPE_MESSAGE(CachedRequestData, ids, num_computed_tokens, num_output_tokens, new_block_ids,
               new_block_counts)

struct SchedulerOutput {
  std::uint64_t step = 0;
  std::vector<NewRequestData> new_requests;  ///< admitted, and resumed after a preemption
  CachedRequestData cached_requests;
  /// The batch in scheduling order: running requests first, then admitted ones.
  std::vector<RequestId> scheduled_ids;
  std::vector<std::int32_t> num_scheduled_tokens;  ///< parallel to scheduled_ids
  std::int32_t total_num_scheduled_tokens = 0;
  /// Draft tokens to verify, flat; num_draft_tokens is parallel to scheduled_ids, or empty if there
  /// are none.
  std::vector<TokenId> draft_token_ids;
  std::vector<std::int32_t> num_draft_tokens;
  std::vector<RequestId> finished_ids;  ///< since the previous step: forget them
  std::vector<RequestId>
      preempted_ids;  ///< their blocks are freed: forget them, they come back as new
  std::vector<std::pair<RequestId, std::int32_t>> scheduled_encoder_inputs;  ///< request, item
  std::vector<std::string> free_encoder_identifiers;
  bool reset_encoder_cache = false;  ///< free all outputs, before this step's are encoded
  std::vector<std::pair<BlockId, BlockId>> block_copies;  ///< source, destination
  std::vector<BlockId> blocks_to_zero;
  std::int32_t num_resumed_requests = 0;  ///< of new_requests, the last ones: they ran before
  std::int32_t num_drafts_to_make = 0;    ///< per request, after this step
  /// Tokens that a draft model computes after this step at most, those that it has missed included.
  /// A draft head computes all of the step's, or none if this is 0.
  std::int32_t max_draft_rows = std::numeric_limits<std::int32_t>::max();
  /// A structured request is past its prefill: sampling needs the GrammarOutput.
  bool has_structured_output_requests = false;
  /// Async scheduling: the GrammarOutput can be computed only after the previous step's result.
  bool pending_structured_output_tokens = false;
  /// Drafts that a grammar rejected (they are -1 now), per request.
  std::vector<std::pair<RequestId, std::int32_t>> num_invalid_draft_tokens;
  std::string kv_connector_metadata;  ///< for the worker side of the KV connector; opaque
  std::string ec_connector_metadata;  ///< for the worker side of the EC connector; opaque
  bool has_sync_kv_loads = false;     ///< the connector loads before the model runs
  /// An item that the workers encode in slices beside this step and others, before a step needs it;
  /// its data comes once. Nothing: the one before is not needed, or has been.
  std::optional<MultiModalFeature> encode_ahead;
  std::int32_t encode_ahead_ms = 0;  ///< so long at most in this step, or one slice
  /// Of the engine: workers drop messages of older incarnations.
  std::uint32_t incarnation = 0;
  bool operator==(const SchedulerOutput&) const = default;
};
TROUPE_MESSAGE(SchedulerOutput, step, new_requests, cached_requests, scheduled_ids,
               num_scheduled_tokens, total_num_scheduled_tokens, draft_token_ids, num_draft_tokens,
               finished_ids, preempted_ids, scheduled_encoder_inputs, free_encoder_identifiers,
               reset_encoder_cache, block_copies, blocks_to_zero, num_resumed_requests,
               num_drafts_to_make, has_structured_output_requests, pending_structured_output_tokens,
               num_invalid_draft_tokens, kv_connector_metadata, has_sync_kv_loads, incarnation,
               ec_connector_metadata, encode_ahead, encode_ahead_ms, max_draft_rows)

/// Scheduler -> Executor -> Workers, after each step with has_structured_output_requests: the
/// tokens that the grammars allow. The workers run the model meanwhile and sample when this
/// arrives. It has no ids if the requests have ended.
struct GrammarOutput {
  std::uint64_t step = 0;
  std::uint32_t incarnation = 0;  ///< as SchedulerOutput::incarnation
  std::vector<RequestId> ids;     ///< scheduled, structured, past their prefill; in batch order
  std::vector<std::int32_t> num_rows;  ///< per id: its drafts and one more
  /// Drafts before the first placeholder, per id.
  std::vector<std::int32_t> num_acceptable_drafts;
  std::int32_t words_per_row = 0;
  std::vector<std::int32_t> bitmask;  ///< rows in the order of ids; bit t of a row allows token t
  bool operator==(const GrammarOutput&) const = default;
};
TROUPE_MESSAGE(GrammarOutput, step, incarnation, ids, num_rows, num_acceptable_drafts,
               words_per_row, bitmask)

}  // namespace troupe
