#pragma once
// Hand-written matchers for the split expressions that most published tokenizers use.

#include <cstddef>
#include <optional>
#include <string_view>

#include "runtime/tokenizer/aligned_text.hpp"

namespace troupe {

/// The first match at or after `from`, equal to Regex::find for the expression.
using Splitter = std::optional<ByteRange> (*)(std::string_view text, std::size_t from);

/// The matcher for exactly this expression; null if none exists.
[[nodiscard]] Splitter splitter_for(std::string_view expression) noexcept;

}  // namespace troupe
