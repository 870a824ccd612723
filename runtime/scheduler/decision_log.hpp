#pragma once
// The decisions of a Scheduler as JSON lines, in the format of the reference's traces: with them a
// run of the engine is replayed without workers (tests/support/replay_traces).

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "messages/engine_output.hpp"
#include "messages/model_runner_output.hpp"
#include "messages/request.hpp"
#include "messages/scheduler_output.hpp"
#include "runtime/base/result.hpp"
#include "runtime/cache/encoder_cache_manager.hpp"
#include "runtime/cache/kv_cache_settings.hpp"
#include "runtime/scheduler/scheduler_config.hpp"

namespace troupe {

/// How a request is called in a trace.
using RequestName = std::function<std::string(RequestId)>;

/// A step's plan, without the tokens that workers are sent. `sends_resumed_as_new`: `v2_runner`.
[[nodiscard]] nlohmann::json plan_json(const SchedulerOutput& step, std::size_t num_groups,
                                       bool sends_resumed_as_new, const RequestName& name);
/// The drafts that a step verifies, by request.
[[nodiscard]] nlohmann::json drafts_json(const SchedulerOutput& step, const RequestName& name);
/// What a step's result has led to.
[[nodiscard]] nlohmann::json outputs_json(const EngineCoreOutputs& outputs,
                                          const RequestName& name);

/// Writes what a Scheduler is told, and what it decides. The Scheduler's owner calls it, in the
/// order of its calls of the Scheduler. The caches' states are not written: replaying compares
/// decisions alone. What a trace cannot express (grammars, connectors, failed steps, pauses) is
/// written as an operation that cannot be replayed.
class DecisionLog {
 public:
  /// Errors: kIo; kInvalidArgument, a setting that makes decisions depend on the time, or that
  /// traces do not have. `encoder_cache`: null for models without an encoder.
  static Result<std::shared_ptr<DecisionLog>> open(const std::filesystem::path& file,
                                                   const SchedulerConfig& config,
                                                   const KVCacheSettings& caches,
                                                   const EncoderCacheSettings* encoder_cache);

  void on_added(const EngineCoreRequest& request);
  /// `is_sent`: the workers get it, so that a result follows.
  void on_planned(const SchedulerOutput& step, bool is_sent);
  void on_result(const ModelRunnerOutput& result, const EngineCoreOutputs& outputs);
  void on_drafts(std::span<const std::pair<RequestId, std::vector<TokenId>>> drafts);
  /// Of the given ids, those in `done` were alive.
  void on_aborted(std::span<const RequestId> ids, std::span<const RequestId> done);
  /// The rest cannot be replayed.
  void on_other(std::string_view what);

 private:
  DecisionLog(std::ofstream file, const SchedulerConfig& config, std::size_t num_groups)
      : file_(std::move(file)),
        num_groups_(num_groups),
        max_model_len_(config.max_model_len),
        sends_resumed_as_new_(config.stagger_decodes),
        has_drafts_(config.speculative.num_draft_tokens > 0) {}
  void write(const nlohmann::json& operation, const nlohmann::json& result);

  std::ofstream file_;
  std::size_t num_groups_;
  std::int32_t max_model_len_;
  bool sends_resumed_as_new_;
  bool has_drafts_;
};

}  // namespace troupe
