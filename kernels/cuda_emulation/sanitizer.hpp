#pragma once
// The address sanitizer's interface; without it, nothing.

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace troupe::cuda_emulation {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kHasAddressSanitizer = true;
inline void poison(const void* data, std::size_t num_bytes) {
  __asan_poison_memory_region(data, num_bytes);
}
inline void unpoison(const void* data, std::size_t num_bytes) {
  __asan_unpoison_memory_region(data, num_bytes);
}
inline void start_switch_fiber(void** fake_stack, const void* bottom, std::size_t size) {
  __sanitizer_start_switch_fiber(fake_stack, bottom, size);
}
inline void finish_switch_fiber(void* fake_stack, const void** old_bottom, std::size_t* old_size) {
  __sanitizer_finish_switch_fiber(fake_stack, old_bottom, old_size);
}
#else
inline constexpr bool kHasAddressSanitizer = false;
inline void poison(const void*, std::size_t) {}
inline void unpoison(const void*, std::size_t) {}
inline void start_switch_fiber(void**, const void*, std::size_t) {}
inline void finish_switch_fiber(void*, const void**, std::size_t*) {}
#endif

}  // namespace troupe::cuda_emulation
