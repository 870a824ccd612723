#pragma once
// Returning freed memory to the operating system.

#include <cstddef>

namespace troupe {

/// The caller has freed about `bytes`, or is about to. The allocator keeps freed memory; when
/// enough has accumulated, it is trimmed a moment later on another thread. Any thread.
void note_freed_memory(std::size_t bytes) noexcept;

}  // namespace troupe
