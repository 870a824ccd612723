#pragma once
// A worker's side of an EC connector (see ECConnector for the Scheduler's).

#include <string>

#include "messages/model_runner_output.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/device.hpp"
#include "runtime/worker/encoder_outputs.hpp"

namespace troupe {

/// Called by one ModelRunner, on its thread, in each step in this order: start_load_caches, if
/// there is metadata; save_caches of each output that the step encodes; get_finished. With several
/// ranks each loads what it needs, and the first one saves.
class ECConnectorWorker {
 public:
  virtual ~ECConnectorWorker() = default;

  /// Where outputs lie: what is loaded goes there, what is saved comes from there. Both outlive
  /// this, or the last of the calls below.
  virtual Result<void> register_caches(Device& device, EncoderOutputs& outputs) = 0;
  /// Loads what the Scheduler's side says. When it returns, every output is there or is not: then
  /// it is reported as failed, and the ModelRunner encodes it.
  virtual void start_load_caches(const std::string& metadata) = 0;
  /// The output has been encoded. Its rows may be given to others after the call: what is needed
  /// of them is copied.
  virtual void save_caches(const std::string& identifier) = 0;
  /// Since the last call.
  [[nodiscard]] virtual ECConnectorOutput get_finished() = 0;
};

}  // namespace troupe
