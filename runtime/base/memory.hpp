#pragma once
// Giving memory back to the system.

#include <cstddef>

namespace troupe {

/// The caller has freed about so many bytes, or is about to. The allocator keeps what is freed;
/// when many have come together it is made to give them back, a moment later and on another thread.
/// Any thread.
void note_freed_memory(std::size_t bytes) noexcept;

}  // namespace troupe
