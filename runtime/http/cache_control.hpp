#pragma once
// Anthropic's cache_control: {"type": "ephemeral", "ttl": "5m" | "1h"}.

#include <cstddef>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"

namespace troupe {

/// Places of a prompt that a request may mark.
inline constexpr std::size_t kMaxCacheBreakpoints = 4;

/// Seconds. `ttl` empty: that of a request which says none. Errors: kInvalidArgument, naming
/// `where`.
[[nodiscard]] Result<double> parse_cache_control(std::string_view type, std::string_view ttl,
                                                 const std::string& where);
[[nodiscard]] Error too_many_breakpoints(std::size_t count);

}  // namespace troupe
