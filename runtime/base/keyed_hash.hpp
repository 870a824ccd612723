#pragma once
// Hashing for tables whose keys a client chooses.

#include <cstdint>
#include <string_view>

namespace troupe {

/// SipHash-1-3 with a key that this process drew at random: nobody outside can make many keys fall
/// together.
[[nodiscard]] std::uint64_t keyed_hash(std::string_view bytes) noexcept;

}  // namespace troupe
