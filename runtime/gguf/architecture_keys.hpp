#pragma once
// Which metadata of an architecture is understood.

#include <cstdint>
#include <string>

#include "runtime/gguf/metadata.hpp"

namespace troupe {

/// Each key under the architecture's own prefix must be one that gguf_config_json reads, one that
/// changes no result, or have the value with which it changes none. Errors go to `metadata`:
/// kUnsupported, naming the first other key and its value.
void check_architecture_keys(GgufMetadata& metadata, const std::string& architecture,
                             std::int64_t head_dim);

}  // namespace troupe
