#pragma once

#include <optional>
#include <string_view>

#include "runtime/structured_output/grammar_builder.hpp"

namespace troupe {

/// Python's \d, \w and \s of str patterns.
[[nodiscard]] const CodePointSet& python_digits();
[[nodiscard]] const CodePointSet& python_word_characters();
[[nodiscard]] const CodePointSet& python_spaces();
/// ECMAScript's \s. Its \d and \w are ASCII.
[[nodiscard]] const CodePointSet& ecma_spaces();
/// Of a general category or a group of them: "Lu", "L", "Letter"; none if there is no such.
[[nodiscard]] std::optional<CodePointSet> general_category(std::string_view name);

}  // namespace troupe
