#pragma once
// Reading kv_connector_extra_config.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/result.hpp"
#include "runtime/config/kv_transfer_config.hpp"

namespace troupe {

/// Owns the object that the keys are taken out of; what is left in the end is unknown.
class KVExtraConfig {
 public:
  /// Pre: extra_config is a JSON object, as parse_kv_transfer_config gives it.
  explicit KVExtraConfig(const KVConnectorConfig& config);
  ~KVExtraConfig();
  KVExtraConfig(const KVExtraConfig&) = delete;
  KVExtraConfig& operator=(const KVExtraConfig&) = delete;

  /// The text of a key, or another one where it is missing. Errors: kInvalidArgument, it is no
  /// string, or empty.
  [[nodiscard]] Result<std::string> take_text(const std::string& key, const std::string& otherwise);
  /// The same of a whole number from `least` on. nullopt: it is missing.
  [[nodiscard]] Result<std::optional<std::int64_t>> take_number(const std::string& key,
                                                                std::int64_t least);
  /// Errors: kInvalidArgument naming a key that nobody took.
  [[nodiscard]] Result<void> check_empty() const;

 private:
  struct Json;
  std::unique_ptr<Json> json_;
};

}  // namespace troupe
