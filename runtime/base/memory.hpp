#pragma once
// Giving memory back to the system.

#include <cstddef>

namespace troupe {

/// The caller has freed about so many bytes. The allocator keeps what is freed; when many have come
/// together since the last time, it is made to give them back. Any thread.
void note_freed_memory(std::size_t bytes) noexcept;

}  // namespace troupe
