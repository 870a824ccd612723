#pragma once
// Fields of a block's events besides hash and tokens.

#include <cstdint>
#include <vector>

#include "messages/kv_events.hpp"

namespace troupe {

/// The extra keys of tokens [begin, end) for events: LoRA name, items, salt, digest of prompt
/// embeddings.
[[nodiscard]] std::vector<ExtraKey> extra_keys(const KVCacheRequest& request, std::int32_t begin,
                                               std::int32_t end);

}  // namespace troupe
