#pragma once
// Reading ec_connector_extra_config.

#include <memory>
#include <string>

#include "runtime/base/result.hpp"
#include "runtime/config/ec_transfer_config.hpp"

namespace troupe {

/// Owns the object that the keys are taken out of; what is left in the end is unknown. The key that
/// all connectors of stores have, lookup_timeout_s, is not the store's.
class ECExtraConfig {
 public:
  /// Pre: extra_config is a JSON object, as parse_ec_transfer_config gives it.
  explicit ECExtraConfig(const ECTransferConfig& config);
  ~ECExtraConfig();
  ECExtraConfig(const ECExtraConfig&) = delete;
  ECExtraConfig& operator=(const ECExtraConfig&) = delete;

  /// The text of a key, or another one where it is missing. Errors: kInvalidArgument, it is no
  /// string, or empty.
  [[nodiscard]] Result<std::string> take_text(const std::string& key, const std::string& otherwise);
  /// The same of a number of seconds from 0 on.
  [[nodiscard]] Result<double> take_seconds(const std::string& key, double otherwise);
  /// Errors: kInvalidArgument naming a key that nobody took.
  [[nodiscard]] Result<void> check_empty() const;

 private:
  struct Json;
  std::unique_ptr<Json> json_;
};

inline constexpr const char* kLookupTimeoutKey = "lookup_timeout_s";

}  // namespace troupe
