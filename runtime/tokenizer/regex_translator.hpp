#pragma once
// Oniguruma's expressions, which a tokenizer.json has, in PCRE2's syntax.

#include <string>
#include <string_view>

#include "runtime/base/result.hpp"

namespace troupe {

/// `pattern` in PCRE2's syntax, with the classes of characters that the reference tokenizers have:
/// their Unicode is newer than PCRE2's, their scripts are without extensions, and their \w, \s, \h,
/// \b and names in [[: :]] are others. Pairs of upper and lower case, which (?i) compares, stay
/// PCRE2's. Errors: kUnsupported with the pattern and what of it cannot be said.
[[nodiscard]] Result<std::string> translate_regex(std::string_view pattern);

}  // namespace troupe
