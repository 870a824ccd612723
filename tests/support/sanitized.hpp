#pragma once
// Whether a sanitizer checks this build. It takes ten times as long and looks for faults of memory
// and of threads, which the first of many equal rounds has as the last: tests of many take fewer.
// All of them run in the release build.

namespace troupe::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace troupe::testing
