#include "runtime/base/memory.hpp"

#include <malloc.h>

#include <atomic>

namespace troupe {
namespace {

/// To give it back takes some milliseconds, which a thousand usual requests share.
constexpr std::size_t kWorthwhileBytes = 16 << 20;

}  // namespace

void note_freed_memory(std::size_t bytes) noexcept {
  static std::atomic<std::size_t> freed{0};
  if (freed.fetch_add(bytes, std::memory_order_relaxed) + bytes < kWorthwhileBytes) return;
  if (freed.exchange(0, std::memory_order_relaxed) >= kWorthwhileBytes) malloc_trim(0);
}

}  // namespace troupe
