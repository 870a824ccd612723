#pragma once
// The Scheduler's side of a KV connector: KV that is loaded from elsewhere (another engine, a
// store) instead of being computed, and KV that others load from here. Its other side is in the
// workers; the two communicate through the metadata of a step and the KVConnectorOutput of its
// result.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "messages/cache.hpp"
#include "messages/control.hpp"
#include "messages/kv_events.hpp"
#include "messages/model_runner_output.hpp"
#include "messages/scheduler_output.hpp"
#include "runtime/base/result.hpp"
#include "runtime/scheduler/request_state.hpp"

namespace troupe {

/// Called by the Scheduler only, on its thread; must not block. Token counts start at a request's
/// first token.
class KVConnector {
 public:
  virtual ~KVConnector() = default;

  /// The kv_transfer_params of a new request, if not empty. Errors: kInvalidArgument, the request
  /// fails.
  [[nodiscard]] virtual Result<void> check_transfer_params(const std::string&) const { return {}; }
  /// The request has been added; what determines the hashes of its blocks.
  virtual void on_new_request(const KVCacheRequest&) {}
  /// Ranks, and where their workers' sides are reached: known with the result of a step.
  virtual void set_endpoints(std::span<const std::pair<std::int32_t, std::string>>) {}
  /// The same request, if it has kv_transfer_params.
  virtual void on_transfer_params(const RequestState&) {}

  struct Match {
    std::int32_t num_tokens = 0;  ///< beyond the local ones
    bool async = false;           ///< loaded asynchronously, over several steps
    /// Not loaded before the forward pass, but blended into it: this many tokens reuse stored keys
    /// and values, which approximate their own. The blocks of the request must not be shared with
    /// others.
    std::int32_t num_blended = 0;
  };
  /// What can be loaded after num_local_tokens, a multiple of the block size. nullopt: not known
  /// yet, to be queried again in a later step. May be called several times for one request.
  [[nodiscard]] virtual std::optional<Match> get_num_new_matched_tokens(
      const RequestState& request, std::int32_t num_local_tokens) = 0;

  /// The request has its blocks. num_external_tokens of them (0: none), after the local ones, are
  /// to be loaded. Called again, with 0, when a request continues after an asynchronous load.
  virtual void update_state_after_alloc(const RequestState& request, const BlockTable& blocks,
                                        std::int32_t num_external_tokens) = 0;

  /// The number of tokens whose blocks request_finished gets, without those that the next token
  /// does not attend to.
  [[nodiscard]] virtual std::int32_t num_tokens_to_keep(const RequestState& request) const {
    return request.num_computed_tokens;
  }
  struct Finished {
    bool delay_free = false;         ///< keep the blocks until they are reported as sent
    std::string kv_transfer_params;  ///< for the client: a JSON object, or empty
  };
  /// The request has finished, see request.status, and is not used after this call.
  [[nodiscard]] virtual Finished request_finished(const RequestState& request,
                                                  const BlockTable& blocks) = 0;

  /// Where the tokens of the last match of a request come from.
  enum class Medium : std::uint8_t { kHost, kDisk, kPeer, kRemote };
  [[nodiscard]] virtual Medium medium(const RequestState&) const { return Medium::kHost; }

  /// The blocks stored and evicted since the last call, in order.
  [[nodiscard]] virtual std::vector<KVCacheEvent> take_events() { return {}; }

  /// Metadata for the workers, with every step.
  [[nodiscard]] virtual std::string build_connector_metadata(const SchedulerOutput&) { return {}; }
  virtual void update_connector_output(const KVConnectorOutput&) {}
  /// Requests whose KV others may begin to load before they have ended, and the parameters for
  /// their clients: since the last call.
  [[nodiscard]] virtual std::vector<std::pair<RequestId, std::string>> take_early_params() {
    return {};
  }
  /// Steps have failed: workers may not have read the metadata of those without a result.
  virtual void on_failed_steps() {}

  /// Steps that have not been reported load, layer by layer, what they compute from: if blocks are
  /// reported as invalid, nothing of what they have computed counts.
  [[nodiscard]] virtual bool has_layered_loads() const { return false; }
  /// Whether another connector of the engine has such loads now.
  virtual void set_others_load_layers(bool) {}

  /// Blocks will become free without a preemption: wait rather than preempt.
  [[nodiscard]] virtual bool has_pending_block_frees() const { return false; }
  /// Starts to export its stored blocks to files of a folder, or to import such files. It continues
  /// while is_moving(), involves the workers, and needs steps. Pre: not is_moving().
  /// Errors: kUnsupported.
  [[nodiscard]] virtual Result<void> start_move(const MoveCache&) {
    return Error{ErrorCode::kUnsupported, "the KV connector stores no blocks", {}};
  }
  [[nodiscard]] virtual bool is_moving() const { return false; }
  /// The result of what was started.
  [[nodiscard]] virtual CacheMoved take_moved() { return {}; }
  /// Clears its external store; false if it cannot.
  virtual bool reset_cache() { return false; }
};

}  // namespace troupe
