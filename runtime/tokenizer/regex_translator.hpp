#pragma once
// Translates the Oniguruma expressions of a tokenizer.json to PCRE2's syntax.

#include <string>
#include <string_view>

#include "runtime/base/result.hpp"

namespace troupe {

/// Translates `pattern` to PCRE2's syntax, with the character classes of the reference tokenizers:
/// their Unicode is newer than PCRE2's, their scripts exclude extensions, and \w, \s, \h, \b and
/// names in [[: :]] differ. Case pairs for (?i) stay PCRE2's. Errors: kUnsupported with the pattern
/// and the untranslatable part.
[[nodiscard]] Result<std::string> translate_regex(std::string_view pattern);

}  // namespace troupe
