#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace troupe {

/// Where a span is in its trace, as the W3C header `traceparent` has it.
struct TraceContext {
  std::string trace_id;    ///< 32 hexadecimal digits
  std::string parent_id;   ///< 16; empty: the span is the first of its trace
  bool is_sampled = true;  ///< false: the caller records no spans of this trace
};

/// "00-<trace id>-<parent id>-<flags>". Nullopt: malformed, which counts as absent.
[[nodiscard]] std::optional<TraceContext> parse_traceparent(std::string_view header);

/// `bytes` random bytes in hexadecimal digits, not all zero. `random` returns 64 random bits.
[[nodiscard]] std::string random_hex(std::size_t bytes,
                                     const std::function<std::uint64_t()>& random);

}  // namespace troupe
