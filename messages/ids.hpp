#pragma once
// Identifiers used in all messages.

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

/// A request inside the engine. The Frontend assigns each once; the client's own id (`external_id`)
/// is used in responses and logs. A number, so that the token path copies no strings.
enum class RequestId : std::uint64_t {};

using TokenId = std::int32_t;

/// A block of the KV cache. Block 0 is the null block: never allocated, it fills unused entries of
/// a block table.
using BlockId = std::int32_t;
inline constexpr BlockId kNullBlock = 0;

[[nodiscard]] constexpr std::uint64_t value(RequestId id) noexcept {
  return static_cast<std::uint64_t>(id);
}
[[nodiscard]] inline std::string to_string(RequestId id) { return std::to_string(value(id)); }

}  // namespace troupe
