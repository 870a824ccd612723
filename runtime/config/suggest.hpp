#pragma once
// Suggestions for misspelt names.

#include <span>
#include <string>
#include <string_view>

namespace troupe {

/// Edits (insert, delete, replace, transpose neighbours) from `a` to `b`: the optimal string
/// alignment distance.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// The most likely correction of `word`: a candidate whose distance is at most a third of its
/// length, or that contains all of its words ("max-seqs": "max-num-seqs"). Empty: none.
[[nodiscard]] std::string closest(std::string_view word, std::span<const std::string> candidates);

}  // namespace troupe
