#pragma once
// Anthropic's cache_control: {"type": "ephemeral", "ttl": "5m" | "1h"}.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"
#include "runtime/http/json_fields.hpp"

namespace troupe {

/// Places of a prompt that a request may mark.
inline constexpr std::size_t kMaxCacheBreakpoints = 4;

/// Seconds. `ttl` empty: that of a request which says none. Errors: kInvalidArgument, naming
/// the member and `where` it is (empty: in the request itself).
[[nodiscard]] Result<double> parse_cache_control(std::string_view type, std::string_view ttl,
                                                 const std::string& where);
/// Seconds of the member cache_control; none: there is none, or `marked` has failed.
[[nodiscard]] std::optional<double> read_cache_control(const JsonFields& marked);
[[nodiscard]] Error too_many_breakpoints(std::size_t count);

}  // namespace troupe
