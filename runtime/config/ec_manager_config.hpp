#pragma once
// The option ec-manager-config: which EncoderCacheManager there is.

#include <string>

#include "runtime/base/result.hpp"

namespace troupe {

/// Parses vLLM's JSON object: encoder_cache_manager_cls, the manager's name, with or without the
/// module of vLLM's own ("vllm.v1.core.encoder_cache_manager."), and manager_config, whose fields
/// are the manager's own (none has any). Returns the name without the module; empty: none is
/// named. Errors name the key and its value. Whether there is such a manager is not asked.
[[nodiscard]] Result<std::string> parse_ec_manager_config(const std::string& text);

}  // namespace troupe
