#pragma once

#include <string_view>

#include "runtime/structured_output/schema_keywords.hpp"

namespace troupe::schema {

/// The schema without its titles, descriptions and comments, which may be most of its text. Throws
/// GrammarRefused if it is no JSON, or nested deeper than kMaxJsonDepth.
[[nodiscard]] Json parse_schema(std::string_view source);

}  // namespace troupe::schema
