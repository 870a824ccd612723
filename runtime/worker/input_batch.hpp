#pragma once
// The requests a worker knows, and the flat batch that one step makes of them.

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "messages/cache.hpp"
#include "messages/model_runner_output.hpp"
#include "messages/scheduler_output.hpp"
#include "runtime/worker/draft_limit.hpp"
#include "runtime/worker/encoder_outputs.hpp"
#include "runtime/worker/flat_batch.hpp"
#include "runtime/worker/sampling_state.hpp"

namespace troupe {

/// What a worker keeps of a request from step to step.
struct WorkerRequest {
  RequestId id{};
  std::vector<TokenId> token_ids;  ///< prompt and outputs
  std::int32_t num_prompt_tokens = 0;
  std::int32_t num_computed_tokens = 0;  ///< before the current step
  std::int32_t table_row = 0;            ///< its blocks: a row of InputBatch::tables()
  std::int32_t adapter_id = 0;           ///< 0: none
  std::int32_t second_text_begin = 0;    ///< as in EngineCoreRequest
  DraftLimit draft_limit = {};
  /// The tokens of each image, where the model lets them see each other; in order.
  std::vector<TwoWaySpan> two_way_spans;
  std::vector<MultiModalFeature> items;  ///< by ascending offset
  SamplingState sampling;
  /// What is scored of its prompt; none if nobody asked, or when it has been handed over.
  std::optional<PromptLogprobs> prompt_logprobs;
  bool failed = false;  ///< it got no token where it should have
  /// A draft model's, behind token_ids: they take the place of its next step's placeholders.
  std::vector<TokenId> next_drafts;
  /// The first of its tokens that a draft model still has to compute, of steps before.
  static constexpr std::int32_t kNoneBehind = std::numeric_limits<std::int32_t>::max();
  static constexpr std::int32_t kUnknownBehind = -1;  ///< the draft model has not seen it yet
  std::int32_t first_behind = kUnknownBehind;
  bool is_undrafted = false;    ///< a draft model lacks tokens that it cannot compute any more
  std::int32_t num_drafts = 0;  ///< in its last step
  std::int32_t step_end = 0;    ///< of that step, these included; 0: there was none
  /// Which of the lists of samples that another rank sends holds its latest token, counted from 1;
  /// 0: its tokens come from this rank.
  std::uint64_t samples_index = 0;
};

/// Owns the state of every known request with its block table, and the current batch. The
/// Scheduler's messages alone decide what is known; tokens that this worker sampled are appended by
/// append_token and not sent back to it.
///
/// Steps may have been planned before the results of earlier ones were known. For a request that
/// has failed by then, they compute stand-ins, of which nothing is sampled. For drafts that were
/// not known they have placeholders, and they count on all drafts of the request's step before:
/// they begin behind its last token, whatever came of those.
class InputBatch {
 public:
  /// A request's part in the current step.
  struct Row {
    WorkerRequest* request = nullptr;
    std::int32_t num_tokens = 0;  ///< drafts included
    /// Of its tokens, those whose hidden states are asked for: the last num_outputs ones, which are
    /// the rows from first_output on of what the model gives for the step.
    std::int32_t first_output = 0;
    std::int32_t num_outputs = 0;
    /// So many of these, from the first on, score the prompt's token behind them.
    std::int32_t num_scored = 0;
    /// This step reaches the last known token, so the next one is sampled, and behind it one more
    /// for each draft that is what was sampled in its place; or the whole text is pooled.
    bool samples = false;
    /// The last of its tokens; -1, where the step has a placeholder and the request no draft, is
    /// never right.
    std::span<const TokenId> drafts;
    std::int32_t previous_end = 0;  ///< FlatBatch::Extras
    std::int32_t previous_drafts = 0;
  };

  struct Options {
    bool two_way_items = false;  ///< Model::sees_items_both_ways
    /// Longer runs are not seen both ways: a layer's window does not reach their first token.
    /// 0: no limit.
    std::int32_t max_two_way_span = 0;
    bool is_encoder = false;  ///< Model::is_encoder
    /// A request's item is what its tokens attend to, and no token stands for it.
    bool encoder_decoder = false;
    std::shared_ptr<const TranscriptionRules> transcription = nullptr;  ///< of a speech model
    PoolingType pooling = PoolingType::kNone;
    bool gives_all = false;  ///< all tokens are outputs
  };
  /// block_sizes: per KV-cache group.
  explicit InputBatch(const std::vector<GroupBlockSizes>& block_sizes)
      : InputBatch(block_sizes, Options()) {}
  InputBatch(const std::vector<GroupBlockSizes>& block_sizes, const Options& options)
      : options_(options), tables_(block_sizes), flat_(tables_) {}
  InputBatch(const InputBatch&) = delete;  // flat_ refers to tables_
  InputBatch& operator=(const InputBatch&) = delete;

  /// Takes a step in: forgets, admits and updates requests; rows() are the step's.
  void update(const SchedulerOutput& step);
  /// Builds the flat arrays of the step's rows. `outputs`: what the encoder made of the items in
  /// them, or null where nothing stands in place of embeddings. Pre: token ids are below
  /// vocab_size; block tables cover the scheduled tokens; `outputs` has what needed_items() names.
  void build(std::int64_t vocab_size, const EncoderOutputs* outputs);
  /// Items of which the step computes a token that is an embedding.
  [[nodiscard]] std::vector<const MultiModalFeature*> needed_items() const;

  [[nodiscard]] std::span<Row> rows() noexcept { return rows_; }
  /// Views of this object's arrays; valid until the next update.
  [[nodiscard]] ForwardBatch forward_batch() { return flat_.view(outputs_); }
  [[nodiscard]] const BlockTables& tables() const noexcept { return tables_; }
  [[nodiscard]] std::size_t num_requests() const noexcept { return requests_.size(); }
  /// Of all known requests, each once or more.
  [[nodiscard]] std::vector<std::int32_t> adapters_in_use() const;

  /// The token sampled for a row; kNoToken: the request has failed.
  static void append_token(WorkerRequest& request, TokenId token);
  /// Null: the request is not known.
  [[nodiscard]] WorkerRequest* find(RequestId id);

 private:
  void forget(RequestId id);
  void admit(const NewRequestData& data);
  void update_known(const CachedRequestData& data);
  void keep_tokens(WorkerRequest& request, std::size_t num_tokens);
  void build_rows(const SchedulerOutput& step);
  /// The token at a position that the row computes.
  [[nodiscard]] static TokenId token_at(const Row& row, std::int32_t position);
  /// Of the row's tokens, those that take rows of an encoder's output, and which, into
  /// embedded_tokens_ and embedding_rows_.
  void find_embeddings(const Row& row, const EncoderOutputs& outputs);

  Options options_;
  std::unordered_map<std::uint64_t, WorkerRequest> requests_;  // by id
  std::vector<Row> rows_;
  std::vector<TokenId> draft_token_ids_;
  std::vector<TokenId> row_token_ids_;
  std::vector<std::int32_t> embedded_tokens_;
  std::vector<std::int32_t> embedding_rows_;
  ConstMatrix outputs_;
  BlockTables tables_;
  FlatBatch flat_;
};

}  // namespace troupe
