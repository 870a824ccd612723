#pragma once
// The Scheduler's side of the BlendConnector.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "messages/request.hpp"
#include "runtime/kv_transfer/blend_config.hpp"
#include "runtime/kv_transfer/blend_ops.hpp"
#include "runtime/kv_transfer/block_index.hpp"
#include "runtime/kv_transfer/factory.hpp"
#include "runtime/kv_transfer/piece_index.hpp"
#include "runtime/scheduler/kv_connector.hpp"

namespace troupe {

/// CacheBlend (arXiv 2405.16444): pieces of prompts are kept in the memory of the workers' hosts,
/// and used wherever they stand in a later prompt. Its tokens are scheduled as if all of them were
/// computed; which of them the layers compute is the workers' side's to select (KvBlend).
///
/// A request is blended from its admission on, with the pieces behind its hit in the prefix cache
/// that are kept then; these are pinned until its prompt is computed. A piece is kept when a
/// request has computed it completely. The workers carry out this side's decisions in the order of
/// the steps. After failed steps the workers' state is unknown, so both sides drop all
/// pieces in memory.
///
/// With files, whole pieces are also written to disk. A request whose pieces are there and not in
/// memory waits while they are read, once; what is lost or late is computed.
///
/// The result is approximate: a token's keys and values are those that it had after another prefix.
/// So the blocks of such a request do not enter the prefix cache. A request that is preempted, or
/// resubmitted after a crash, recomputes its prompt and the tokens that its client has, with the
/// pieces stored at that time: it continues after these tokens, and none is lost or repeated, but
/// the following ones may differ from those of an uninterrupted run.
class BlendConnector final : public KVConnector {
 public:
  /// `separator`: the tokens of BlendConfig::special_str; empty: pieces end by their content.
  /// `files`: the pieces on disk, the most recently used last.
  BlendConnector(const KVConnectorContext& context, BlendConfig config,
                 std::vector<TokenId> separator, const std::vector<StoreKey>& files);
  /// Errors: kUnsupported, the kind of layers; kInvalidArgument.
  [[nodiscard]] static Result<void> check(const KVConnectorContext& context,
                                          const BlendConfig& config);

  [[nodiscard]] Result<void> check_transfer_params(const std::string& params) const override;
  void on_new_request(const KVCacheRequest& request) override;
  /// Of no tokens, but of those that are blended.
  [[nodiscard]] std::optional<Match> get_num_new_matched_tokens(
      const RequestState& request, std::int32_t num_local_tokens) override;
  void update_state_after_alloc(const RequestState& request, const BlockTable& blocks,
                                std::int32_t num_external_tokens) override;
  [[nodiscard]] Finished request_finished(const RequestState& request,
                                          const BlockTable& blocks) override;
  [[nodiscard]] std::string build_connector_metadata(const SchedulerOutput& step) override;
  void update_connector_output(const KVConnectorOutput& output) override;
  void on_failed_steps() override { forget_pieces(); }
  bool reset_cache() override;

  [[nodiscard]] const PieceIndex& index() const noexcept { return index_; }
  [[nodiscard]] std::size_t num_requests() const noexcept { return requests_.size(); }

 private:
  struct Piece {
    TokenSpan span;
    BlockHash key;
    bool is_blended = false;  ///< pinned
    bool is_saved = false;    ///< by this request, and not whole yet
  };
  struct Request {
    std::string owner;
    bool is_plain = true;  ///< a text, whose prompt is known
    bool is_admitted = false;
    bool has_loaded = false;  ///< pieces are read for it once
    std::int32_t num_prompt_tokens = 0;
    std::int32_t num_local_tokens = 0;  ///< of the last look-up
    std::optional<BlendParams> params;  ///< read with the first look-up
    std::optional<std::vector<Piece>> pieces;
  };

  [[nodiscard]] static StoreKey file_key(const Piece& piece) {
    return {piece.key, piece.span.end - piece.span.begin};
  }
  /// From its file into memory.
  void start_load(const Piece& piece);
  /// False: there is no room for it.
  bool add_file(const StoreKey& file);
  /// Those in memory.
  void forget_pieces();
  [[nodiscard]] bool may_blend(const Request& known, const RequestState& request) const;
  void cut(Request& known, const RequestState& request) const;
  /// What the request holds of the index is given back.
  void release(Request& known);
  void plan_blend(const Request& known, std::int32_t begin, std::int32_t end, std::int32_t token);
  void plan_saves(Request& known, std::int32_t begin, std::int32_t end, std::int32_t token);

  ConnectorRole role_;
  BlendConfig config_;
  std::vector<TokenId> separator_;
  std::size_t num_groups_;
  std::int64_t token_bytes_;  // of all ranks
  PieceIndex index_;
  std::optional<BlockIndex> files_;                              // none: pieces are in memory only
  std::unordered_map<StoreKey, RequestId, StoreKeyHash> loads_;  // not yet reported
  std::unordered_map<RequestId, Request> requests_;
  BlendOps next_;  // for the step that is planned
};

/// BlendConnector: see BlendConfig for what configures it.
[[nodiscard]] Result<std::shared_ptr<KVConnector>> make_blend_connector(
    const KVConnectorContext& context);
[[nodiscard]] Result<std::unique_ptr<KVConnectorWorker>> make_blend_connector_worker(
    const KVConnectorWorkerContext& context);

}  // namespace troupe
