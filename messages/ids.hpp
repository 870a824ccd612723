#pragma once
// The identifiers that every message speaks in.

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

/// A request inside the engine. The Frontend hands them out, never twice; the client's own id
/// (`external_id`) travels beside it where people read it: responses and logs. A number, so that
/// the token path copies no strings.
enum class RequestId : std::uint64_t {};

using TokenId = std::int32_t;

/// A block of the KV cache. Block 0 is the null block: never allocated, it fills places of a block
/// table that hold nothing.
using BlockId = std::int32_t;
inline constexpr BlockId kNullBlock = 0;

[[nodiscard]] constexpr std::uint64_t value(RequestId id) noexcept {
  return static_cast<std::uint64_t>(id);
}
[[nodiscard]] inline std::string to_string(RequestId id) { return std::to_string(value(id)); }

}  // namespace troupe
