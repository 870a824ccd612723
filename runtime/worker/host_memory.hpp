#pragma once
// How much memory this process may still take.

#include <cstdint>

namespace troupe {

/// Bytes that can be taken without swapping: what the kernel calls available, or what is left of
/// the control group's limit (containers) if that is less. 0 if neither can be read.
[[nodiscard]] std::int64_t available_host_bytes();

}  // namespace troupe
