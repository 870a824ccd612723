#pragma once
// What configures the MultiConnector.

#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/config/connector_config.hpp"

namespace troupe {

inline constexpr const char* kMultiConnector = "MultiConnector";

/// The objects of kv_connector_extra_config's connectors. Errors: kInvalidArgument naming the key.
[[nodiscard]] Result<std::vector<ConnectorConfig>> read_connectors(const ConnectorConfig& config);

}  // namespace troupe
