#pragma once
// A request whose prompt is computed by another group than its output (disaggregated prefill).

#include "messages/control.hpp"

namespace troupe {

/// False for requests whose prompt is the whole work, or that need more than the KV of the
/// prompt.
[[nodiscard]] bool may_split(const GenerateRequest& request, const Placement& placement);

/// The request for the prefill group: it generates one token, which is discarded.
[[nodiscard]] GenerateRequest prompt_of(const GenerateRequest& request);
/// Its kv_transfer_params: its KV is held for others, as vLLM's proxies ask for it, who may load it
/// while it is being computed.
inline constexpr const char* kHoldParams =
    R"({"do_remote_decode": true, "do_remote_prefill": false, "begin_early": true})";

}  // namespace troupe
