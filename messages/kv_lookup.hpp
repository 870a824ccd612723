#pragma once

namespace troupe {

/// The kv_transfer_params of a request that only asks which tokens of its prompt are cached, and
/// where. Nothing is computed, loaded or allocated: it ends without tokens, and its output's
/// kv_transfer_params are {"num_tokens", "device", "host", "disk", "remote", "peer"}.
inline constexpr const char* kLookupParams = R"({"do_lookup":true})";

}  // namespace troupe
