#pragma once
// enable-lora, lora-modules and what belongs to them.

#include "messages/worker.hpp"
#include "runtime/base/result.hpp"
#include "runtime/config/options.hpp"

namespace troupe {

/// What workers get of these options. A module is "name=path" or a JSON object with name and path.
/// Errors: kInvalidArgument naming the option, its value and what it allows.
[[nodiscard]] Result<AdapterOptions> parse_adapter_options(const EngineOptions& engine);

}  // namespace troupe
