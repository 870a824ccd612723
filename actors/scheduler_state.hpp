#pragma once
// The state of the Scheduler's actor, and the loop of its steps: schedule -> execute -> update
// (scheduler_loop.cpp).

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "actors/spawn.hpp"
#include "messages/actor_interfaces.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/scheduler/scheduler.hpp"

namespace troupe {

/// A grammar that is being compiled. The compiler writes `grammar`, until GrammarCompiled
/// arrives.
struct PendingGrammar {
  std::uint64_t sequence = 0;  ///< of its request
  std::shared_ptr<std::optional<Result<std::unique_ptr<Grammar>>>> grammar;
};

/// The masks of an open step that are being filled: written by the compiler until GrammarFilled
/// arrives.
using PendingMasks = std::shared_ptr<std::optional<GrammarMasks>>;

/// What the grammars of a step's requests propose.
struct PendingProposals {
  std::vector<GrammarProposal> proposals;
};

struct PendingReset {
  ResetCaches what;
  caf::typed_response_promise<CachesReset> promise;
};

struct PendingMove {
  MoveCache what;
  caf::typed_response_promise<CacheMoved> promise;
};

struct PendingPause {
  PauseScheduler what;
  caf::typed_response_promise<PauseStatus> promise;
};

struct PendingResume {
  caf::typed_response_promise<PauseStatus> promise;
};

/// What waits until the core may be touched.
using SchedulerMessage =
    std::variant<EngineCoreRequest, AbortRequests, ModelRunnerOutput, StepFailed, GrammarCompiled,
                 GrammarFilled, PendingProposals, WakeUp, PendingReset, PendingMove, PendingPause,
                 PendingResume>;

/// Steps overlap: up to `max_open_steps` are open, so that the workers have the next one when they
/// finish one. While the core waits for the caches nothing may touch it: messages pass through
/// `inbox`, in the order of arrival.
struct SchedulerState {
  SchedulerState() = default;
  static inline const char* name = "scheduler";

  SchedulerPeers peers;
  std::unique_ptr<KVCachePort> kv_cache;
  std::unique_ptr<EncoderCachePort> encoder_cache;
  std::unique_ptr<Scheduler> core;
  Task<SchedulerOutput> planning;
  Task<EngineCoreOutputs> updating;        ///< from a step's result
  Task<bool> recovering;                   ///< from a failed step, or a reset of the caches
  std::deque<SchedulerOutput> open_steps;  ///< sent to the workers, no result yet; oldest first
  std::size_t max_open_steps = 1;
  /// The last open step waits for its GrammarOutput, which needs the results of all others.
  bool owes_grammar = false;
  std::uint32_t incarnation = 0;  ///< of the engine
  std::unordered_map<RequestId, PendingGrammar> grammars;
  std::map<std::uint64_t, PendingMasks> masks;  ///< by step
  /// Something has changed that the last plan did not consider; otherwise the loop sleeps. Cleared
  /// when a plan begins, never by the result of a step: no plan has considered what arrived while
  /// that step was open.
  bool has_news = false;
  /// Blocks of finished requests have become free: one more step reports it, even without
  /// requests.
  bool reports_free_blocks = false;
  std::deque<SchedulerMessage> inbox;
  std::optional<PendingMove> moving;  ///< answered when done
  std::vector<PendingPause> pausing;  ///< answered when no request runs
  double poll_at = kNever;            ///< when to poll the KV connector
  double wake_at = kNever;            ///< when WakeUp arrives, if one is scheduled

  [[nodiscard]] bool asking() const {
    return planning.valid() || updating.valid() || recovering.valid();
  }
};

using SchedulerSelf = SchedulerActor::stateful_pointer<SchedulerState>;

/// Handles the message when the core may be touched, after those that arrived before it.
void receive(SchedulerSelf self, SchedulerMessage message);

/// The same of the masks of a step, most of which need not wait for the core.
void receive_masks(SchedulerSelf self, const GrammarFilled& filled);

/// What the log of decisions cannot express.
void log_other(SchedulerSelf self, std::string_view what);

// scheduler_grammars.cpp

/// For a waiting request; other requests run meanwhile.
void compile_grammar(SchedulerSelf self, const RequestState& request);
/// The request may have finished, and another one may have its id.
void take(SchedulerSelf self, GrammarCompiled& compiled);
/// Masks of an open step are filled while the workers compute it. They wait for the message even if
/// the structured requests have finished and it is empty.
void fill_masks_of(SchedulerSelf self, const SchedulerOutput& step);
void send_masks(SchedulerSelf self, GrammarOutput masks);
/// Requests for which the step has nothing to sample finish before its result.
void take(SchedulerSelf self, GrammarFilled& filled);
void take(SchedulerSelf self, PendingProposals& pending);

}  // namespace troupe
