#pragma once
// Deadlines of requests between actors, except for those on the token path.

#include <chrono>

namespace troupe {

/// For requests that the receiver can answer without waiting.
inline constexpr std::chrono::minutes kControlDeadline{1};
inline constexpr std::chrono::hours kLoadDeadline{1};       ///< weights are read
inline constexpr std::chrono::minutes kEncodeDeadline{10};  ///< images wait in a queue
inline constexpr std::chrono::minutes kPauseDeadline{10};   ///< running requests may finish first

}  // namespace troupe
