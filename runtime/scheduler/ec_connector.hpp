#pragma once
// The Scheduler's side of an EC connector: outputs of encoders that are loaded from elsewhere
// (another engine, a store) instead of being computed, and outputs that others load from here. Its
// other side is in the workers (ECConnectorWorker); the two communicate through the metadata of a
// step and the ECConnectorOutput of its result.

#include <optional>
#include <string>

#include "messages/model_runner_output.hpp"
#include "messages/scheduler_output.hpp"
#include "runtime/scheduler/request_state.hpp"

namespace troupe {

/// Called by the Scheduler only, on its thread; must not block. `now`: seconds, of the engine's
/// clock.
class ECConnector {
 public:
  virtual ~ECConnector() = default;

  /// Whether the output can be loaded. nullopt: unknown, to be queried again in a later step; slow
  /// lookups and prefetches start with the first query, when the request arrives. A connector must
  /// decide within a deadline, even if its store does not answer.
  [[nodiscard]] virtual std::optional<bool> has_cache_item(const MultiModalFeature& item,
                                                           double now) = 0;
  /// The step being planned contains the request with this item, which should be loaded in it.
  /// There is space for its output.
  virtual void update_state_after_alloc(const RequestState& request,
                                        const MultiModalFeature& item) = 0;
  /// Metadata for the workers, with every step; empty: nothing to do.
  [[nodiscard]] virtual std::string build_connector_meta(const SchedulerOutput& step) = 0;
  /// What the workers have loaded and saved, and what could not be loaded.
  virtual void update_connector_output(const ECConnectorOutput& output) = 0;

  /// For the client of a request that stops: the outputs that others can load from here. A JSON
  /// object, or empty.
  [[nodiscard]] virtual std::string transfer_params(const RequestState&) const { return {}; }
  /// The request has finished, see request.status. True: it keeps its references in the encoder
  /// cache until ECConnectorOutput::finished_sending has its id.
  [[nodiscard]] virtual bool request_finished(const RequestState&) { return false; }
  /// The last request with this item has finished.
  virtual void release(const std::string& identifier) = 0;
};

}  // namespace troupe
