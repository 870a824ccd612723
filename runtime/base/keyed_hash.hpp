#pragma once
// Hashing for tables whose keys are chosen by clients.

#include <cstdint>
#include <string_view>

namespace troupe {

/// SipHash-1-3 with a random key of this process: clients cannot construct colliding keys.
[[nodiscard]] std::uint64_t keyed_hash(std::string_view bytes) noexcept;

}  // namespace troupe
