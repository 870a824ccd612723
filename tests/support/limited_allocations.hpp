#pragma once
// Memory that runs out when a test says so. Replaces the program's operator new: for one file of an
// executable.

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

namespace troupe::testing {

/// Larger blocks cannot be allocated.
inline std::atomic<std::size_t> largest_allocation = std::numeric_limits<std::size_t>::max();

}  // namespace troupe::testing

// Not inlined, where GCC would take them for mismatches. All kinds that a sanitizer replaces one by
// one, but those of arrays and of larger alignments, which are pairs of their own.
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return size > troupe::testing::largest_allocation ? nullptr : std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void* operator new(std::size_t size) {
  void* const memory = operator new(size, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
