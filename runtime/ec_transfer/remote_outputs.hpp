#pragma once
// Outputs in the memory of other processes.

#include <string>

#include "runtime/base/result.hpp"
#include "runtime/ec_transfer/output_store.hpp"

namespace troupe {

/// Asks the topology's encoders, wherever they are. Thread-safe; each call waits for an answer, for
/// a few seconds at most.
class RemoteOutputs {
 public:
  virtual ~RemoteOutputs() = default;
  /// Whether one of them has it.
  [[nodiscard]] virtual bool has(const std::string& encoder_key, const std::string& identifier) = 0;
  /// Errors: kNotFound, none of them has it; kUnavailable, no answer; kCorrupt, it has another
  /// size.
  [[nodiscard]] virtual Result<StoredOutput> load(const std::string& encoder_key,
                                                  const std::string& identifier,
                                                  const OutputShape& shape) = 0;
};

}  // namespace troupe
