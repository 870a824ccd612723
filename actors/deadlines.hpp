#pragma once
// How long an actor waits for the answer of another, but for what computes tokens.

#include <chrono>

namespace troupe {

/// What is asked of an actor that has nothing to wait for itself has an answer by then.
inline constexpr std::chrono::minutes kControlDeadline{1};
inline constexpr std::chrono::minutes kPauseDeadline{10};  ///< requests may run to their end before

}  // namespace troupe
