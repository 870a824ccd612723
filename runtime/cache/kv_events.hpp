#pragma once
// What a block's events show beside its hash and tokens.

#include <cstdint>
#include <vector>

#include "messages/kv_events.hpp"

namespace troupe {

/// The extra keys of tokens [begin, end), as events show them: LoRA name, items, salt, digest
/// of prompt embeddings.
[[nodiscard]] std::vector<ExtraKey> extra_keys(const KVCacheRequest& request, std::int32_t begin,
                                               std::int32_t end);

}  // namespace troupe
